"""Start a server, load its models, and stop it gracefully."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vitrail.core.errors import ConfigError, import_optional
from vitrail.engines.export.package import is_package
from vitrail.engines.loading import find_model_folder
from vitrail.models.weights.published import is_published
from vitrail.serve.settings import ServeSettings, is_loopback
from vitrail.train.interrupt import handled_signals

if TYPE_CHECKING:
    import uvicorn

NEEDED = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")
BACKLOG = 2048


class Listening(NamedTuple):
    """The server accepts requests."""

    url: str
    is_open: bool
    """Whether other machines can reach it without a token."""


class ModelLoaded(NamedTuple):
    """A model is ready."""

    name: str
    kind: str
    seconds: float


class ModelFailed(NamedTuple):
    """A model failed to load; the others are unaffected."""

    name: str
    error: str


class Stopping(NamedTuple):
    """The server accepts no more requests, and finishes those in progress."""


ServeEvent = Listening | ModelLoaded | ModelFailed | Stopping


def serve(
    sources: Iterable[str | Path],
    settings: ServeSettings | None = None,
    *,
    on_event: Callable[[ServeEvent], None] = lambda event: None,
) -> None:
    """Serve models until SIGINT or SIGTERM, then finish accepted requests.

    Args:
        sources: run directories, folders of saved or exported models, or published models; named as in
            ``flowers=runs/a``, by default by the last part of the path.
        on_event: called when the server listens, when a model is ready or has failed, and when it stops; from
            several threads.

    Raises:
        ConfigError: a package is missing, two models have one name, or the address is unavailable.
        CheckpointError: a source holds no model, or none of several could be loaded.
    """
    settings = settings or ServeSettings()
    named = name_sources(sources)
    for package in NEEDED:
        import_optional(package, "the server needs", package.replace("_", "-"), "serve")
    for source in named.values():
        if not is_published(source) and not is_package(source):
            find_model_folder(Path(source))  # a misspelt path stops the command, not only its model
    from vitrail.serve.hosting import HostedModel, Hosting
    from vitrail.serve.server import ModelServer

    listener = bind(settings.host, settings.port)

    def on_loaded(model: HostedModel) -> None:
        if model.error is None:
            on_event(ModelLoaded(model.name, model.facts["task"], model.seconds))
            return
        on_event(ModelFailed(model.name, str(model.error)))
        if all(each.state == "failed" for each in server.hosting.models.values()):
            server.should_exit = True

    server = ModelServer(Hosting(named, settings, on_loaded=on_loaded))
    with listener, stop_on_signals(server, lambda: on_event(Stopping())):
        is_local = is_loopback(listener.getsockname()[0])
        on_event(Listening(address_of(listener), not is_local and settings.token is None))
        server.run([listener])
    errors = [model.error for model in server.hosting.models.values() if model.error is not None]
    if len(errors) == len(named):
        raise errors[0]


def name_sources(sources: Iterable[str | Path]) -> dict[str, str]:
    """Return each model's source by name: that before ``=``, or the last part of the path.

    Raises:
        ConfigError: there is none, or two have the same name.

    Example:
        >>> name_sources(["runs/flowers", "cells=runs/a"])
        {'flowers': 'runs/flowers', 'cells': 'runs/a'}
    """
    named: dict[str, str] = {}
    for source in map(str, sources):
        given, equals, place = source.partition("=")
        is_named = bool(equals) and re.fullmatch(r"[\w.-]+", given) and not Path(source).exists()
        if not is_named:
            place = source
            given = re.sub(
                r"[^\w.-]+", "-", Path(source).resolve().name if not is_published(source) else source
            )
        if given in named:
            raise ConfigError(
                f"two models would be called {given}: {named[given]} and {place}",
                expected="a name of its own for each",
                remedy=f"Name one of them, such as {given}-2={place}",
            )
        named[given] = place
    if not named:
        raise ConfigError(
            "no model was named", expected="one or more run directories", remedy="Name one, such as runs/NAME"
        )
    return named


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address, before anything is loaded.

    Raises:
        ConfigError: the address is unknown, taken or not allowed.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With protocol 0, asyncio leaves Nagle's algorithm on, which delays responses by 40 ms.
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"the server cannot listen at {host}, port {port}: {reason}",
            expected="an address of this machine and a free port",
            remedy=f"Choose another one, such as --port {port + 1 if port < 65535 else 8000}, or 0 for any",
        ) from None
    return listener


def address_of(listener: socket.socket) -> str:
    """Return the URL to open in a browser."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def stop_on_signals(
    server: uvicorn.Server, tell: Callable[[], None]
) -> AbstractContextManager[Callable[[], None]]:
    """Stop a server gracefully at SIGINT or SIGTERM, and immediately at the second."""

    def stop() -> None:
        if server.should_exit:
            server.force_exit = True
            return
        server.should_exit = True
        tell()

    return handled_signals(stop)
