"""Tell by a cheap look which task a source of data is for."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Literal

from vitrail.tasks.captioning import opening as captioning
from vitrail.tasks.classification import opening as classification
from vitrail.tasks.detection import opening as detection
from vitrail.tasks.translation import opening as translation

DataKind = Literal["classification", "translation", "detection", "captioning"]


def recognise(source: str | os.PathLike[str]) -> DataKind:
    """Return the task whose opening is the surest that a path or a name is for it.

    What is for none of them counts as images with classes, whose opening says what is wrong with it. No file
    is read but for its ends and first rows, and no network is asked.

    >>> recognise("digits")
    'classification'
    """
    text = os.fspath(source)
    surest: dict[DataKind, int] = {"classification": 0}
    with suppress(OSError, RuntimeError, ValueError):  # no permission, no home, a name that is no path
        surest |= {
            "captioning": captioning.recognises(text),
            "translation": translation.recognises(text),
            "detection": detection.recognises(text),
        }
        if max(surest.values()) == captioning.LIKELY:  # lists class folders, which takes longer
            surest["classification"] = classification.recognises(text)
    return max(surest, key=surest.__getitem__)
