"""Open whatever images with boxes a user names: recognise the format, read it, carve out splits it lacks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from vitrail.data.box_dataset import BoxDataset, BoxSplit
from vitrail.data.box_formats import BOX_FORMATS
from vitrail.data.box_formats.contract import DetectionFormat, RawBoxes
from vitrail.data.box_places import first_entries, folders_in
from vitrail.data.findings import Finding
from vitrail.data.formats.folders import is_image_name
from vitrail.data.opening import HUB_NAME, HUB_PREFIX
from vitrail.data.splits import stratified_split
from vitrail.errors import DataError
from vitrail.experiment import BoxDataSettings, DataSettings


def open_boxes(source: str | os.PathLike[str], *, settings: BoxDataSettings | None = None) -> BoxDataset:
    """Open a data set for detection.

    A source that holds nothing but a validation or a test split is a data set whose training split is empty.

    Args:
        source: a folder, a file (COCO's .json, YOLO's .yaml, .parquet), or a Hugging Face name
            (``hf:owner/name``).
        settings: the fractions and the seed of the splits that the source does not have; its ``source`` and
            what it says of sizes are not read here.

    Raises:
        DataError: there is nothing of that name, its format is unknown, or it cannot be used.

    >>> import json, tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for i in range(10):
    ...         Image.new("RGB", (7, 5)).save(f"{folder}/{i}.png")
    ...     content = {
    ...         "images": [{"id": i, "file_name": f"{i}.png", "height": 5, "width": 7} for i in range(10)],
    ...         "annotations": [{"image_id": i, "category_id": 3, "bbox": [1, 2, 4, 2]} for i in range(10)],
    ...         "categories": [{"id": 3, "name": "cell"}],
    ...     }
    ...     _ = Path(folder, "cells.json").write_text(json.dumps(content))
    ...     dataset = open_boxes(folder)
    >>> dataset.format, dataset.class_names, dataset.class_ids, dataset.train.boxes[0].tolist()
    ('COCO', ('cell',), (3,), [[1.0, 2.0, 5.0, 4.0]])
    >>> len(dataset.train), len(dataset.validation), len(dataset.test)
    (7, 1, 2)
    """
    text = os.fspath(source)
    raw, format_name = _read(text)
    divided = _divide(text, raw, format_name, settings or DataSettings(source=text))
    if not any(split.num_boxes for split in divided.splits.values()):
        number = sum(map(len, divided.splits.values()))
        without_name = sum(divided.facts.boxes_of_unknown_class.values())
        given = f"{text} has {number} images and no box"
        if without_name:
            used = ", ".join(map(str, list(divided.facts.boxes_by_class_id)[:10]))
            given += f" of a class with a name: {without_name} boxes have the class ids {used}"
        raise DataError(
            given,
            expected="images with at least one box in all",
            remedy="Give the classes names, or correct their ids"
            if without_name
            else "Annotate the images; 'vitrail predict' needs no annotations",
        )
    return divided


def box_format_of(path: Path) -> DetectionFormat | None:
    """Return the format in which a path holds images with boxes, or None; a cheap look."""
    ranked = sorted(BOX_FORMATS.values(), key=lambda entry: entry.rank)
    return next((entry for entry in ranked if entry.recognises(path)), None)


def draw_images(
    labels: Sequence[Int64[np.ndarray, " _"]],
    num_classes: int,
    fraction: float,
    *,
    seed: int,
    max_held: int | None = None,
) -> tuple[Int64[np.ndarray, " kept"], Int64[np.ndarray, " held"]]:
    """Hold out a share of images at random, as evenly over the classes as images allow.

    Each image counts for the rarest of its classes; those without boxes are a class of their own.

    Args:
        labels: class of each box of each image.
        num_classes: number of classes.
        fraction: share to hold out, 0..1.
        seed: seed of the choice; equal labels and seed give equal parts.
        max_held: upper bound on the number held out.

    Returns:
        kept: indices of the images that stay, ascending.
        held: indices of the images held out, ascending.
    """
    counts = np.bincount(
        np.concatenate([np.zeros(0, dtype=np.int64), *map(np.unique, labels)]), minlength=num_classes
    )
    rarest = [int(part[np.argmin(counts[part])]) if len(part) else num_classes for part in labels]
    return stratified_split(np.array(rarest, dtype=np.int64), fraction, seed=seed, max_held=max_held)


def _read(text: str) -> tuple[RawBoxes, str]:
    from vitrail.data.box_formats.objects import read_by_name

    if text.startswith(HUB_PREFIX):
        return read_by_name(text.removeprefix(HUB_PREFIX)), "Hugging Face data set"
    try:
        path = Path(text).expanduser()
        found = box_format_of(path) if text.strip() else None
        if found is None and path.is_file():
            is_read = (entry for entry in BOX_FORMATS.values() if path.name.lower().endswith(entry.suffixes))
            found = next(is_read, None)
        if found is not None:
            return _note_others(path, found, found.read(path)), found.name
        if text.strip() and path.exists():
            raise _unknown(path)
        is_hub_name = HUB_NAME.match(text) is not None and not path.parent.exists()
    except DataError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # no permission, no home, a name that is no path
        reason = error.strerror or error if isinstance(error, OSError) else error
        raise DataError(
            f"{text!r} cannot be opened: {reason}",
            expected="a path that exists and may be read",
            remedy="Correct the path or its permissions",
        ) from None
    if is_hub_name and not path.suffix:
        return read_by_name(text), "Hugging Face data set"
    raise DataError(
        f"there is no path {text!r}",
        expected="an existing folder or file, or a Hugging Face name (hf:owner/name)",
        remedy=f"Correct the path; the current folder is {Path.cwd()}",
    )


def _note_others(path: Path, found: DetectionFormat, raw: RawBoxes) -> RawBoxes:
    """Tell of further formats in which annotations lie at the same place."""
    others = [entry.name for entry in BOX_FORMATS.values() if entry is not found and entry.recognises(path)]
    if not others:
        return raw
    finding = Finding(
        "warning",
        "several-formats",
        f"there are annotations as {' and '.join([found.name, *others])}; those as {found.name} are read",
        "Move the others away, if they do not say the same",
    )
    return replace(raw, findings=(*raw.findings, finding))


def _divide(source: str, raw: RawBoxes, format_name: str, settings: DataSettings) -> BoxDataset:
    """Complete the splits: the test first, then the validation out of what remains for training."""
    splits = dict(raw.splits)
    findings = list(raw.findings)
    validation_origin = test_origin = "from the source"
    num_classes, seed = len(raw.class_names), settings.split_seed
    if "test" not in splits and "validation" in splits:
        splits["test"] = splits.pop("validation")
        test_origin = "the source's validation split"
        findings.append(
            Finding(
                "info",
                "validation-as-test",
                "there is no test split, so the validation split is used for the final test",
                "Choices are made on a part of the training images instead",
            )
        )
    if "train" not in splits:
        splits["train"] = BoxSplit([], [], [], [])
    if "test" not in splits:
        kept, held = draw_images(splits["train"].labels, num_classes, settings.test_fraction, seed=seed)
        splits["test"], splits["train"] = splits["train"].take(held), splits["train"].take(kept)
        test_origin = f"{settings.test_fraction:g} of the source, by rarest class, seed {seed}"
    if "validation" not in splits:
        kept, held = draw_images(
            splits["train"].labels,
            num_classes,
            settings.validation_fraction,
            # one more, so that the same images are not ranked alike for both splits
            seed=seed + 1,
            max_held=settings.max_validation,
        )
        splits["validation"], splits["train"] = splits["train"].take(held), splits["train"].take(kept)
        validation_origin = f"{len(held)} of the training images, by rarest class, seed {seed}"
    return BoxDataset(
        source=source,
        format=format_name,
        class_names=raw.class_names,
        class_ids=raw.class_ids,
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
        validation_origin=validation_origin,
        test_origin=test_origin,
        findings=tuple(findings),
        facts=raw.facts,
    )


def _unknown(path: Path) -> DataError:
    """Return the error of what is there and is no data set for detection, with what was seen of it."""
    expected = "one of: " + "; ".join(entry.layout for entry in BOX_FORMATS.values())
    if path.is_file():
        remedy = "Give the folder of the data set, or its .json, .yaml or .parquet file"
        if is_image_name(path.name):
            remedy = "Give the folder of a data set; single images are for 'vitrail predict'"
        return DataError(f"{path} is no detection data of a known format", expected=expected, remedy=remedy)
    places = [path, *folders_in(path)[:20]]
    names = [entry.name for place in places for entry in first_entries(place) if entry.is_file()]
    num_images = sum(map(is_image_name, names))
    others = Counter(
        Path(name).suffix.lower() or "without suffix" for name in names if not is_image_name(name)
    )
    listed = ", ".join(f"{count} {suffix}" for suffix, count in others.most_common(4))
    if not names:
        return DataError(
            f"the folder {path} holds no file", expected=expected, remedy="Give the folder of a data set"
        )
    if num_images:
        given = f"{path} holds {num_images} images and no annotations of a known format"
        remedy = "Put the annotations beside the images; if folders are classes, this is no detection data"
    else:
        given, remedy = f"{path} holds no images with annotations", "Give the folder of the whole data set"
    return DataError(f"{given} (other files: {listed or 'none'})", expected=expected, remedy=remedy)
