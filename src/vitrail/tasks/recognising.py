"""Tell by a cheap look what kind of data a user means: images, with boxes or captions, or pairs of text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from vitrail.data.formats import HUB_PREFIX
from vitrail.tasks.captioning.formats.hub import is_of_captions
from vitrail.tasks.captioning.opening import caption_format_of
from vitrail.tasks.captioning.unread import find_unread
from vitrail.tasks.classification.formats.reading import holds_classes
from vitrail.tasks.detection.formats.objects import is_of_boxes
from vitrail.tasks.detection.opening import box_format_of
from vitrail.tasks.translation.formats.hub import is_name, is_of_pairs
from vitrail.tasks.translation.opening import format_of

DataKind = Literal["classification", "translation", "detection", "captioning"]


def recognise(source: str | os.PathLike[str]) -> DataKind:
    """Return the kind of what a path or a name stands for.

    What is none of the others counts as images, whose opening says what is wrong with it. No file is read but
    for its ends and first rows, and no network is asked.

    >>> recognise("digits")
    'classification'
    """
    text = os.fspath(source)
    if text.startswith(HUB_PREFIX):
        return _kind_of_name(text.removeprefix(HUB_PREFIX))
    try:
        path = Path(text).expanduser()
        # Before pairs and boxes, which some files of captions look like: text with tabs, COCO's JSON.
        if text.strip() and caption_format_of(path) is not None:
            return "captioning"
        if text.strip() and format_of(path) is not None:
            return "translation"
        if text.strip() and box_format_of(path) is not None:
            return "detection"
        if text.strip() and find_unread(path) is not None and not holds_classes(path):
            return "captioning"  # whose opening tells what is wrong with the table
        is_hub_name = is_name(text) and not path.exists() and not path.parent.exists()
        return _kind_of_name(text) if is_hub_name else "classification"
    except (OSError, RuntimeError, ValueError):  # no permission, no home of a user, a name that is no path
        return "classification"


def _kind_of_name(name: str) -> DataKind:
    if is_of_pairs(name):
        return "translation"
    if is_of_captions(name):
        return "captioning"
    return "detection" if is_of_boxes(name) else "classification"
