"""Open whatever captioned images a user names: recognise the format, read it, carve out splits it lacks."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from vitrail.core.errors import DataError
from vitrail.data.formats import locate
from vitrail.data.settings import DataSettings
from vitrail.data.splits import Places, divide, stratified_split
from vitrail.tasks.captioning.dataset import CaptionDataset, CaptionSplit
from vitrail.tasks.captioning.formats import CAPTION_FORMATS
from vitrail.tasks.captioning.formats.contract import CaptionFormat, RawCaptions
from vitrail.tasks.captioning.unread import find_unread, unknown_columns


def open_captions(source: str | os.PathLike[str], *, settings: DataSettings | None = None) -> CaptionDataset:
    """Open images with captions.

    A source that holds nothing but a test split is a data set whose training split is empty.

    Args:
        source: a folder, a file (.json, .csv, .tsv, .jsonl, .parquet, .token), or a Hugging Face name
            (``hf:owner/name``).
        settings: the fractions and the seed of the splits that the source does not have; nothing else of
            them is read here.

    Raises:
        DataError: there is nothing of that name, its format is unknown, or it cannot be used.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for i in range(10):
    ...         Image.new("RGB", (7, 5)).save(f"{folder}/{i}.png")
    ...     rows = "image,caption\\n" + "".join(f"{i}.png,{i} dogs\\n{i}.png,dogs\\n" for i in range(10))
    ...     _ = Path(folder, "captions.csv").write_text(rows)
    ...     dataset = open_captions(folder)
    >>> dataset.format, len(dataset.train), len(dataset.validation), len(dataset.test)
    ('table of captions', 7, 1, 2)
    """
    text = os.fspath(source)
    raw, format_name = _read(text)
    return _divide(text, raw, format_name, settings or DataSettings(source=text))


def caption_format_of(path: Path) -> CaptionFormat | None:
    """Return the format in which a path holds images with captions, or None; a cheap look."""
    ranked = sorted(CAPTION_FORMATS.values(), key=lambda entry: entry.rank)
    return next((entry for entry in ranked if entry.recognises(path)), None)


def _read(text: str) -> tuple[RawCaptions, str]:
    from vitrail.tasks.captioning.formats.hub import read_by_name

    return locate(text, read=_read_path, read_by_name=read_by_name)


def _read_path(path: Path) -> tuple[RawCaptions, str] | None:
    found = caption_format_of(path)
    if found is not None:
        return found.read(path), found.name
    if not path.exists():
        return None
    if unread := find_unread(path):
        raise unknown_columns(*unread)
    raise DataError(
        f"{path} holds no captioned images of a known format",
        expected="one of: " + "; ".join(entry.layout for entry in CAPTION_FORMATS.values()),
        remedy="Give the folder of the data set, or its file of captions",
    )


def _divide(source: str, raw: RawCaptions, format_name: str, settings: DataSettings) -> CaptionDataset:
    divided = divide(raw.splits, raw.findings, settings, empty=CaptionSplit([], [], []), hold_out=_draw)
    return CaptionDataset(
        source=source,
        format=format_name,
        **vars(divided),
        facts=raw.facts,
    )


def _draw(train: CaptionSplit, fraction: float, seed: int, max_held: int | None) -> tuple[Places, Places]:
    """Hold out whole images with all their captions."""
    alike = np.zeros(len(train), dtype=np.int64)
    return stratified_split(alike, fraction, seed=seed, max_held=max_held)
