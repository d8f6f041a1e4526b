"""A part of what ``make faults`` does to files: a few kills, failures and damaged files of each kind."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from faults import files, runs
from faults.layer import Commands
from making.plain_pages import plain_pages

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="the fault layer is of Linux and needs cc"
)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with Commands(tmp_path_factory.mktemp("layer"), files.PLAIN) as commands:
        yield commands


def test_trainings_killed_at_calls_resume_to_the_same_files(commands: Commands, tmp_path: Path) -> None:
    assert sum(islice(files.kills(commands, tmp_path), 1)) > 0


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("train", [40, 260, 447]),
        ("read", [40]),
        ("predict", [20, 55]),
        ("evaluate", [62]),
        ("fix", [30]),
    ],
)
def test_a_call_that_fails_loses_nothing(
    commands: Commands, tmp_path: Path, name: str, calls: list[int]
) -> None:
    ended = [ended.code for _, ended in files.faults(commands, tmp_path, files.CASES[name], calls)]
    assert 2 in ended


def test_damaged_files_of_a_run_are_refused_or_change_nothing(tmp_path: Path) -> None:
    with plain_pages():
        assert runs.attack(tmp_path, range(0, 60, 25)) == []
