"""The sentences of Multi30k, where they are on this machine."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest


def multi30k(shared_data: Path, name: str) -> list[str]:
    """Return the lines of a file such as ``train.en``; without it, the test is skipped."""
    path = shared_data / "multi30k" / f"{name}.gz"
    if not path.is_file():
        pytest.skip("no Multi30k in ../shared/data")
    return gzip.decompress(path.read_bytes()).decode().removesuffix("\n").split("\n")
