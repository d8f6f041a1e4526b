"""Servers over real sockets: slow and many clients, failing loads, and stopping without losing anything."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from making.served_models import WAIT_S, Gate, picture, running, small_classifier
from making.small_translators import small_translator
from vitrail.cli import main
from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.models.checkpoint import LoadedModel
from vitrail.serve import protocol, serve
from vitrail.serve.app import MAX_EXPLANATIONS
from vitrail.serve.hosting import Hosting
from vitrail.serve.running import Listening, ModelFailed, ModelLoaded, Stopping, bind, name_sources
from vitrail.serve.server import ModelServer
from vitrail.serve.settings import (
    MOST_TIMEOUT_S,
    MOST_UPLOAD_MB,
    MOST_WAIT_MS,
    TOKEN_VARIABLE,
    ServeSettings,
    find_token,
)


def hold(hosting: Hosting) -> Gate:
    """Hold what the model ``a`` computes until it is let go."""
    served: Any = hosting.models["a"].served
    served.answer = gate = Gate(served.answer)
    return gate


def ask(url: str, model: str = "a", path: str = "/predict", **changes: Any) -> httpx.Response:
    image = {"content": picture(), "headers": {"content-type": "image/png"}}
    return httpx.post(f"{url}{path}", params={"model": model}, timeout=WAIT_S, **{**image, **changes})


def connect(url: str) -> socket.socket:
    place = urlsplit(url)
    assert place.port is not None
    return socket.create_connection((place.hostname, place.port), timeout=WAIT_S)


def read_to_end(connection: socket.socket) -> bytes:
    received = b""
    try:
        while chunk := connection.recv(65_536):
            received += chunk
    except ConnectionResetError:
        pass
    return received


def save_classifier(folder: Path) -> Path:
    loaded = small_classifier()
    loaded.save(folder / "model")
    return folder


def test_many_at_once_are_all_answered_or_told_to_come_again_while_another_model_goes_on() -> None:
    sources = {"a": small_classifier(), "b": small_translator()}
    with running(sources, queue=3, max_batch=2) as (url, server), ThreadPoolExecutor(12) as pool:
        gate = hold(server.hosting)
        first = pool.submit(ask, url)
        assert gate.has_begun.wait(WAIT_S)
        others = [pool.submit(ask, url) for _ in range(9)]
        while sum(each.done() for each in others) < 6:  # three wait, the others are refused
            assert not gate.may_go.wait(0.01)
        translated = httpx.post(f"{url}/predict", json={"model": "b", "text": "A dog."}, timeout=WAIT_S)
        gate.may_go.set()
        answers = [each.result() for each in (first, *others)]

    assert translated.status_code == 200
    refused = [each for each in answers if each.status_code != 200]
    assert {each.status_code for each in refused} == {429}
    assert all(int(each.headers["retry-after"]) >= 1 for each in refused)
    assert len(answers) - len(refused) == 4
    assert len({str(each.json()["results"]) for each in answers if each.status_code == 200}) == 1


def test_an_answer_that_takes_too_long_is_given_up_and_not_computed_later() -> None:
    with running({"a": small_classifier()}, timeout_s=1.5) as (url, server), ThreadPoolExecutor(2) as pool:
        gate = hold(server.hosting)
        computed = pool.submit(ask, url)
        assert gate.has_begun.wait(WAIT_S)
        waiting = pool.submit(ask, url)
        answers = [computed.result(), waiting.result()]
        gate.has_begun.clear()
        gate.may_go.set()
        worker = server.hosting.models["a"].worker
        assert worker is not None
        worker.close(WAIT_S)

    assert [each.status_code for each in answers] == [504, 504]
    assert "longer than 1.5 s" in answers[0].json()["error"]["message"]
    assert not gate.has_begun.is_set()


def test_a_client_that_hangs_up_is_counted_and_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with running({"a": small_classifier()}) as (url, server):
        gate = hold(server.hosting)
        with connect(url) as quitting:
            head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
            quitting.sendall(head + b"Content-Length: %d\r\n\r\n" % len(picture()) + picture())
            assert gate.has_begun.wait(WAIT_S)
        counted = 'vitrail_requests_total{endpoint="/predict",model="a",status="499"} 1.0'
        while counted not in httpx.get(f"{url}/metrics", timeout=WAIT_S).text:
            pass
        gate.may_go.set()
    gc.collect()

    assert not [each for each in caplog.records if each.levelname == "ERROR"]


def test_an_upload_that_comes_too_slowly_is_given_up() -> None:
    with running({"a": small_classifier()}, timeout_s=0.4) as (url, _):
        with connect(url) as slow:
            slow.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\n1")
            answer = read_to_end(slow)
        with connect(url) as quitting:  # one that hangs up in the middle leaves nothing behind
            quitting.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\n1")
        assert httpx.get(f"{url}/healthz", timeout=WAIT_S).status_code == 200

    assert answer.startswith(b"HTTP/1.1 408")
    assert b'"remedy"' in answer


def test_slow_uploads_to_be_explained_keep_no_other_from_it() -> None:
    with running({"a": small_classifier()}) as (url, _), ExitStack() as open_ones:
        for _ in range(MAX_EXPLANATIONS):
            slow = open_ones.enter_context(connect(url))
            slow.sendall(b"POST /explain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\n1")
        answer = ask(url, path="/explain")

    assert answer.status_code == 200, answer.text


def test_more_explanations_than_are_allowed_at_once_are_refused() -> None:
    with (
        running({"a": small_classifier()}) as (url, server),
        ThreadPoolExecutor(MAX_EXPLANATIONS + 2) as pool,
    ):
        gate = hold(server.hosting)
        first = pool.submit(ask, url)
        assert gate.has_begun.wait(WAIT_S)
        others = [pool.submit(ask, url, path="/explain") for _ in range(MAX_EXPLANATIONS + 1)]
        refused = next(as_completed(others))
        gate.may_go.set()
        answers = sorted(each.result().status_code for each in (first, *others))

    assert refused.result().status_code == 429
    assert "8 explanations" in refused.result().json()["error"]["message"]
    assert answers == [200] * (MAX_EXPLANATIONS + 1) + [429]


def test_headers_that_come_too_slowly_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEADERS_S", 0.3)
    with running({"a": small_classifier()}) as (url, _), connect(url) as slow, connect(url) as silent:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert slow.recv(65_536).startswith(b"HTTP/1.1 200")
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHos")  # of a second request on a connection that is kept

        assert b"HTTP/1.1" not in read_to_end(slow)
        assert read_to_end(silent) == b""


def test_what_is_no_http_is_refused_in_json() -> None:
    with running({"a": small_classifier()}) as (url, _), connect(url) as other:
        other.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        answer = read_to_end(other)

    assert answer.startswith(b"HTTP/1.1 400")
    assert b'"given"' in answer


def test_stopping_answers_what_was_accepted() -> None:
    with running({"a": small_classifier()}) as (url, server), ThreadPoolExecutor(3) as pool:
        gate = hold(server.hosting)
        accepted = [pool.submit(ask, url)]
        assert gate.has_begun.wait(WAIT_S)
        accepted += [pool.submit(ask, url) for _ in range(2)]
        worker = server.hosting.models["a"].worker
        assert worker is not None
        while len(worker) < 2:
            assert not gate.may_go.wait(0.01)
        server.should_exit = True
        while not server.hosting.is_stopping:
            assert not gate.may_go.wait(0.01)
        gate.may_go.set()
        answers = [each.result() for each in accepted]

    assert [each.status_code for each in answers] == [200, 200, 200]
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/healthz")


def test_a_model_that_cannot_be_loaded_leaves_the_others_alone(tmp_path: Path) -> None:
    damaged = save_classifier(tmp_path / "damaged")
    (damaged / "model" / "model.safetensors").write_bytes(b"?")

    with running({"a": small_classifier(), "b": damaged}) as (url, _):
        ready, asked = httpx.get(f"{url}/readyz", timeout=WAIT_S), ask(url)
        refused = ask(url, "b")
        page = httpx.get(url, params={"model": "b"}, timeout=WAIT_S).text

    assert ready.status_code == 503
    assert ready.json()["models"] == {"a": "ready", "b": "failed"}
    assert asked.status_code == 200
    assert refused.status_code == 503
    assert "could not be loaded" in refused.json()["error"]["message"]
    assert "could not be loaded" in page


def test_models_are_loaded_side_by_side_and_asked_for_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    from vitrail.serve import hosting as module

    may_load = threading.Event()
    opened = module.open_servable

    def open_slowly(source: Any, choice: Any) -> Any:
        if not isinstance(source, LoadedModel):
            assert may_load.wait(WAIT_S)
            source = small_classifier()
        return opened(source, choice)

    monkeypatch.setattr(module, "open_servable", open_slowly)
    loaded = threading.Event()
    hosting = Hosting(
        {"large": "large", "small": small_classifier()},
        ServeSettings(),
        on_loaded=lambda model: loaded.set(),
    )
    hosting.start()

    assert loaded.wait(WAIT_S)
    assert (hosting.models["large"].state, hosting.models["small"].state) == ("loading", "ready")
    with pytest.raises(Exception, match="still being loaded"):
        hosting.find("large").ready()
    may_load.set()
    hosting.wait()
    assert hosting.is_ready
    hosting.close()


def test_serve_listens_loads_answers_and_stops_at_a_signal(tmp_path: Path) -> None:
    events: list[Any] = []
    answers: list[httpx.Response] = []

    def ask_and_stop() -> None:
        listening = next(each for each in events if isinstance(each, Listening))
        answers.append(ask(listening.url, "flowers"))
        os.kill(os.getpid(), signal.SIGTERM)

    def on_event(event: Any) -> None:
        events.append(event)
        if isinstance(event, ModelLoaded):
            threading.Thread(target=ask_and_stop).start()

    former = signal.getsignal(signal.SIGTERM)
    serve([f"flowers={save_classifier(tmp_path / 'run')}"], ServeSettings(port=0), on_event=on_event)

    assert [type(each) for each in events] == [Listening, ModelLoaded, Stopping]
    assert events[0].is_open is False
    assert events[1][:2] == ("flowers", "classification")
    assert [each.status_code for each in answers] == [200]
    assert signal.getsignal(signal.SIGTERM) is former


def test_serve_fails_where_no_model_can_be_loaded(tmp_path: Path) -> None:
    damaged = save_classifier(tmp_path / "run")
    (damaged / "model" / "model.json").write_text("{")
    events: list[Any] = []

    with pytest.raises(CheckpointError):
        serve([damaged], ServeSettings(port=0), on_event=events.append)

    assert [type(each) for each in events] == [Listening, ModelFailed]


def test_a_misspelt_run_and_a_port_that_is_taken_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no .*nowhere"):
        serve([tmp_path / "nowhere"], ServeSettings(port=0))
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port}: .*--port {port + 1}"):
            bind("127.0.0.1", port)


@pytest.mark.anyio
async def test_answers_are_sent_without_waiting_for_acknowledgements() -> None:
    accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = writer.get_extra_info("socket")
        accepted.set_result(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    with bind("127.0.0.1", 0) as listener:
        async with await asyncio.start_server(meet, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            assert await accepted == 1
            writer.close()


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)

    with pytest.raises(ConfigError, match=re.escape("pip install 'vitrail[serve]'")):
        serve([tmp_path])


def test_models_are_called_by_their_folder_or_as_they_are_named(tmp_path: Path) -> None:
    (tmp_path / "odd=name").mkdir()

    assert name_sources(["runs/a b/", "x.1=runs/c", tmp_path / "odd=name"]) == {
        "a-b": "runs/a b/",
        "x.1": "runs/c",
        "odd-name": str(tmp_path / "odd=name"),
    }
    with pytest.raises(ConfigError, match="two models would be called c"):
        name_sources(["runs/c", "old/c"])
    with pytest.raises(ConfigError, match="no model"):
        name_sources([])


def test_tokens_come_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert find_token() is None
    monkeypatch.setenv(TOKEN_VARIABLE, "from-the-environment")
    (tmp_path / "token").write_text("from-a-file\n")
    (tmp_path / "short").write_text("short\n")

    found, of_file = find_token(), find_token(tmp_path / "token")

    assert found is not None
    assert found.get_secret_value() == "from-the-environment"
    assert of_file is not None
    assert of_file.get_secret_value() == "from-a-file"
    with pytest.raises(ConfigError, match="at least 8"):
        find_token(tmp_path / "short")
    with pytest.raises(ConfigError, match="cannot be read"):
        find_token(tmp_path / "nothing")


@pytest.mark.parametrize("name", ["max_wait_ms", "timeout_s", "max_upload_mb"])
def test_amounts_without_an_end_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for value in (float("inf"), float("nan"), 1e300):
        with pytest.raises(ConfigError, match=name):
            ServeSettings.from_tree({name: value})
    option = "--" + name.removesuffix("_s").replace("_", "-")

    assert main(["serve", "nowhere", option, "inf"]) == 2

    error = capsys.readouterr().err
    assert option in error
    assert "finite number" in " ".join(error.split())


@pytest.mark.parametrize(
    "host", ["http://models.example.org", "models.example.org:80", "a:80", "*", "a b", "null"]
)
def test_hosts_to_allow_are_names_or_addresses(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ServeSettings(allow_hosts=("::1", "10.0.0.1", "A.b")).allow_hosts == ("::1", "10.0.0.1", "a.b")

    assert main(["serve", "nowhere", "--allow-host", f"a.b,{host}"]) == 2

    error = " ".join(capsys.readouterr().err.split())
    assert "without scheme and port" in error
    assert repr(host) in error


def test_the_largest_amounts_can_be_used() -> None:
    settings = ServeSettings(timeout_s=MOST_TIMEOUT_S, max_upload_mb=MOST_UPLOAD_MB, max_wait_ms=MOST_WAIT_MS)

    assert settings.max_upload_bytes == 10**12
    assert ModelServer(Hosting({}, settings)).config.timeout_graceful_shutdown == 2 * 86_400 + 5
