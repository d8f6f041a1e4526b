"""Read files that may be a stranger's: no pipe that never ends, no archive that unpacks without bound."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import stat
from pathlib import Path
from typing import Any

PACKED = ".gz"
MAX_UNPACKED = 1 << 28  # bytes that any packed file may hold
MAX_RATIO = 100  # of a larger one; texts reach 20, deflate's bound is 1,032


def expand(path: str | Path) -> Path:
    """Return a path with ``~`` replaced by the home of its user; one without a home stays as it is."""
    return Path(os.path.expanduser(path))


class NoFileError(OSError):
    """A path leads to a pipe, a device or a socket, which might keep its reader waiting for ever."""


def open_file(path: Path) -> io.BufferedReader:
    """Open a regular file; ``NoFileError`` for a pipe, a device or a socket, else what ``open`` raises."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise NoFileError(errno.EINVAL, "it is a pipe, a device or a socket", str(path))
    return path.open("rb")


def read_file(path: Path, size: int = -1) -> bytes:
    """Return the content of a regular file, or its first bytes; errors are those of ``open_file``."""
    with open_file(path) as file:
        return file.read(size)


def open_packed(path: Path) -> io.BufferedReader | gzip.GzipFile:
    """Open a regular file, decompressed if its name ends in ``.gz``; errors are those of ``open_file``."""
    file = open_file(path)
    if path.suffix.lower() != PACKED:
        return file
    file.close()
    return gzip.open(path)


def unpacked_limit(path: Path) -> int:
    """Return how many bytes a file may hold once it is decompressed."""
    size = path.stat().st_size
    return max(MAX_UNPACKED, MAX_RATIO * size) if path.suffix.lower() == PACKED else size


def parse_json(text: str | bytes) -> Any:
    """Return what ``json.loads`` does; brackets that are nested too deeply are a ``ValueError``, too."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None
