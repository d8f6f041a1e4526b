"""Models on disk: round trips, atomic replacement, and every kind of damage."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from vitrail.core.errors import CheckpointError
from vitrail.core.sealed import read_sealed, sealed
from vitrail.models.checkpoint import FORMAT_VERSION, LoadedModel, load_model, state_tensors

OPERATIONS = ("fsync", "rename", "rmdir", "mkdir")


class Tied(nn.Module):
    """Two layers that share their weight, and a buffer of each kind."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.last.weight = self.first.weight
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)


@pytest.fixture(autouse=True)
def tied(monkeypatch: pytest.MonkeyPatch) -> None:
    build_as(monkeypatch, lambda settings: Tied(settings["dim"]))


def build_as(monkeypatch: pytest.MonkeyPatch, build: Callable[[dict[str, Any]], nn.Module]) -> None:
    """Build models of this function when they are loaded, not those of the library."""
    config = "vitrail.models.config_from_settings"
    monkeypatch.setattr(config, lambda settings: SimpleNamespace(build=lambda: build(settings)))


def save(folder: Path, dim: int = 3, fill: float | None = None) -> Tied:
    model = Tied(dim)
    if fill is not None:
        nn.init.constant_(model.first.weight, fill)
    LoadedModel(
        model,
        model_settings={"name": "tied", "dim": dim},
        preprocessing={"mean": [0.5]},
        class_names=["cr\u00e8me", "noir"],
        about={"data": "none"},
    ).save(folder)
    return model


def first_weight(folder: Path) -> float:
    return load_model(folder).model.first.weight[0, 0].item()


def refuse(folder: Path, *words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_model(folder)
    assert caught.value.expected
    assert caught.value.remedy
    for word in words:
        assert word in str(caught.value)


def test_further_files_come_back_with_the_model_and_are_verified(tmp_path: Path) -> None:
    model = Tied(3)
    settings = {"model_settings": {"dim": 3}, "preprocessing": {}, "class_names": [], "about": {}}
    LoadedModel(model, **settings, files={"source.model": b"eins\x00"}).save(tmp_path / "model")  # type: ignore[arg-type]
    assert load_model(tmp_path / "model").files == {"source.model": b"eins\x00"}

    (tmp_path / "model" / "source.model").write_bytes(b"ein")
    refuse(tmp_path / "model", "source.model", "damaged")


def test_a_saved_model_comes_back_with_all_that_was_said_of_it(tmp_path: Path) -> None:
    model = save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert not loaded.model.training
    assert loaded.model_settings == {"name": "tied", "dim": 3}
    assert loaded.preprocessing == {"mean": [0.5]}
    assert loaded.class_names == ["cr\u00e8me", "noir"]
    assert loaded.about == {"data": "none"}
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor)
    assert set(state_tensors(loaded.model)) == {"first.weight", "first.bias", "last.bias", "count"}
    assert loaded.model.first.weight is loaded.model.last.weight, "stored once, and still tied"
    text = (tmp_path / "model" / "model.json").read_text(encoding="utf-8")
    assert '"parameters": 15' in text
    assert "cr\u00e8me" in text, "a person can read it"


def test_a_missing_folder_or_file_is_refused(tmp_path: Path) -> None:
    refuse(tmp_path / "nowhere", "model.json")
    save(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    refuse(tmp_path / "model", "model.safetensors")


def _flip_a_bit(content: bytes) -> bytes:
    return content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("model.safetensors", lambda content: b"", ["damaged", "cut off"]),
        ("model.safetensors", lambda content: content[:7], ["damaged", "cut off"]),
        ("model.safetensors", lambda content: content[:-1], ["damaged", "cut off"]),
        ("model.safetensors", _flip_a_bit, ["damaged"]),
        ("model.json", lambda content: b"", ["model.json"]),
        ("model.json", lambda content: b"{", ["model.json"]),
        ("model.json", lambda content: b"[]", ["model.json"]),
        ("model.json", lambda content: b"\x80", ["model.json"]),
    ],
)
def test_a_damaged_file_is_refused(
    tmp_path: Path, name: str, damage: Callable[[bytes], bytes], words: list[str]
) -> None:
    save(tmp_path / "model")
    path = tmp_path / "model" / name
    path.write_bytes(damage(path.read_bytes()))
    refuse(tmp_path / "model", *words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": FORMAT_VERSION + 1}, ["version", "that wrote it"]),
        ({"version": "new"}, ["version"]),
        ({"format": "other"}, ["other"]),
        ({"model": {"dim": 5}}, ["another model", "first.weight is (3, 3), not (5, 5)"]),
        ({"weights": {}}, ["weights.sha256 is missing"]),
        ({"class_names": "ab"}, ["class_names must be a list"]),
        ({"preprocessing": []}, ["preprocessing must be a dictionary"]),
        ({"files": None}, ["files must be a dictionary"]),
    ],
)
def test_a_description_that_does_not_fit_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: list[str]
) -> None:
    save(tmp_path / "model")
    path = tmp_path / "model" / "model.json"
    path.write_text(sealed(read_sealed(path) | changes))
    refuse(tmp_path / "model", *words)


def test_a_changed_description_is_noticed_unless_its_digest_is_removed(tmp_path: Path) -> None:
    save(tmp_path / "model")
    path = tmp_path / "model" / "model.json"
    changed = json.loads(path.read_text()) | {"class_names": ["noir", "cr\u00e8me"]}
    path.write_text(json.dumps(changed))
    refuse(tmp_path / "model", "was damaged or changed", "remove its line", "digest")

    del changed["digest"]  # as in folders of older versions
    path.write_text(json.dumps(changed))
    assert load_model(tmp_path / "model").class_names == ["noir", "cr\u00e8me"]


def test_weights_of_another_architecture_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "model")
    build_as(monkeypatch, lambda settings: nn.BatchNorm1d(3))
    with pytest.raises(CheckpointError, match=r"first\.bias is not of this model.* and \d+ more"):
        load_model(tmp_path / "model")


def _full_disk(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_the_former_model_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "model", fill=1.0)
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", _full_disk)
        with pytest.raises(CheckpointError, match=r"No space left on device.*Free space"):
            save(tmp_path / "model", fill=2.0)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert first_weight(tmp_path / "model") == 1.0


def _write_beyond_limit(folder: Path) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        save(folder, dim=11, fill=2.0)
    except CheckpointError:
        os._exit(0)
    os._exit(1)


def test_a_write_that_the_system_cuts_off_leaves_the_former_model(tmp_path: Path) -> None:
    save(tmp_path / "model", fill=1.0)
    assert _run_apart(_write_beyond_limit, tmp_path / "model") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert first_weight(tmp_path / "model") == 1.0


def _save_and_die(folder: Path, operation: int) -> None:
    """Kill this process just before its n-th change to the file system."""
    done = 0
    for name in OPERATIONS:
        original = getattr(os, name)

        def counted(*arguments: Any, original: Any = original, **options: Any) -> Any:
            nonlocal done
            done += 1
            if done == operation:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **options)

        setattr(os, name, counted)
    save(folder, fill=2.0)
    os._exit(0)


def test_a_kill_at_any_moment_leaves_the_former_or_the_new_model_whole(tmp_path: Path) -> None:
    seen = []
    for operation in range(1, 100):
        folder = tmp_path / str(operation) / "model"
        save(folder, fill=1.0)
        status = _run_apart(_save_and_die, folder, operation)
        value = first_weight(folder)
        seen.append(value)
        save(folder, fill=3.0)
        assert [path.name for path in folder.parent.iterdir() if "ready" in path.name] == []
        assert first_weight(folder) == 3.0
        if status == 0:
            break
        assert status == -signal.SIGKILL
    assert len(seen) > 6
    assert set(seen) == {1.0, 2.0}
    assert seen == sorted(seen)


def _run_apart(target: Any, *arguments: Any) -> int:
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode
