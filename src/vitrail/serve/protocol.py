"""HTTP/1.1 on one connection: uvicorn's, with strict framing, time-outs for slow clients, errors as JSON."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitrail.tasks.serving import RefusalError, error_tree

# From the connection, or the first byte of a request, to the end of its headers; and for the rest of a body
# that was answered before its end.
HEADERS_S = 10.0
READING_S = 30.0  # maximum wait for a client to read on
LINGER_S = 2.0  # how long a refused client may go on sending, so that it comes to read why
DRAIN_S = 2.0  # how long a stopping server waits for the next request of an idle connection
CLOSE = (b"connection", b"close")


class StrictConnection(h11.Connection):
    """h11's parser, which refuses what a proxy before it may read in another way.

    Where two of a chain do not agree on the end of a request, one's body is the other's next request
    (RFC 9112, 11.2).
    """

    fault = h11.RemoteProtocolError("")
    """Why the last request was refused."""

    def next_event(self) -> Any:
        try:
            if self.their_state is h11.IDLE:
                _check_framing(self.trailing_data[0])
            return super().next_event()
        except h11.RemoteProtocolError as error:
            self.fault = error
            raise


def _check_framing(received: bytes) -> None:
    """Refuse a request whose end, or the length of whose body, is written ambiguously."""
    head, end, _ = received.replace(b"\r", b"").partition(b"\n\n")
    request, *lines = head.lower().split(b"\n") if end else [b""]
    fields = [line.partition(b":") for line in lines]
    num_lengths = sum(1 + value.count(b",") for name, _, value in fields if name.strip() == b"content-length")
    is_coded = any(name.strip() == b"transfer-encoding" for name, _, _ in fields)
    faults = {
        "a header goes on in the next line": any(line.startswith((b" ", b"\t")) for line in lines),
        "it has both Content-Length and Transfer-Encoding": num_lengths and is_coded,
        "it has more than one Content-Length": num_lengths > 1,
        "HTTP/1.0 has no Transfer-Encoding": is_coded and request.endswith(b" http/1.0"),
        "the version is another": re.search(rb" http/[02-9]\.\d$", request),
    }
    for fault, is_there in faults.items():
        if is_there:
            raise h11.RemoteProtocolError(fault)


class PatientProtocol(H11Protocol):
    """Uvicorn's HTTP/1.1 with time-outs for headers and for reading responses, which it lacks."""

    conn: StrictConnection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.conn, self._is_refused = StrictConnection(h11.SERVER), False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._allow("headers", HEADERS_S)

    def connection_lost(self, exc: Exception | None) -> None:
        for what in tuple(self._timers):
            self._forget(what)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Between requests, data belongs to the next headers or to the last body."""
        if self._is_refused:
            return
        self._forget("drain")
        super().data_received(data)
        is_answered = self.cycle is None or self.cycle.response_complete
        is_between = self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        if self.transport.is_closing() or not is_answered or is_between:
            self._forget("headers")
        else:
            self._allow("headers", HEADERS_S)
        if is_answered and is_between and CLOSE in self.server_state.default_headers:
            self.shutdown()

    def shutdown(self) -> None:
        """End the connection with its next response, which says so, or after a while without a request.

        Closing an idle connection at once would lose a request that its client is just sending.
        """
        if self.cycle is None or self.cycle.response_complete:
            self._allow("drain", DRAIN_S, self.timeout_keep_alive_handler)
        elif self.cycle.response_started:
            self.cycle.keep_alive = False
        else:
            self.cycle.default_headers = self.server_state.default_headers

    def pause_writing(self) -> None:
        super().pause_writing()
        self._allow("reading", READING_S)

    def resume_writing(self) -> None:
        self._forget("reading")
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer malformed HTTP with JSON, like everything else, and close the connection."""
        status = HTTPStatus(self.conn.fault.error_status_hint)
        given = f"malformed HTTP: {str(self.conn.fault)[:200]}"
        refusal = RefusalError(status, given, expected="an HTTP/1.1 request", remedy="Use an HTTP client")
        body = json.dumps(error_tree(refusal)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), CLOSE]
        head = h11.Response(status_code=status, headers=headers, reason=status.phrase.encode())
        try:
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # a response is in progress already
            self.transport.close()
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        # Closing while the client sends would reset the connection before it reads this (RFC 9112, 9.6).
        self._is_refused = True
        self.transport.write_eof()
        self._allow("last", LINGER_S)

    def _allow(self, what: str, seconds: float, end: Callable[[], None] | None = None) -> None:
        """End the connection after so many seconds from the first call, unless it is forgotten before."""
        if what not in self._timers:
            self._timers[what] = self.loop.call_later(seconds, end or self.transport.abort)

    def _forget(self, what: str) -> None:
        if timer := self._timers.pop(what, None):
            timer.cancel()
