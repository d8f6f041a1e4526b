"""JSON lines: ``{"en": ..., "de": ...}``, ``{"source": ...}`` and its target, ``{"translation": {...}}``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.data.tables import json_objects
from vitrail.data.text.languages import Languages
from vitrail.data.text.lines import GZIP_SUFFIX, REPLACEMENT, read_content, read_lines, split_lines
from vitrail.tasks.translation.columns import (
    PairTable,
    are_pairs,
    flatten_translation,
    read_tables,
    tables_of,
)
from vitrail.tasks.translation.formats.contract import PairFormat, RawPairs

SUFFIXES = (".jsonl", ".ndjson")
EXPECTED = 'an object such as {"en": "...", "de": "..."} on each line'
PEEKED_BYTES = 1 << 20  # of the first file, to find its first row


def recognises(path: Path, wanted: Languages | None) -> bool:
    """Accept a file, or a folder with ``train.jsonl`` or the like, whose first row has the keys of pairs."""
    try:
        for files in tables_of(path, SUFFIXES).values():
            lines = split_lines(read_content(files[0], PEEKED_BYTES))
            first = json.loads(next((line for line in lines if line.strip()), ""))
            return isinstance(first, dict) and are_pairs(list(next(flatten_translation([first]))), wanted)
    except ValueError:  # no JSON, or a DataError
        return False
    return False


def read(path: Path, wanted: Languages | None) -> RawPairs:
    """Read one file, or those of the splits in a folder.

    Raises:
        DataError: a file is damaged, has no recognised keys or no row.
    """
    return read_tables(path, wanted, SUFFIXES, read_table)


def read_table(path: Path) -> PairTable:
    """Read one file; blank lines are skipped.

    Raises:
        DataError: the file cannot be read, or a line is no JSON object.
    """
    lines = read_lines(path)
    rows: list[Mapping[str, Any]] = []
    names = []
    label = path.name.removesuffix(GZIP_SUFFIX)
    for number, row in json_objects(lines, path, expected=EXPECTED):
        rows.append(_without_surrogates(row) if "\\ud" in lines[number - 1].lower() else row)
        names.append(f"{label}:{number}")
    flat = list(flatten_translation(rows))
    keys = dict.fromkeys(key for row in flat for key in row)
    return PairTable({key: [row.get(key) for row in flat] for key in keys}, names)


def _without_surrogates(value: Any) -> Any:
    r"""Replace halves of characters, which JSON can write (``\ud83d``) and UTF-8 cannot."""
    if isinstance(value, str):
        return "".join(REPLACEMENT if "\ud800" <= letter <= "\udfff" else letter for letter in value)
    if isinstance(value, dict):
        return {key: _without_surrogates(inner) for key, inner in value.items()}
    return value


FORMAT = PairFormat(
    name="JSON lines of pairs",
    layout='a .jsonl file with {"en": ..., "de": ...}, {"source": ..., "target": ...} or '
    '{"translation": {"en": ..., "de": ...}} on each line, or a folder with train.jsonl (test.jsonl)',
    recognises=recognises,
    read=read,
    rank=30,
    suffixes=SUFFIXES,
)
