"""The web server: built, run in the main or another thread, and stopped gracefully."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitrail.serve.app import create_app
from vitrail.serve.batching import BatchLimits
from vitrail.serve.hosting import HostedModel, Hosting, Metrics, Source
from vitrail.serve.settings import ServeSettings
from vitrail.tasks.serving import EngineChoice, RefusalError, error_tree

GRACE_S = 5.0  # beyond the time-outs of a request, until a stopping server closes open connections
KEEP_ALIVE_S = 20  # between two requests of a connection
# From the connection, or the first byte of a request, to the end of its headers; and for the rest of a body
# that was answered before its end.
HEADERS_S = 10.0
READING_S = 30.0  # maximum wait for a client to read on


class PatientProtocol(H11Protocol):
    """Uvicorn's HTTP/1.1 with time-outs for headers and for reading responses, which it lacks."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._allow("headers", HEADERS_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget("headers")
        self._forget("reading")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Between requests, data belongs to the next headers or to the last body."""
        super().data_received(data)
        is_answered = self.cycle is None or self.cycle.response_complete
        is_between = self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        if self.transport.is_closing() or not is_answered or is_between:
            self._forget("headers")
        else:
            self._allow("headers", HEADERS_S)

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

    def _allow(self, what: str, seconds: float) -> None:
        """End the connection after so many seconds from the first call, unless it is forgotten before."""
        if what not in self._timers:
            self._timers[what] = self.loop.call_later(seconds, self.transport.abort)

    def _forget(self, what: str) -> None:
        if timer := self._timers.pop(what, None):
            timer.cancel()


class QuietServer(uvicorn.Server):
    """Uvicorn without signal handling: it would raise signals again after stopping."""

    def __init__(self, config: uvicorn.Config, hosting: Hosting) -> None:
        super().__init__(config)
        self.hosting = hosting

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.hosting.is_stopping = True
        await super().shutdown(sockets)


@dataclass(frozen=True)
class BuiltServer:
    """A server with its models."""

    server: uvicorn.Server
    hosting: Hosting

    def run(self, listener: socket.socket) -> None:
        """Load the models and serve until told to exit, then finish accepted requests.

        Args:
            listener: bound to the address.
        """
        self.hosting.start()
        try:
            self.server.run(sockets=[listener])
        finally:
            self.hosting.close()


def build_server(
    sources: Mapping[str, Source],
    settings: ServeSettings,
    *,
    on_loaded: Callable[[HostedModel], None] = lambda model: None,
) -> BuiltServer:
    """Build a server without starting it."""
    metrics = Metrics()
    limits = BatchLimits(
        max_batch=settings.max_batch, max_wait_s=settings.max_wait_ms / 1000, capacity=settings.queue
    )
    choice = EngineChoice(settings.engine, settings.precision, settings.max_batch, settings.trust)
    hosting = Hosting(sources, limits, metrics, choice=choice, on_loaded=on_loaded)
    config = uvicorn.Config(
        create_app(hosting, settings, metrics),
        http=PatientProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(2 * settings.timeout_s + GRACE_S),
    )
    return BuiltServer(QuietServer(config, hosting), hosting)
