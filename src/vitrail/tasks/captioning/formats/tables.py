"""Tables with a column of images and one of captions: CSV, TSV, JSON lines and parquet.

A caption of each row, several in a list, or several columns; rows of the same image are joined. Kaggle's
editions of Flickr8k and Flickr30k (captions.txt, results.csv) and the hub's ``metadata.jsonl`` are such.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.core.errors import DataError
from vitrail.data.file_places import ImageFinder, existing, folders_in, relative_name, split_of
from vitrail.data.findings import Finding, number_of
from vitrail.data.splits import SplitName, rows_by_split
from vitrail.data.tables import (
    TABLE_SUFFIXES,
    TextTable,
    column_names,
    find_column,
    load_parquet,
    read_text_table,
)
from vitrail.tasks.captioning.assembly import CaptionCollector
from vitrail.tasks.captioning.columns import KNOWN_IMAGES, Columns, are_captions, caption_columns, captions_of
from vitrail.tasks.captioning.dataset import CaptionSplit
from vitrail.tasks.captioning.formats.contract import CaptionFormat, RawCaptions

SUFFIXES = (*TABLE_SUFFIXES, ".txt")
SHARD = re.compile(r"-\d{5}-of-\d{5}$")  # the hub's naming of the parts of a table


def recognises(path: Path) -> bool:
    """Accept a table whose columns are images and captions, or a folder that has such tables."""
    try:
        return bool(_tables_of(path))
    except OSError:
        return False


def read(path: Path) -> RawCaptions:
    """Read one table, or those of the splits in a folder.

    Raises:
        DataError: a table is damaged, has no recognised columns, or names no image that exists.
    """
    tables = _tables_of(path)
    root = path if path.is_dir() else path.parent
    collector = CaptionCollector()
    splits: dict[SplitName, CaptionSplit] = {}
    finders = []
    unread = []
    for stem, files in tables.items():
        split = split_of(stem) or ("train" if len(tables) == 1 else None)
        if split is None or split in splits:
            unread.append(stem)
            continue
        parts = [_read_file(file) for file in files]
        collector.findings += [finding for part in parts for finding in part.findings]
        columns = _join([part.columns for part in parts])
        finder = ImageFinder(_image_folders(files[0].parent, root))
        finders.append(finder)
        found = _to_splits(files[0], columns, split, finder, root, collector)
        if both := found.keys() & splits.keys():
            raise DataError(
                f"{files[0]} has rows of the split {min(both)}, and another table is that split",
                expected="a table for each split, or one table with a column that divides its rows",
                remedy="Move one of them away",
            )
        splits |= found
    if unread:
        collector.findings.append(
            Finding(
                "warning",
                "unread-tables",
                f"{number_of(len(unread), 'table')} of no known split, which training does not use",
                "Name them train, validation or test",
                tuple(unread),
            )
        )
    if any(finder.found for finder in finders):
        collector.unlisted(finders, root)
    return collector.result(splits, where=str(path))


def _to_splits(
    file: Path,
    columns: Columns,
    split: SplitName,
    finder: ImageFinder,
    root: Path,
    collector: CaptionCollector,
) -> dict[SplitName, CaptionSplit]:
    """Join the rows of each image; a column of splits divides a table that is of no other split."""
    image_column = find_column(list(columns), KNOWN_IMAGES, "image", file)
    texts = captions_of(columns, caption_columns(list(columns), file))
    by_split = rows_by_split(columns, lambda row: f"row {row} of {file}") if split == "train" else {}
    split_of_row = {row: part for part, rows in by_split.items() for row in rows}
    gathered: dict[SplitName, dict[Any, tuple[Any, str, list[Any]]]] = {}
    absent: dict[str, None] = {}
    for row, (value, captions) in enumerate(zip(columns[image_column], texts, strict=True)):
        key, image, name = _image_of(value, finder, root, f"{file.name}#{row}")
        if image is None:
            absent[name] = None
            continue
        part = split_of_row.get(row, split)
        gathered.setdefault(part, {}).setdefault(key, (image, name, []))[2].extend(captions)
    collector.without_image += absent
    if absent and not gathered:
        raise DataError(
            f"{file} names {number_of(len(absent), 'image')} and none of them is there, such as "
            f"{next(iter(absent))}",
            expected=f"image files in {root} or in a folder inside it, or their bytes",
            remedy=f"Put the images there, or correct the column {image_column!r}",
        )
    return {
        part: collector.split(
            [image for image, _, _ in rows.values()],
            [captions for _, _, captions in rows.values()],
            [name for _, name, _ in rows.values()],
        )
        for part, rows in gathered.items()
    }


def _image_of(value: Any, finder: ImageFinder, root: Path, called: str) -> tuple[Any, Any, str]:
    """Return what tells an image from others, the image or None, and its name."""
    if isinstance(value, Mapping):  # Hugging Face: bytes, or the path of a file
        told = str(value.get("path") or "")
        value = value.get("bytes") if value.get("bytes") is not None else value.get("path")
        if isinstance(value, bytes):
            name = f"{called} ({Path(told).name})" if told else called
            return hashlib.blake2b(value, digest_size=16).digest(), value, name
    if isinstance(value, bytes | bytearray):
        return hashlib.blake2b(bytes(value), digest_size=16).digest(), bytes(value), called
    if not isinstance(value, str) or not value.strip():
        return None, None, f"{called} (no image)"
    text = value.strip().split("#")[0]  # Flickr8k's own form, image.jpg#0
    path = Path(text).expanduser()
    if path.is_absolute():
        return path, path if path.is_file() else None, text
    file = finder.find(text)
    if file is None and not path.suffix:
        file = finder.find_stem(text)
    return file, file, text if file is None else relative_name(file, root)


def _image_folders(folder: Path, root: Path) -> list[Path]:
    """Return where images may be: beside the table, and in the folders there, the likeliest first."""
    named = ("images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr30k_images", "data")
    places = [folder, *(folder / name for name in named), root, *(root / name for name in named)]
    inner = folders_in(folder)[:20]
    return existing([*places, *inner, *(place / place.name for place in inner), folder.parent])


def _tables_of(path: Path) -> dict[str, list[Path]]:
    """Return the tables of captions of a path by the name that they share, without the number of the part."""
    if path.is_file():
        return {_stem(path): [path]} if _is_table(path) else {}
    for place in (path, path / "data"):
        if not place.is_dir():
            continue
        files = [
            file
            for file in sorted(place.iterdir())
            if file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and file.is_file()
        ]
        found: dict[str, list[Path]] = {}
        for file in files:
            if _is_table(file):
                found.setdefault(_stem(file), []).append(file)
        if found:
            return found
    inner = {
        split: folder / "metadata.jsonl" for folder in _folders(path) if (split := split_of(folder.name))
    }
    return {split: [file] for split, file in inner.items() if file.is_file() and _is_table(file)}


def _folders(path: Path) -> list[Path]:
    return folders_in(path) if path.is_dir() else []


def _stem(file: Path) -> str:
    return SHARD.sub("", file.stem)


def _is_table(file: Path) -> bool:
    try:
        return are_captions(column_names(file))
    except (OSError, ValueError, ImportError, csv.Error, RecursionError):
        return False


def _read_file(file: Path) -> TextTable:
    if file.suffix.lower() == ".parquet":
        table, _ = load_parquet(file)
        return TextTable({name: table.column(name).to_pylist() for name in table.column_names})
    return read_text_table(file, joins_rest=True)


def _join(parts: Sequence[Mapping[str, list[Any]]]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [] for part in parts for name in part}
    for part in parts:
        length = len(next(iter(part.values()), []))
        for name, values in columns.items():
            values.extend(part.get(name, [None] * length))
    return columns


FORMAT = CaptionFormat(
    name="table of captions",
    layout="a CSV, TSV, JSON lines or parquet file with a column of images and one of captions, or a folder "
    "with such a file (captions.txt beside Images/), or with one for each split",
    recognises=recognises,
    read=read,
    rank=30,
)
