"""Tell by a cheap look what kind of data a user means: images or pairs of sentences."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from vitrail.data.opening import HUB_PREFIX
from vitrail.data.pair_formats.hub import is_name, is_of_pairs
from vitrail.data.pair_opening import format_of

DataKind = Literal["images", "pairs"]


def recognise(source: str | os.PathLike[str]) -> DataKind:
    """Return the kind of what a path or a name stands for.

    What is neither counts as images, whose opening says what is wrong with it. No file is read but for its
    first rows, and no network is asked.

    >>> recognise("digits")
    'images'
    """
    text = os.fspath(source)
    if text.startswith(HUB_PREFIX):
        return "pairs" if is_of_pairs(text.removeprefix(HUB_PREFIX)) else "images"
    try:
        path = Path(text).expanduser()
        if text.strip() and format_of(path) is not None:
            return "pairs"
        is_hub_name = is_name(text) and not path.exists() and not path.parent.exists()
        return "pairs" if is_hub_name and is_of_pairs(text) else "images"
    except (OSError, RuntimeError, ValueError):  # no permission, no home of a user, a name that is no path
        return "images"
