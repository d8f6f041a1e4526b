"""The frame of every page."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from vitrail.core.errors import CheckpointError
from vitrail.report.page import write_page


def test_a_page_that_cannot_be_written_leaves_the_former_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "page.html"
    write_page(path, title="first", body="<p>one</p>")
    former = path.read_bytes()
    monkeypatch.setattr(os, "fsync", full_disk)

    with pytest.raises(CheckpointError, match=r"page\.html could not be written: No space left"):
        write_page(path, title="second", body="<p>two</p>")

    assert path.read_bytes() == former
    assert list(tmp_path.iterdir()) == [path]
