"""Trainings whose report page is a stand-in: drawing its plots takes most of a tiny training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vitrail.tasks.registry import TASKS


@contextmanager
def plain_pages() -> Iterator[None]:
    """Write a line instead of each report page, as long as the block lasts."""

    def write(self: object, path: Path, *_: object) -> None:
        path.write_text("a page")

    with pytest.MonkeyPatch.context() as patch:
        for task in TASKS.values():
            patch.setattr(type(task), "write_page", write)
        yield
