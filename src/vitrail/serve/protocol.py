"""HTTP/1.1 on one connection: uvicorn's, with time-outs for slow clients, and errors as JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitrail.tasks.serving import RefusalError, error_tree

# From the connection, or the first byte of a request, to the end of its headers; and for the rest of a body
# that was answered before its end.
HEADERS_S = 10.0
READING_S = 30.0  # maximum wait for a client to read on
DRAIN_S = 2.0  # how long a stopping server waits for the next request of an idle connection
CLOSE = (b"connection", b"close")


class PatientProtocol(H11Protocol):
    """Uvicorn's HTTP/1.1 with time-outs for headers and for reading responses, which it lacks."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._allow("headers", HEADERS_S)

    def connection_lost(self, exc: Exception | None) -> None:
        for what in tuple(self._timers):
            self._forget(what)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Between requests, data belongs to the next headers or to the last body."""
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
        """Answer malformed HTTP with JSON, like everything else."""
        refusal = RefusalError(
            400, f"malformed HTTP: {msg}", expected="an HTTP/1.1 request", remedy="Use an HTTP client"
        )
        body = json.dumps(error_tree(refusal)).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        try:
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # a response is in progress already
            pass
        self.transport.close()

    def _allow(self, what: str, seconds: float, end: Callable[[], None] | None = None) -> None:
        """End the connection after so many seconds from the first call, unless it is forgotten before."""
        if what not in self._timers:
            self._timers[what] = self.loop.call_later(seconds, end or self.transport.abort)

    def _forget(self, what: str) -> None:
        if timer := self._timers.pop(what, None):
            timer.cancel()
