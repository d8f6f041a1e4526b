"""The web server, run in the main or another thread, and stopped gracefully."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import Iterator
from functools import partial

import uvicorn

from vitrail.serve.app import create_app
from vitrail.serve.hosting import Hosting
from vitrail.serve.protocol import CLOSE, PatientProtocol

GRACE_S = 5.0  # beyond the time-outs of a request, until a stopping server closes open connections
KEEP_ALIVE_S = 20  # between two requests of a connection


class ModelServer(uvicorn.Server):
    """Uvicorn with models; without its signal handling, which would raise signals again after stopping."""

    def __init__(self, hosting: Hosting) -> None:
        self.hosting = hosting
        config = uvicorn.Config(
            create_app(hosting, hosting.settings),
            http=PatientProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=math.ceil(2 * hosting.settings.timeout_s + GRACE_S),
        )
        super().__init__(config)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Load the models and serve until told to exit, then finish accepted requests."""
        self.hosting.start()
        try:
            super().run(sockets)
        finally:
            self.hosting.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.hosting.is_stopping = True
        self.server_state.default_headers = [*self.server_state.default_headers, CLOSE]
        # The kernel has accepted these; closing the listener would reset them.
        waiting: list[socket.socket] = []
        for listener in sockets or ():
            with contextlib.suppress(OSError):
                while True:
                    waiting.append(listener.accept()[0])
        loop = asyncio.get_running_loop()
        make = partial(PatientProtocol, self.config, self.server_state, self.lifespan.state)
        taken = [loop.create_task(loop.connect_accepted_socket(make, each)) for each in waiting]
        await super().shutdown(sockets)
        await asyncio.gather(*taken, return_exceptions=True)
