"""Read a file or a folder in whichever format it is recognised."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vitrail.data.formats import FORMATS
from vitrail.data.formats.contract import RawDataset
from vitrail.errors import DataError


def read_path(path: Path) -> RawDataset:
    """Return what a path holds, with the name of its format.

    Raises:
        DataError: no format recognises it, or it cannot be used.
    """
    for data_format in sorted(FORMATS.values(), key=lambda entry: entry.rank):
        if data_format.recognises(path):
            raw = data_format.read(path)
            return raw if raw.format else replace(raw, format=data_format.name)
    raise DataError(
        f"{path} is of no known format",
        expected="one of: " + "; ".join(entry.layout for entry in FORMATS.values()),
        remedy="Give the folder or the table of a data set; single images are for 'vitrail predict'",
    )
