"""Flickr8k and Flickr30k as published: ``Flickr8k.token.txt``, lists of images by split, and the images.

Source: Hodosh, Young and Hockenmaier 2013; Young et al. 2014.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from vitrail.core.errors import DataError
from vitrail.data.file_places import ImageFinder, existing, folders_in
from vitrail.data.findings import number_of
from vitrail.data.formats import Format
from vitrail.data.splits import SplitName
from vitrail.data.text.lines import read_content, read_lines
from vitrail.tasks.captioning.dataset import TEXTS, RawCaptions

LINE = re.compile(r"^(?P<image>[^#\t]+)#(?P<number>\d+)\t(?P<text>.*)$")
LISTS: dict[SplitName, str] = {"train": "trainImages", "validation": "devImages", "test": "testImages"}
ENDS = (".token.txt", ".token")
PEEK = 4096  # bytes read by a cheap look


def read(path: Path) -> RawCaptions:
    """Read the captions, and the split lists if present.

    Raises:
        DataError: a line has another form, or none of the images is there.
    """
    file = _file_of(path)
    assert file is not None, "only what is recognised is read"
    root = path if path.is_dir() else file.parent
    captions = _read_captions(file)
    raw = RawCaptions()
    by_split = _divide(file, captions, raw)
    folders = [*folders_in(root)[:20], *folders_in(file.parent)[:20], root, root.parent]
    nested = [inner for folder in folders for inner in folders_in(folder)[:20]]
    finder = ImageFinder(existing([*folders, *nested]))
    for split, texts in by_split.items():
        raw.add_files(split, texts, finder, root, where=file)
    return raw.finish([finder], root, where=file)


def _read_captions(file: Path) -> dict[str, list[Any]]:
    captions: dict[str, list[Any]] = {}
    for number, line in enumerate(read_lines(file), start=1):
        if not line.strip():
            continue
        match = LINE.match(line)
        if match is None:
            raise DataError(
                f"line {number} of {file} is {line[:60]!r}",
                expected="image.jpg#0, a tab, and the caption",
                remedy="Correct the line, or download the file again",
            )
        # Flickr8k's published file misspells the suffix of one image.
        captions.setdefault(match["image"].removesuffix(".1"), []).append(match["text"])
    return captions


def _divide(
    file: Path, captions: Mapping[str, list[Any]], raw: RawCaptions
) -> dict[SplitName, dict[str, list[Any]]]:
    """Divide the images by the lists beside the captions; without lists there is one split."""
    by_split: dict[SplitName, dict[str, list[Any]]] = {}
    for split, ending in LISTS.items():
        for found in sorted(file.parent.glob(f"*{ending}.txt"))[:1]:
            names = [line.strip() for line in read_lines(found) if line.strip()]
            by_split[split] = {name: captions.get(name, []) for name in names}
    if not by_split:
        return {"train": dict(captions)}
    listed = {name for names in by_split.values() for name in names}
    others = [name for name in captions if name not in listed]
    raw.findings += TEXTS.listed("unlisted-captions", others, images=number_of(len(others), "image"))
    return by_split


def _file_of(path: Path) -> Path | None:
    files = [path]
    if path.is_dir():
        inside = [path, *folders_in(path)[:20]]
        files = [file for each in inside for end in ENDS for file in sorted(each.glob(f"*{end}"))]
    return next(filter(_begins_with_captions, files), None)


def _begins_with_captions(file: Path) -> bool:
    if file.suffix.lower() not in (".txt", ".token"):
        return False
    with suppress(DataError):
        line = read_content(file, PEEK).decode("utf-8-sig", errors="replace").partition("\n")[0]
        return LINE.match(line.rstrip("\r")) is not None
    return False


FORMAT = Format(
    name="Flickr8k",
    layout="Flickr8k.token.txt with a line image.jpg#0, tab, caption for each, the lists "
    "Flickr_8k.trainImages.txt and the like beside it, and a folder of images",
    recognises=lambda path: _file_of(path) is not None,
    read=read,
    rank=6,
)
