"""The hub's packages without a network."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from types import ModuleType

import pytest
from huggingface_hub import constants

from vitrail.core import hub
from vitrail.core.errors import CheckpointError
from vitrail.models.weights.files import hub_file


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a proxy nor the wish to be offline."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "getproxies", dict)


def has_no_address(*place: object) -> None:
    raise socket.gaierror(-2, "Name or service not known")


def test_without_an_address_caches_alone_are_asked_and_afterwards_the_network_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", has_no_address)
    settings = ModuleType("datasets.config")
    settings.HF_HUB_OFFLINE = False  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets.config", settings)
    with hub.without_waiting(), hub.without_waiting():
        assert constants.is_offline_mode()
        assert settings.HF_HUB_OFFLINE
    assert not constants.is_offline_mode()
    assert not settings.HF_HUB_OFFLINE


def test_a_hub_that_has_an_address_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.example:8443")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *place: asked.append(place) or ["an address"])
    with hub.without_waiting():
        assert not constants.is_offline_mode()
    assert asked == [("hub.example", 8443)]


def test_a_proxy_alone_may_know_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", has_no_address)
    monkeypatch.setattr(hub, "getproxies", lambda: {"https": "http://proxy.example"})
    with hub.without_waiting():
        assert not constants.is_offline_mode()


def test_of_several_files_the_address_is_asked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def count(*place: object) -> None:
        asked.append(place)
        has_no_address()

    monkeypatch.setattr(socket, "getaddrinfo", count)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match="is not in the local cache"):
        hub_file("nobody/nothing", ("model.safetensors", "pytorch_model.bin"))
    assert len(asked) == 1
