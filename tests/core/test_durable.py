"""Replacing files and folders as a whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest

from vitrail.core.durable import atomic_folder, atomic_write, settle_folder
from vitrail.core.errors import CheckpointError


def _full_disk(*_: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_error_inside_the_block_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "old").touch()
    with pytest.raises(ZeroDivisionError):
        _fail_inside(tmp_path / "a")
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "old"]


def _fail_inside(folder: Path) -> None:
    with atomic_folder(folder) as staged:
        (staged / "new").touch()
        raise ZeroDivisionError


def test_settling_a_folder_that_needs_nothing_changes_nothing(tmp_path: Path) -> None:
    settle_folder(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_an_atomic_write_replaces_text_and_keeps_it_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "deep" / "a.txt"
    atomic_write(path, "eins")
    atomic_write(path, b"zwei")
    monkeypatch.setattr(os, "fsync", _full_disk)
    with pytest.raises(CheckpointError, match="No space left"):
        atomic_write(path, "drei")
    assert path.read_text() == "zwei"
    assert [entry.name for entry in path.parent.iterdir()] == ["a.txt"]
