"""Replacing files and folders as a whole."""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest

from vitrail.core import durable
from vitrail.core.durable import (
    atomic_folder,
    atomic_write,
    check_replaceable,
    find_folder,
    locked,
    read_folder,
    settle_folder,
    write_durably,
)
from vitrail.core.errors import CheckpointError


def _full_disk(*_: Any, **__: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_error_inside_the_block_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "old").touch()
    with pytest.raises(ZeroDivisionError):
        _fail_inside(tmp_path / "a")
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "old"]


def _fail_inside(folder: Path, *, is_gone: bool = False) -> None:
    with atomic_folder(folder) as staged:
        if is_gone:
            staged.rmdir()
        else:
            (staged / "new").touch()
        raise ZeroDivisionError


def test_an_error_inside_the_block_is_told_though_the_folder_is_gone(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        _fail_inside(tmp_path / "very" / "deep" / "a", is_gone=True)


def test_settling_a_folder_that_needs_nothing_changes_nothing(tmp_path: Path) -> None:
    settle_folder(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_an_atomic_write_replaces_text_and_keeps_it_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "very" / "deep" / "a.txt"
    atomic_write(path, "eins")
    atomic_write(path, b"zwei")
    monkeypatch.setattr(os, "fsync", _full_disk)
    with pytest.raises(CheckpointError, match="No space left"):
        atomic_write(path, "drei")
    assert path.read_text() == "zwei"
    assert [entry.name for entry in path.parent.iterdir()] == ["a.txt"]


def replace_folder(folder: Path, content: str) -> None:
    with atomic_folder(folder) as staged:
        (staged / "a").write_text(content)


DEAD = 2**22 + 1  # above the greatest number of a process


def test_the_next_writer_removes_what_killed_ones_left_and_nothing_of_a_running_one(tmp_path: Path) -> None:
    kept = {f".a.writing-{os.getppid()}", f".b.writing-{os.getppid()}", ".ab.writing-x", ".a.ready.txt"}
    for name in (*kept, f".a.writing-{DEAD}", f".b.writing-{DEAD}"):
        (tmp_path / name).touch()
    for name in (f".a.writing-{DEAD + 1}", ".a.former"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").touch()
    replace_folder(tmp_path / "a", "new")
    atomic_write(tmp_path / "b", "new")
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "a", "b"}


def test_what_an_earlier_write_of_this_process_left_is_removed_and_that_of_others_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "pid_exists", lambda process: True)
    kept = {".a.writing-1", f".a.writing-{os.getpid()}1"}
    for name in (*kept, f".a.writing-{os.getpid()}"):
        (tmp_path / name).mkdir()
    replace_folder(tmp_path / "a", "new")
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "a"}


def test_litter_that_cannot_be_removed_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".a.former").mkdir()
    monkeypatch.setattr(os, "rmdir", _full_disk)
    settle_folder(tmp_path / "a")
    assert (tmp_path / ".a.former").exists()


def test_names_are_on_the_disk_before_a_write_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synchronised: list[str] = []

    def fsync(descriptor: int) -> None:
        synchronised.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")

    monkeypatch.setattr(os, "fsync", fsync)
    atomic_write(tmp_path / "a", "new")
    assert synchronised == ["file", "folder"]
    replace_folder(tmp_path / "b", "new")
    assert synchronised[2:] == ["folder"] * 3  # the content, its name as ready, and its own name


def test_systems_that_open_no_folders_write_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "name", "nt")
    monkeypatch.setattr(os, "open", _full_disk)
    atomic_write(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "new"


@pytest.mark.parametrize(
    ("files", "is_replaceable"),
    [
        (None, True),
        ((), True),
        (("a.json", "b.bin"), True),
        (("a.json", "b.bin", "c"), True),
        (("a.json",), False),
        (("b.bin", "c"), False),
        (("c",), False),
    ],
)
def test_only_what_we_wrote_is_replaced(
    tmp_path: Path, files: tuple[str, ...] | None, is_replaceable: bool
) -> None:
    folder = tmp_path / "a"
    if files is not None:
        folder.mkdir()
        for name in files:
            (folder / name).touch()
    given = {"kind": "a picture", "markers": ("a.json", "*.bin"), "example": "b"}
    if is_replaceable:
        check_replaceable(folder, **given)
    else:
        with pytest.raises(CheckpointError, match=r"a exists and is not a picture.* such as b"):
            check_replaceable(folder, **given)


def test_a_file_is_no_folder_to_replace(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(CheckpointError, match="a exists and is not a picture"):
        check_replaceable(tmp_path / "a", "a picture", markers=("a.json",), example="b")


@pytest.mark.parametrize("left", [("a", ".a.ready"), (".a.ready",), (".a.former", ".a.ready")])
def test_a_reader_takes_the_ready_folder_and_moves_nothing(tmp_path: Path, left: tuple[str, ...]) -> None:
    for name in left:
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text(name)
    assert read_folder(tmp_path / "a", lambda place: (place / "a").read_text()) == ".a.ready"
    assert {path.name for path in tmp_path.iterdir()} == set(left)
    settle_folder(tmp_path / "a")
    assert find_folder(tmp_path / "a") == tmp_path / "a"
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["a", "a/a"]


def test_a_reader_reads_again_what_was_replaced_while_it_read(tmp_path: Path) -> None:
    folder, tries = tmp_path / "a", 0
    replace_folder(folder, "old")

    def read(place: Path) -> str:
        nonlocal tries
        tries += 1
        first = (place / "a").read_text()
        if tries == 1:
            replace_folder(folder, "new")
        if first != (place / "a").read_text():
            raise CheckpointError("damaged", expected="a", remedy="b")
        return first

    assert read_folder(folder, read) == "new"
    assert tries == 2


def test_a_reader_reads_again_once_another_folder_is_ready(tmp_path: Path) -> None:
    replace_folder(tmp_path / "a", "old")

    def read(place: Path) -> str:
        if not (tmp_path / ".a.ready").exists():
            (tmp_path / ".a.ready").mkdir()
            raise CheckpointError("damaged", expected="a", remedy="b")
        return place.name

    assert read_folder(tmp_path / "a", read) == ".a.ready"


def test_a_reader_of_a_missing_folder_says_what_is_missing(tmp_path: Path) -> None:
    def read(place: Path) -> None:
        raise CheckpointError("no model", expected="a", remedy="b")

    with pytest.raises(CheckpointError, match="no model"):
        read_folder(tmp_path / "a", read)


def test_a_reader_of_a_damaged_folder_reads_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_folder(tmp_path, lambda place: (place / "a").read_text())


def test_text_that_utf8_has_no_bytes_for_is_escaped(tmp_path: Path) -> None:
    write_durably(tmp_path / "a", "\udcff\u00e9")
    assert (tmp_path / "a").read_text() == r"\udcff" + "\u00e9"


HOLD = """
import sys
from pathlib import Path
from vitrail.core.durable import locked

with locked(Path(sys.argv[1]) / ".lock", waits=len(sys.argv) > 2):
    print("in", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_holds(folder: Path, *waits: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), *waits],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        yield process


def test_a_lock_names_its_owner_and_goes_with_it(tmp_path: Path) -> None:
    with another_holds(tmp_path) as process:
        with pytest.raises(CheckpointError, match=rf"in use by process {process.pid} on \S+ since 20\d\d-"):
            _enter(tmp_path)
        process.kill()
        process.wait()
        assert (tmp_path / ".lock").exists()
        _enter(tmp_path)  # takes over
    assert list(tmp_path.iterdir()) == []


def _enter(folder: Path) -> None:
    with locked(folder / ".lock"):
        assert [path.name for path in folder.iterdir()] == [".lock"]


def test_one_who_waits_gets_the_lock_when_its_owner_is_killed(tmp_path: Path) -> None:
    is_killed = threading.Event()

    def kill() -> None:
        is_killed.set()
        process.kill()

    with another_holds(tmp_path, "waits") as process:  # each as one who waited
        threading.Timer(0.05, kill).start()
        with locked(tmp_path / ".lock", waits=True):
            assert is_killed.is_set()
            assert process.wait() != 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_lock_that_its_owner_removed_while_it_was_waited_for_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_made_anew: bool
) -> None:
    path, lockf, calls = tmp_path / ".lock", fcntl.lockf, 0

    def remove_first(*given: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            path.unlink()
            if is_made_anew:
                path.touch()
        lockf(*given)

    monkeypatch.setattr(fcntl, "lockf", remove_first)
    with locked(path):
        assert f"process {os.getpid()} on " in path.read_text()
    assert calls == 2


def test_systems_without_locks_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    spec = importlib.util.spec_from_file_location("durable_elsewhere", durable.__file__)
    elsewhere = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(elsewhere)
    with elsewhere.locked(tmp_path / ".lock"):
        assert (tmp_path / ".lock").exists()
