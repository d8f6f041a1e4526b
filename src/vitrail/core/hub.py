"""Offline use of the Hugging Face hub: no waiting for the network, and cached files are found."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from urllib.parse import urlsplit
from urllib.request import getproxies

from vitrail.core.switch import SharedSwitch

HTTPS = 443


def without_waiting() -> AbstractContextManager[None]:
    """Make the hub's packages use their caches alone inside the ``with`` block if there is no network.

    They would retry six times otherwise, for half a minute or longer.
    """
    return nullcontext() if _is_reachable() else _CACHES_ALONE.on()


def _is_reachable() -> bool:
    """Return whether the hub resolves, or is behind a proxy, which alone may resolve it."""
    from huggingface_hub import constants

    if getproxies():
        return True
    address = urlsplit(constants.ENDPOINT)
    try:
        return bool(socket.getaddrinfo(address.hostname, address.port or HTTPS))
    except OSError:
        return False


@contextmanager
def _caches_alone() -> Iterator[None]:
    from huggingface_hub import constants

    copy = sys.modules.get("datasets.config")  # it copied the constant when it was imported
    former = [(settings, settings.HF_HUB_OFFLINE) for settings in (constants, copy) if settings is not None]
    for settings, _ in former:
        settings.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for settings, value in former:
            settings.HF_HUB_OFFLINE = value  # type: ignore[attr-defined]


_CACHES_ALONE = SharedSwitch(_caches_alone)
