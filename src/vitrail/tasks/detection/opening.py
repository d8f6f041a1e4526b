"""Open any detection data set: recognise the format, read it, split off missing splits."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from vitrail.core.errors import DataError
from vitrail.core.files import expand
from vitrail.data.file_places import first_entries, folders_in, is_image_name, start_of
from vitrail.data.findings import number_of
from vitrail.data.formats import HUB_PREFIX, format_by_suffix, format_of, is_name_on_hub, layouts, locate
from vitrail.data.settings import DataSettings
from vitrail.data.splits import divide
from vitrail.tasks.detection.dataset import BoxDataset, RawBoxes
from vitrail.tasks.detection.findings import finding, listed
from vitrail.tasks.detection.formats import BOX_FORMATS
from vitrail.tasks.detection.formats.objects import is_of_boxes, read_by_name
from vitrail.tasks.detection.settings import BoxDataSettings
from vitrail.tasks.detection.shapes import draw_shapes, is_shapes

SURE = 3  # outranks captions and parallel text, where a source may be either
OTHER_TOOLS = {
    "LabelMe": (".json", rb'"shapes"\s*:\s*\['),
    "CreateML": (".json", rb'"coordinates"\s*:\s*\{'),
    "VIA": (".json", rb'"shape_attributes"'),
    "Label Studio": (".json", rb'"(rectangle|polygon)labels"'),
    "CVAT": (".xml", rb"<annotations>"),
    "a table": (".csv", rb"\bxmin\b.*\bymax\b|^[^,\n]+\.\w+(,\d+){4},[A-Za-z]"),
}
"""What writes boxes in a format that is not read: the suffix of a file, and what stands at its beginning."""


def open_boxes(source: str | os.PathLike[str], *, settings: BoxDataSettings | None = None) -> BoxDataset:
    """Open a data set for detection.

    A source with only a validation or a test split becomes a data set with an empty training split.

    Args:
        source: a folder, a file (COCO's .json, YOLO's .yaml, .parquet), a Hugging Face name
            (``hf:owner/name``), or ``shapes``, which are drawn by the program.
        settings: the fractions and the seed of missing splits; its ``source`` and sizes are not read here.
    """
    text = os.fspath(source)
    if is_shapes(text):
        raw, format_name = draw_shapes(), "built-in"
    else:
        raw, format_name = locate(text, read=_read_path, read_by_name=read_by_name)
    if not any(split.num_boxes for split in raw.splits.values()):
        raise _no_boxes(text, raw)
    divided = divide(
        raw.splits,
        raw.findings,
        settings or DataSettings(source=text),
        strata=lambda split: rarest_classes(split.labels, len(raw.class_names)),
        drawn=", by rarest class",
    )
    named: dict[str, Any] = {"class_names": raw.class_names, "class_ids": raw.class_ids, "facts": raw.facts}
    return BoxDataset(source=text, format=format_name, **named, **divided)


def recognises(source: str) -> int:
    """Tell by a cheap look whether a source is a detection data set: 0 if not, else how surely."""
    if is_shapes(source):
        return SURE
    if source.startswith(HUB_PREFIX):
        return SURE * is_of_boxes(source.removeprefix(HUB_PREFIX))
    path = expand(source)
    if source.strip() and (format_of(BOX_FORMATS, path) is not None or _other_tool(path)):
        return SURE
    return SURE * (is_name_on_hub(source, path) and is_of_boxes(source))


def rarest_classes(labels: Sequence[Int64[np.ndarray, " _"]], num_classes: int) -> Int64[np.ndarray, " n"]:
    """Return the rarest class of each image; images without boxes are a class of their own.

    Args:
        labels: class of each box of each image.
    """
    counts = np.bincount(
        np.concatenate([np.zeros(0, dtype=np.int64), *map(np.unique, labels)]), minlength=num_classes
    )
    rarest = [int(part[np.argmin(counts[part])]) if len(part) else num_classes for part in labels]
    return np.array(rarest, dtype=np.int64)


def _read_path(path: Path) -> tuple[RawBoxes, str] | None:
    found = format_of(BOX_FORMATS, path) or format_by_suffix(BOX_FORMATS, path)
    if found is not None:
        raw = found.read(path)
        others = [each.name for each in BOX_FORMATS.values() if each is not found and each.recognises(path)]
        if others:
            several = finding("several-formats", formats=" and ".join([found.name, *others]), read=found.name)
            raw = replace(raw, findings=(*raw.findings, several))
        return raw, found.name
    if tool := _other_tool(path):
        raise DataError(
            f"{tool[1]} holds boxes as {tool[0]} has them, a format that is not read",
            expected=layouts(BOX_FORMATS),
            remedy="Export them from there as COCO, Pascal VOC or YOLO, or convert them",
        )
    if path.exists():
        raise _unknown(path)
    return None


def _other_tool(path: Path) -> tuple[str, Path] | None:
    """Return what wrote the boxes in a folder or a file, and the file; None if it is not known."""
    folders = [path, *folders_in(path)[:20]] if path.is_dir() else []
    names = [entry.path for folder in folders for entry in first_entries(folder)] or [str(path)]
    for tool, (suffix, mark) in OTHER_TOOLS.items():
        for file in sorted(name for name in names if name.lower().endswith(suffix))[:20]:
            if re.search(mark, start_of(Path(file)), re.M):
                return tool, Path(file)
    return None


def _no_boxes(source: str, raw: RawBoxes) -> DataError:
    number, unknown = sum(map(len, raw.splits.values())), raw.facts.unknown_boxes
    given = f"{source} has {number_of(number, 'image')} and no box"
    remedy = "Annotate the images; 'vitrail predict' needs no annotations"
    lost = [*raw.findings, *listed("annotations-without-image", raw.facts.annotations_without_image)]
    lost = [note for note in lost if note.severity == "warning" and note.items]
    if unknown:
        boxes = number_of(sum(map(len, unknown.values())), "box")
        used = ", ".join(map(str, list(raw.facts.boxes_by_class_id)[:10]))
        given += f" of a class with a name: {boxes} with class ids {used}"
        remedy = "Give the classes names, or correct their ids"
    elif lost:
        given = f"{source} has no box that can be used: "
        given += "; ".join(f"{note.message}, such as {note.items[0]}" for note in lost)
        remedy = "Correct these files, so that they can be read and found with their images"
    return DataError(given, expected="images with at least one box in all", remedy=remedy)


def _unknown(path: Path) -> DataError:
    """Return the error for an existing path that is not a detection data set, with what was seen of it."""
    seen = ""
    if path.is_dir():
        entries = [entry for folder in (path, *folders_in(path)[:20]) for entry in first_entries(folder)]
        kinds = Counter(
            "image" if is_image_name(entry.name) else f"{Path(entry.name).suffix.lower()} file"
            for entry in entries
            if entry.is_file()
        )
        counts = (number_of(count, kind.strip()) for kind, count in kinds.most_common(4))
        seen = f"; it holds {', '.join(counts) or 'no file'}"
    return DataError(
        f"{path} is not detection data of a known format{seen}",
        expected=layouts(BOX_FORMATS),
        remedy="Give the folder of the whole data set, or its .json, .yaml or .parquet file; images without "
        "annotations are for 'vitrail predict'",
    )
