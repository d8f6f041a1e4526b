"""The Hugging Face hub where there is no network: nothing waits for it, and what was downloaded is found."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import ModuleType
from urllib.parse import urlsplit
from urllib.request import getproxies

from vitrail.core.switch import SharedSwitch

HTTPS = 443


def without_waiting() -> AbstractContextManager[None]:
    """Have the hub's packages look into their caches alone inside the ``with`` block, if there is no network.

    They would ask six times otherwise, for half a minute or longer.
    """
    return nullcontext() if _is_reachable() else _CACHES_ALONE.on()


def _is_reachable() -> bool:
    """Tell whether the hub has an address here, or is asked through a proxy, which alone may know it."""
    from huggingface_hub import constants

    if getproxies():
        return True
    place = urlsplit(constants.ENDPOINT)
    try:
        return bool(socket.getaddrinfo(place.hostname, place.port or HTTPS))
    except OSError:
        return False


@contextmanager
def _caches_alone() -> Iterator[None]:
    from huggingface_hub import constants

    with ExitStack() as restored:
        _set_offline(constants, restored)
        if "datasets.config" in sys.modules:  # it took the constant over when it was imported
            _set_offline(sys.modules["datasets.config"], restored)
        yield


def _set_offline(settings: ModuleType, restored: ExitStack) -> None:
    restored.callback(setattr, settings, "HF_HUB_OFFLINE", settings.HF_HUB_OFFLINE)
    settings.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


_CACHES_ALONE = SharedSwitch(_caches_alone)
