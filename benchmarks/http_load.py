"""Load for a server: requests over kept connections, as fast as answers come or at given times."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

TIMEOUT_S = 600.0


class Request(NamedTuple):
    """What is sent, and what must come back."""

    content_type: str
    body: bytes
    expected: int | None = None
    """The place of the image that the answer must fit; None where the request is malformed."""
    kind: str = "image"


class Reply(NamedTuple):
    """What came back."""

    status: int
    tree: Any
    seconds: float
    """From when the request was due, so that waiting for a connection counts."""
    request: Request


class Connection:
    """One kept connection; it is made again where the server closed it."""

    def __init__(self, host: str, port: int, path: str) -> None:
        self.host, self.port, self.path = host, port, path
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: Request, due: float | None = None) -> Reply:
        """Send a request and read its answer."""
        began = time.perf_counter() if due is None else due
        for attempt in (1, 2):  # a kept connection may have been closed since
            is_fresh = self._streams is None
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    status, body = await self._exchange(request)
                break
            except (ConnectionError, asyncio.IncompleteReadError):
                self.close()
                if is_fresh or attempt == 2:
                    raise
        return Reply(status, json.loads(body), time.perf_counter() - began, request)

    def close(self) -> None:
        """Give the connection up."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _exchange(self, request: Request) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self.host, self.port)
        reader, writer = self._streams
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: {request.content_type}\r\n"
            f"Content-Length: {len(request.body)}\r\n\r\n"
        )
        writer.write(head.encode() + request.body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        body = await reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            self.close()
        return int(lines[0].split()[1]), body


async def ask_closed(
    place: tuple[str, int, str], requests: Iterator[Request], clients: int, seconds: float | None = None
) -> tuple[list[Reply], float]:
    """Keep so many clients busy, each sending the next request once it has its answer.

    Args:
        place: host, port and path.
        requests: what is sent, until it ends.
        clients: how many at once.
        seconds: when no more is sent; None sends all.

    Returns:
        The replies, in the order in which they came, and the seconds they took.
    """
    began = time.perf_counter()
    replies: list[Reply] = []

    async def work() -> None:
        connection = Connection(*place)
        for request in requests:
            replies.append(await connection.ask(request))
            if seconds is not None and time.perf_counter() - began > seconds:
                break
        connection.close()

    await asyncio.gather(*(work() for _ in range(clients)))
    return replies, time.perf_counter() - began


async def ask_open(
    place: tuple[str, int, str], requests: Sequence[Request], gaps_s: Sequence[float]
) -> list[Reply]:
    """Send each request at its time, whether or not others were answered.

    Args:
        place: host, port and path.
        requests: what is sent.
        gaps_s: seconds before each of them.
    """
    idle: list[Connection] = []
    began = time.perf_counter()

    async def ask(request: Request, due: float) -> Reply:
        connection = idle.pop() if idle else Connection(*place)
        reply = await connection.ask(request, due)
        idle.append(connection)
        return reply

    tasks = []
    due = began
    for request, gap in zip(requests, gaps_s, strict=True):
        due += gap
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        tasks.append(asyncio.create_task(ask(request, due)))
    replies = list(await asyncio.gather(*tasks))
    for connection in idle:
        connection.close()
    return replies
