"""Tables with an image and a caption column: CSV, TSV, JSON lines, parquet, saved sets, the hub.

One caption per row, a list of captions, or several columns; rows of the same image are joined. Examples:
Kaggle's editions of Flickr8k and Flickr30k (captions.txt, results.csv) and the hub's ``metadata.jsonl``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.core.errors import DataError
from vitrail.core.files import expand, parse_json
from vitrail.data.file_places import ImageFinder, existing, folders_in, relative_name
from vitrail.data.findings import number_of
from vitrail.data.formats import Format
from vitrail.data.hub_sets import HubSet, cached_features, load_named, load_saved, saved_features
from vitrail.data.splits import SplitName, split_of
from vitrail.data.tables import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    TABLE_SUFFIXES,
    Table,
    column_names,
    content_of,
    find_column,
    join_parts,
    read_table,
    simplify,
    table_stem,
    tables_in,
)
from vitrail.tasks.captioning.dataset import TEXTS, RawCaptions

CAPTION_COLUMNS = (
    "caption", "captions", "text", "texts", "sentence", "sentences", "sentences_raw", "comment", "comments",
    "description", "descriptions", "answer", "alt_text", "title", "raw",
)  # fmt: skip
NUMBERED = re.compile(r"^(caption|sentence|text|comment)s?_?\d+$")
MORE_IMAGES = ("image_name", "image_id", "img_name", "image_filename")
KNOWN_IMAGES = (*IMAGE_COLUMNS, *MORE_IMAGES)
SUFFIXES = (*TABLE_SUFFIXES, ".txt")
NAMED = re.compile(r"(^|[^a-z])captions?([^a-z]|$)", re.I)
TELLING = re.compile(r"caption|flickr(8|30)k|nocaps|image[-_]text", re.I)


def read(path: Path) -> RawCaptions:
    """Read one table, or those of the splits in a folder.

    Raises:
        DataError: a table is damaged, has no recognised columns, or names no image that exists.
    """
    tables = _tables_of(path)
    root = path if path.is_dir() else path.parent
    raw = RawCaptions()
    finders = []
    unread = []
    taken: set[SplitName] = set()
    for stem, files in tables.items():
        split = split_of(stem) or ("train" if len(tables) == 1 else None)
        if split is None or split in taken:
            unread.append(stem)
            continue
        table = join_parts([read_table(file, joins_rest=True) for file in files])
        raw.findings += table.findings
        finders.append(ImageFinder(_image_folders(files[0].parent, root)))
        found = _rows_of(table, split, finders[-1], root, raw)
        if both := found.keys() & taken:
            raise DataError(
                f"{files[0]} has rows of the split {min(both)}, and another table is that split",
                expected="a table for each split, or one table with a column that divides its rows",
                remedy="Move one of them away",
            )
        taken |= found.keys()
        for part, rows in found.items():
            images, names, captions = zip(*rows.values(), strict=True)
            raw.add(part, images, captions, names)
    raw.findings += TEXTS.listed("unread-tables", unread)
    return raw.finish(finders if any(finder.found for finder in finders) else [], root, where=path)


def _rows_of(
    table: Table, split: SplitName, finder: ImageFinder, root: Path, raw: RawCaptions
) -> dict[SplitName, dict[Any, tuple[Any, str, list[Any]]]]:
    """Return image, name and captions of each image; a split column divides a table of unknown split."""
    file, columns = table.path, table.columns
    image_column = find_column(list(columns), KNOWN_IMAGES, "image", file)
    texts = _captions_of(columns, _demand_captions(list(columns), file))
    by_split = table.rows_by_split() if split == "train" else {}
    split_of_row = {row: part for part, rows in by_split.items() for row in rows}
    gathered: dict[SplitName, dict[Any, tuple[Any, str, list[Any]]]] = {}
    absent: dict[str, None] = {}
    for row, (value, captions) in enumerate(zip(columns[image_column], texts, strict=True)):
        key, image, name = _image_of(value, finder, root, table.names[row])
        if image is None:
            absent[name] = None
            continue
        part = split_of_row.get(row, split)
        gathered.setdefault(part, {}).setdefault(key, (image, name, []))[2].extend(captions)
    raw.without_image += absent
    if absent and not gathered:
        raise DataError(
            f"{file} names {number_of(len(absent), 'image')} and none of them is there, such as "
            f"{next(iter(absent))}",
            expected=f"image files in {root} or in a folder inside it, or their bytes",
            remedy=f"Put the images there, or correct the column {image_column!r}",
        )
    return gathered


def _image_of(cell: Any, finder: ImageFinder, root: Path, called: str) -> tuple[Any, Any, str]:
    value = content_of(cell)
    if isinstance(value, bytes):
        path_in_cell = str(cell.get("path") or "") if isinstance(cell, Mapping) else ""
        name = f"{called} ({Path(path_in_cell).name})" if path_in_cell else called
        return hashlib.blake2b(value, digest_size=16).digest(), value, name
    if not isinstance(value, str) or not value.strip():
        return None, None, f"{called} (no image)"
    text = value.strip().split("#")[0]  # Flickr8k's own form, image.jpg#0
    path = expand(text)
    if path.is_absolute():
        return path, path if path.is_file() else None, text
    file = finder.find(text)
    if file is None and not path.suffix:
        file = finder.find_stem(text)
    return file, file, text if file is None else relative_name(file, root)


def _image_folders(folder: Path, root: Path) -> list[Path]:
    """Return the possible image folders, beside the table and below, likeliest first."""
    named = ("images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr30k_images", "data")
    beside = [folder, *(folder / name for name in named), root, *(root / name for name in named)]
    inner = folders_in(folder)[:20]
    return existing([*beside, *inner, *(each / each.name for each in inner), folder.parent])


def _tables_of(path: Path) -> dict[str, list[Path]]:
    """Return the caption tables of a path by shared name, without part numbers."""
    if path.is_file():
        stem = table_stem(path.name, SUFFIXES) or path.stem
        return {stem: [path]} if _holds_captions(path) else {}
    for folder in (path, path / "data"):
        tables = {
            stem: [*filter(_holds_captions, files)] for stem, files in tables_in(folder, SUFFIXES).items()
        }
        if any(tables.values()):
            return {stem: files for stem, files in tables.items() if files}
    inner = folders_in(path) if path.is_dir() else []
    files = {split: folder / "metadata.jsonl" for folder in inner if (split := split_of(folder.name))}
    return {split: [file] for split, file in files.items() if file.is_file() and _holds_captions(file)}


def _holds_captions(file: Path) -> bool:
    return are_captions(column_names(file))


def are_captions(columns: Iterable[str]) -> bool:
    """Return whether column names suggest captions; labels and bounding boxes take precedence."""
    lower = {simplify(name) for name in columns}
    has_images = bool(lower.intersection(KNOWN_IMAGES))
    return (
        has_images and bool(_caption_columns(lower)) and not lower.intersection((*LABEL_COLUMNS, "objects"))
    )


def _captions_of(columns: Mapping[str, Sequence[Any]], names: Sequence[str]) -> list[list[Any]]:
    """Return the captions of each row, of one column or several."""
    rows = zip(*(columns[name] for name in names), strict=True)
    return [[text for cell in cells for text in _texts(cell)] for cells in rows]


def _demand_captions(columns: Sequence[str], table: Path | str) -> list[str]:
    """Return the caption columns: the likeliest one, or all numbered ones; an error lists the columns."""
    by_name = {simplify(name): name for name in reversed(columns)}
    found = _caption_columns(by_name)
    if not found:
        find_column(list(columns), CAPTION_COLUMNS, "caption", table)  # raises
    return [by_name[name] for name in found]


def _caption_columns(lower: Iterable[str]) -> list[str]:
    names = list(lower)
    plain = [name for name in CAPTION_COLUMNS if name in names]
    return plain[:1] or sorted(
        (name for name in names if NUMBERED.match(name)),
        key=lambda name: int("".join(filter(str.isdigit, name))),
    )


def _texts(cell: Any) -> list[Any]:
    """Return the captions of a table cell: a text, a list, a JSON list, or objects with a field ``raw``."""
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        try:
            listed = parse_json(cell)
        except ValueError:
            return [cell]
        return _texts(listed) if isinstance(listed, list) else [cell]
    if isinstance(cell, Mapping):
        return _texts(next((cell[key] for key in ("raw", "caption", "text") if key in cell), ""))
    if isinstance(cell, list | tuple):
        return [text for part in cell for text in _texts(part)]
    return [cell]


def find_unread(path: Path) -> DataError | None:
    """Return the error of a table named like captions, in a folder or the file itself, of unknown columns.

    None if there is none; only names and first rows are read.
    """
    try:
        files = [path] if path.is_file() else sorted(path.glob("*"))
    except OSError:
        return None
    for file in files:
        if NAMED.search(file.stem) and file.suffix.lower() in SUFFIXES:
            columns = column_names(file)
            if len(columns) > 1 and not are_captions(columns):
                return DataError(
                    f"{file} has the columns {', '.join(map(repr, columns))}",
                    expected="a column image (or file_name, path, ...) and a column caption (or captions, "
                    "text, ...)",
                    remedy="Rename the columns, or name them in the first line: image,caption",
                )
    return None


def read_by_name(name: str) -> RawCaptions:
    """Read a data set by its hub name ``owner/name``; the local cache needs no network."""
    return _convert(load_named(name))


def is_of_captions(name: str) -> bool:
    """Guess offline whether a hub data set holds captions, by its name or the cache."""
    return TELLING.search(name) is not None or any(map(are_captions, cached_features(name)))


def _convert(loaded: HubSet) -> RawCaptions:
    loaded.demand()
    column = loaded.find_images(KNOWN_IMAGES)
    written = _demand_captions([key for key in loaded.features if key != column], loaded.name)
    raw = RawCaptions(list(loaded.findings))
    for split, rows in loaded.splits.items():
        texts = _captions_of({key: rows[key][:] for key in written}, written)
        raw.add(split, loaded.images(split, column), texts, loaded.row_names(split))
    return raw.finish([], Path(), where=loaded.name)


FORMATS = (
    Format(
        name="table of captions",
        layout="a CSV, TSV, JSON lines or parquet file with a column of images and one of captions, or a "
        "folder with such a file (captions.txt beside Images/), or with one for each split",
        recognises=lambda path: bool(_tables_of(path)),
        read=read,
        rank=30,
    ),
    Format(
        name="Hugging Face captions",
        layout="a folder that save_to_disk of the package datasets wrote, with columns of images and "
        "captions",
        recognises=lambda path: any(map(are_captions, saved_features(path))),
        read=lambda path: _convert(load_saved(path)),
        rank=5,
    ),
)
