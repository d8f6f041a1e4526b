"""Open captioned images: recognise the format, read it, carve out missing splits."""

from __future__ import annotations

import os
from pathlib import Path

from vitrail.core.errors import DataError
from vitrail.core.files import expand
from vitrail.data.formats import HUB_PREFIX, format_of, is_name_on_hub, layouts, locate
from vitrail.data.settings import DataSettings
from vitrail.data.splits import divide
from vitrail.tasks.captioning.dataset import CaptionDataset, RawCaptions
from vitrail.tasks.captioning.formats import CAPTION_FORMATS
from vitrail.tasks.captioning.formats.tables import find_unread, is_of_captions, read_by_name

# Beats pairs and detection, which some caption files resemble: text with tabs, COCO's JSON.
SURE, SURE_BY_NAME, LIKELY = 5, 4, 1


def open_captions(source: str | os.PathLike[str], *, settings: DataSettings | None = None) -> CaptionDataset:
    """Open images with captions.

    A source with nothing but a test split yields an empty training split.

    Args:
        source: a folder, a file (.json, .csv, .tsv, .jsonl, .parquet, .token), or a Hugging Face name
            (``hf:owner/name``).
        settings: fractions and seed of missing splits; nothing else is read here.
    """
    text = os.fspath(source)
    raw, format_name = locate(text, read=_read_path, read_by_name=read_by_name)
    divided = divide(raw.splits, raw.findings, settings or DataSettings(source=text))
    return CaptionDataset(source=text, format=format_name, **divided)


def recognises(source: str) -> int:
    """Return how surely a source is captioned images, by a cheap look; 0 if not."""
    if source.startswith(HUB_PREFIX):
        return SURE_BY_NAME * is_of_captions(source.removeprefix(HUB_PREFIX))
    path = expand(source)
    if source.strip() and format_of(CAPTION_FORMATS, path) is not None:
        return SURE
    if source.strip() and find_unread(path) is not None:
        return LIKELY  # opening it reports what is wrong with the table
    return SURE_BY_NAME * (is_name_on_hub(source, path) and is_of_captions(source))


def _read_path(path: Path) -> tuple[RawCaptions, str] | None:
    found = format_of(CAPTION_FORMATS, path)
    if found is not None:
        return found.read(path), found.name
    if not path.exists():
        return None
    if unread := find_unread(path):
        raise unread
    raise DataError(
        f"{path} holds no captioned images of a known format",
        expected=layouts(CAPTION_FORMATS),
        remedy="Give the folder of the data set, or its file of captions",
    )
