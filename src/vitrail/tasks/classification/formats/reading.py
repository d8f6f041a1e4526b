"""Read a file or a folder in whichever format it is recognised."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from vitrail.core.errors import DataError
from vitrail.data.formats import RawDataset
from vitrail.tasks.classification.formats import FORMATS, folders, tables


def read_path(path: Path) -> RawDataset:
    """Return what a path holds, with the name of its format.

    Raises:
        DataError: no format recognises it, or it cannot be used.
    """
    for data_format in sorted(FORMATS.values(), key=lambda entry: entry.rank):
        if data_format.recognises(path):
            raw = data_format.read(path)
            return raw if raw.format else replace(raw, format=data_format.name)
    if path.suffix.lower() == ".json" and (fault := _fault_of_json(path)):
        raise DataError(
            f"{path} cannot be read: {fault}",
            expected="a complete JSON file, text encoded as UTF-8",
            remedy="Write or download the file again",
        )
    raise DataError(
        f"{path} is of no known format",
        expected="one of: " + "; ".join(entry.layout for entry in FORMATS.values()),
        remedy="Give the folder or the table of a data set; single images are for 'vitrail predict'",
    )


def holds_classes(path: Path) -> bool:
    """Tell whether a path holds images with classes in any format; a cheap look.

    A folder of images alone, or of one folder of them, has no classes, though class folders are the format of
    last resort.
    """
    if path.is_file():
        return tables.has_columns(path)
    formats = (entry for entry in FORMATS.values() if entry is not folders.FORMAT)
    return any(entry.recognises(path) for entry in formats) or folders.has_classes(path)


def _fault_of_json(path: Path) -> str:
    """Return why a file is no JSON; nothing where it is."""
    try:
        json.loads(path.read_bytes().decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        return str(error)
    return ""
