"""A server under load, slow clients, malformed requests and stops; the programs beside this run longer."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from faults.exchange import exchange, split_answers
from faults.mutating_http import run
from faults.soak import Soak
from faults.stopping import stop_under_load
from making.served_models import WAIT_S, running, small_classifier
from vitrail.serve import protocol


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running({"a": small_classifier()}) as (address, _):
        yield address


POST = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(
    ("sent", "status", "part"),
    [
        (POST + b"Content-Length: 4\r\n" + CHUNKED + b"\r\n0\r\n\r\n", 400, "both Content-Length and"),
        (POST + CHUNKED + b"Content-Length: 4\r\n\r\n0\r\n\r\n", 400, "both Content-Length and"),
        (POST.replace(b"1.1", b"1.0") + CHUNKED + b"\r\n0\r\n\r\n", 400, "HTTP/1.0 has no"),
        (POST + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n", 501, "multiple Transfer-Encoding"),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501, "Only Transfer-Encoding: chunked"),
        (POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400, "more than one Content-Length"),
        (POST + b"Content-Length: 3, 3\r\n\r\nabc", 400, "more than one Content-Length"),
        (POST + b"Content-Length: +3\r\n\r\nabc", 400, "bad Content-Length"),
        (POST + b"Content-Length: " + b"9" * 25 + b"\r\n\r\n", 400, "bad Content-Length"),
        (POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400, "goes on in the next line"),
        (GET + b"X: a\r\n\tb\r\n\r\n", 400, "goes on in the next line"),
        (GET + b"X : a\r\n\r\n", 400, "illegal header line"),
        (GET + b"X: a\rContent-Length: 3\r\n\r\n", 400, "illegal header line"),
        (GET + GET[-17:] + b"\r\n", 400, "multiple Host"),
        (POST + CHUNKED + b"\r\n-5\r\nabcde\r\n0\r\n\r\n", 400, "illegal chunk header"),
        (POST + CHUNKED + b"\r\n0x5\r\nabcde\r\n0\r\n\r\n", 400, "illegal chunk header"),
        (POST + CHUNKED + b"\r\n" + b"f" * 21 + b"\r\nabc", 400, "illegal chunk header"),
        (POST + CHUNKED + b"\r\n3\r\nabcdef\r\n0\r\n\r\n", 400, "malformed chunk footer"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "the version is another"),
        (GET + b"X: " + b"a" * 300_000, 431, "too long"),
        (b"GET /healthz\r\n\r\n", 400, "illegal request line"),
    ],
    ids=itertools.count(),
)
def test_ambiguous_and_malformed_requests_are_refused_and_the_connection_is_closed(
    url: str, sent: bytes, status: int, part: str
) -> None:
    following = GET + b"\r\n"

    answers = exchange(url, GET + b"\r\n" + sent + following)

    assert [each.status for each in answers] == [200, status]
    error = answers[-1].tree["error"]
    assert (error["status"], set(error)) == (status, {"status", "message", "given", "expected", "remedy"})
    assert part in error["message"]
    assert answers[-1].headers["connection"] == "close"


def test_a_refused_client_may_send_the_rest_so_that_no_reset_hides_why(url: str) -> None:
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port or 80), timeout=WAIT_S) as connection:
        connection.sendall(POST + CHUNKED + b"Content-Length: 9\r\n\r\n")
        received = b""
        while piece := connection.recv(65_536):
            received += piece
        for _ in range(20):
            connection.sendall(bytes(99_999))  # fails where the other side has closed, not only ended its own

    assert split_answers(received)[0].status == 400


@pytest.mark.parametrize("target", ["http://localhost/healthz", "HTTP://127.0.0.1:80/healthz?x=1"])
def test_absolute_targets_are_read_as_their_paths(url: str, target: str) -> None:
    (answer,) = exchange(url, f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())

    assert (answer.status, answer.tree) == (200, {"status": "ok"})


def test_mutated_requests_get_whole_answers_and_raise_nothing() -> None:
    count, problems, statuses = run(seconds=30, seed=0, most=300)

    assert not problems
    assert count == 300
    assert {200, 400, 404, 422} <= set(statuses)


def test_good_requests_are_answered_among_bombs_and_slow_clients(url: str) -> None:
    soak = Soak(url, most=400, seconds=30, bad=0.5, server=None)

    asyncio.run(soak.run(num_clients=8, num_slow=6))

    assert not soak.wrong
    assert {kind for kind, _ in soak.found} >= {each.kind for each in (*soak.good, *soak.others)}


def test_no_request_is_lost_when_a_server_under_load_stops() -> None:
    with running({"a": small_classifier()}, queue=512) as (url, server):
        found = asyncio.run(stop_under_load(url, lambda: setattr(server, "should_exit", True), 72))

    assert set(found) == {"answered 200"}
    assert found.total() > 72


def test_a_stopping_server_answers_idle_connections_once_more_and_then_closes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "DRAIN_S", 0.5)
    statuses: Counter[tuple[int, str | None]] = Counter()
    never = threading.Event()
    with (
        running({"a": small_classifier()}) as (url, server),
        httpx.Client(timeout=WAIT_S) as used,
        httpx.Client(timeout=WAIT_S) as idle,
    ):
        for client in (used, idle):
            answer = client.get(f"{url}/healthz")
            statuses[answer.status_code, answer.headers.get("connection")] += 1
        server.should_exit = True
        while not server.hosting.is_stopping:
            assert not never.wait(0.01)
        last = used.get(f"{url}/healthz")

    assert statuses == {(200, None): 2}
    assert (last.status_code, last.headers["connection"]) == (200, "close")
