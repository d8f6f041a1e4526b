"""A server under load, slow clients, malformed requests and stops; the programs beside this run longer."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import httpx
import pytest

from faults.stopping import stop_under_load
from making.served_models import WAIT_S, running, small_classifier
from vitrail.serve import protocol


def test_no_request_is_lost_when_a_server_under_load_stops() -> None:
    with running({"a": small_classifier()}, queue=512) as (url, built):
        found = asyncio.run(stop_under_load(url, lambda: setattr(built.server, "should_exit", True), 72))

    assert set(found) == {"answered 200"}
    assert found.total() > 72


def test_a_stopping_server_answers_idle_connections_once_more_and_then_closes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "DRAIN_S", 0.5)
    statuses: Counter[tuple[int, str | None]] = Counter()
    never = threading.Event()
    with (
        running({"a": small_classifier()}) as (url, built),
        httpx.Client(timeout=WAIT_S) as used,
        httpx.Client(timeout=WAIT_S) as idle,
    ):
        for client in (used, idle):
            answer = client.get(f"{url}/healthz")
            statuses[answer.status_code, answer.headers.get("connection")] += 1
        built.server.should_exit = True
        while not built.hosting.is_stopping:
            assert not never.wait(0.01)
        last = used.get(f"{url}/healthz")

    assert statuses == {(200, None): 2}
    assert (last.status_code, last.headers["connection"]) == (200, "close")
