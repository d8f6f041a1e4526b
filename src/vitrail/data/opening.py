"""Open whatever a user names: recognise its format, read it, and carve out the splits it lacks."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from vitrail.data.builtin import ALIASES, BUILTINS
from vitrail.data.dataset import ImageDataset
from vitrail.data.findings import Finding
from vitrail.data.formats import FORMATS
from vitrail.data.formats.contract import RawDataset
from vitrail.data.labels import are_characters
from vitrail.data.splits import stratified_split
from vitrail.errors import DataError, did_you_mean
from vitrail.experiment import DataSettings

HUB_PREFIX = "hf:"
BUILTIN_PREFIX = "builtin:"
HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")


def open_dataset(source: str | os.PathLike[str], *, settings: DataSettings | None = None) -> ImageDataset:
    """Open a data set for image classification.

    An existing path comes first; ``builtin:NAME`` and ``hf:NAME`` say explicitly what is meant.

    Args:
        source: a folder, a file, a built-in name (digits, fashion-mnist, mnist5k) or a Hugging Face name.
        settings: the fractions and the seed of the splits that the source does not have; its ``source`` and
            ``image_size`` are not read here.

    Raises:
        DataError: there is nothing of that name, its format is unknown, or it cannot be used.

    >>> dataset = open_dataset("digits")
    >>> len(dataset.train), len(dataset.validation), len(dataset.test), len(dataset.class_names)
    (1366, 72, 359, 10)
    """
    text = os.fspath(source)
    raw = _read(text)
    if settings is None:
        settings = DataSettings(source=text)
    dataset = _divide(text, raw, settings)
    if len(dataset.class_names) < 2 or not len(dataset.train):
        number = len(dataset.class_names)
        classes = f"{number} class" if number == 1 else f"{number} classes"
        listed = ", ".join(map(repr, dataset.class_names)) or "none"
        raise DataError(
            f"{text} has {classes} ({listed}) and {len(dataset.train)} training images",
            expected="at least two classes with images",
            remedy="Add a folder, or rows, of another class",
        )
    return dataset


def _read(text: str) -> RawDataset:
    path = Path(text).expanduser()
    name = text.strip().lower()
    name = ALIASES.get(name, name)
    if text.startswith(HUB_PREFIX):
        return _read_hub(text.removeprefix(HUB_PREFIX))
    if text.startswith(BUILTIN_PREFIX):
        name = ALIASES.get(name.removeprefix(BUILTIN_PREFIX), name.removeprefix(BUILTIN_PREFIX))
        if name not in BUILTINS:
            raise _missing(text, name)
        return _read_builtin(name)
    if text.strip() and path.exists():
        return _read_path(path)
    if name in BUILTINS:
        return _read_builtin(name)
    if HUB_NAME.match(text) and not Path(text).parent.exists() and not Path(text).suffix:
        return _read_hub(text)
    raise _missing(text, name)


def _read_path(path: Path) -> RawDataset:
    for data_format in sorted(FORMATS.values(), key=lambda entry: entry.rank):
        if data_format.recognises(path):
            raw = data_format.read(path)
            return raw if raw.format else replace(raw, format=data_format.name)
    raise DataError(
        f"{path} is of no known format",
        expected="one of: " + "; ".join(entry.layout for entry in FORMATS.values()),
        remedy="Give the folder or the table of a data set; single images are for 'vitrail predict'",
    )


def _read_builtin(name: str) -> RawDataset:
    return replace(BUILTINS[name](), format="built-in")


def _read_hub(name: str) -> RawDataset:
    from vitrail.data.formats.hub import read_by_name

    return read_by_name(name)


def _divide(source: str, raw: RawDataset, settings: DataSettings) -> ImageDataset:
    """Complete the splits: the test first, then the validation out of what remains for training."""
    splits = dict(raw.splits)
    findings = list(raw.findings)
    validation_origin = test_origin = "from the source"
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
    if "test" not in splits:
        kept, held = stratified_split(
            splits["train"].labels, settings.test_fraction, seed=settings.split_seed
        )
        splits["test"], splits["train"] = splits["train"].take(held), splits["train"].take(kept)
        test_origin = f"{settings.test_fraction:g} of the source, stratified, seed {settings.split_seed}"
    if "validation" not in splits:
        kept, held = stratified_split(
            splits["train"].labels,
            settings.validation_fraction,
            # one more, so that the same images are not ranked alike for both splits
            seed=settings.split_seed + 1,
            max_held=settings.max_validation,
        )
        splits["validation"], splits["train"] = splits["train"].take(held), splits["train"].take(kept)
        validation_origin = f"{len(held)} of the training images, stratified, seed {settings.split_seed}"
    upright = are_characters(raw.class_names) if raw.upright is None else raw.upright
    return ImageDataset(
        source=source,
        format=raw.format,
        class_names=raw.class_names,
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
        upright=upright,
        validation_origin=validation_origin,
        test_origin=test_origin,
        findings=tuple(findings),
    )


def _missing(text: str, name: str) -> DataError:
    is_path = "/" in text or os.sep in text or text.startswith((".", "~")) or bool(Path(text).suffix)
    kind = "path" if is_path else "path or built-in data set"
    return DataError(
        f"there is no {kind} {text!r}",
        expected="an existing folder or file, a built-in name "
        f"({', '.join(BUILTINS)}), or a Hugging Face name (owner/name)",
        remedy=f"Correct the path; the current folder is {Path.cwd()}"
        if is_path
        else did_you_mean(name, BUILTINS),
    )
