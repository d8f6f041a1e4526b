"""File formats of image classification data.

Each file of this folder defines ``FORMAT`` or ``FORMATS``, which registers it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vitrail.core.errors import DataError
from vitrail.core.files import parse_json, read_file
from vitrail.data.findings import number_of
from vitrail.data.formats import RawDataset, format_of, formats_in, reading_file

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".7z", ".rar")
FORMATS = formats_in("vitrail.tasks.classification.formats", "data format")


def read_path(path: Path, columns: tuple[str, str] = ("", "")) -> RawDataset:
    """Read a path in whichever format recognises it.

    Args:
        columns: of images and of labels in a table; found by their names if empty.

    Raises:
        DataError: no format recognises it, or it cannot be used.
    """
    found = format_of(FORMATS, path)
    if found is not None:
        if any(columns) and found.name != "table":
            raise DataError(
                f"a column was named for {path}, which is read as {found.name}",
                expected="a table: CSV, TSV, JSON lines or parquet",
                remedy="Leave out --image-column and --label-column, or name the table",
            )
        raw: RawDataset = found.read(path, columns) if any(columns) else found.read(path)
        return raw if raw.format else replace(raw, format=found.name)
    if path.suffix.lower() == ".json":
        with reading_file(path, expected="a complete JSON file, text encoded as UTF-8"):
            tree = parse_json(read_file(path).decode("utf-8-sig"))
        if isinstance(tree, list):
            raise DataError(
                f"{path} is one JSON list of {number_of(len(tree), 'item')}",
                expected="JSON lines, an object on each: samples of a table",
                remedy=f"Write it as such: jq -c '.[]' {path} > {path.with_suffix('.jsonl')}",
            )
    if path.name.lower().endswith(ARCHIVES):
        folder = path.with_name(path.name.split(".")[0])
        unpack = f"unzip {path} -d {folder}" if path.suffix.lower() == ".zip" else f"tar xf {path}"
        raise DataError(
            f"{path} is an archive",
            expected="the folder or the table inside it",
            remedy=f"Unpack it first, such as by '{unpack}', and name the folder",
        )
    raise DataError(
        f"{path} is of no known format",
        expected="a folder of images for each class, or a table (CSV, TSV, JSON lines, parquet) of "
        "images with classes or captions, of labelled texts or of sentence pairs",
        remedy="Give the folder or the table of a data set; single images are for 'vitrail predict'",
    )
