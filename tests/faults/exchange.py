"""Send bytes to a server as they are, and read its answers to the end of the connection."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Answer(NamedTuple):
    """One answer of a connection."""

    status: int
    headers: dict[str, str]
    tree: Any
    """Its JSON; None where it is none."""


def exchange(url: str, sent: bytes, *, timeout_s: float = 30.0, is_open: bool = True) -> list[Answer]:
    """Send bytes, and return the answers that came until the server closed the connection.

    Args:
        timeout_s: for the next piece of an answer.
        is_open: whether this side stays open once all is sent.

    Raises:
        TimeoutError: the server neither answered nor closed the connection.
        AssertionError: what came is no row of whole HTTP answers.
    """
    place = urlsplit(url)
    assert place.hostname is not None
    received = b""
    with socket.create_connection((place.hostname, place.port or 80), timeout=timeout_s) as connection:
        with suppress(ConnectionError):  # it may be refused before its end
            connection.sendall(sent)
            if not is_open:
                connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while piece := connection.recv(65_536):
                received += piece
    return split_answers(received, is_head=b"HEAD " in sent)


def split_answers(received: bytes, *, is_head: bool = False) -> list[Answer]:
    """Split what a server sent into its answers.

    Args:
        is_head: whether there was a HEAD among the requests, whose answer has no body.
    """
    answers: list[Answer] = []
    while received:
        head, end, received = received.partition(b"\r\n\r\n")
        assert end, f"half an answer: {head[:200]!r}"
        first, *lines = head.decode("latin-1").split("\r\n")
        assert first.startswith("HTTP/1.1 "), first[:200]
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        status = int(first.split()[1])
        if status == 100:
            continue
        has_no_body = is_head and (not received or received.startswith(b"HTTP/1.1 "))
        length = 0 if has_no_body else int(headers["content-length"])
        assert len(received) >= length, f"{len(received)} of {length} bytes came"
        body, received = received[:length], received[length:]
        is_json = headers.get("content-type") == "application/json" and length
        answers.append(Answer(status, headers, json.loads(body) if is_json else None))
    return answers
