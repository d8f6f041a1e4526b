"""Recognise the task of a data source by a cheap look."""

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
    """Return the task that recognises a path or a name most surely.

    Defaults to classification, whose opening reports what is wrong. Only ends and first rows of files are
    read, without network access.

    >>> recognise("digits")
    'classification'
    """
    text = os.fspath(source)
    surest: dict[DataKind, int] = {"classification": 0}
    with suppress(OSError, RuntimeError, ValueError):  # no permission, no home, or not a path
        surest |= {
            "captioning": captioning.recognises(text),
            "translation": translation.recognises(text),
            "detection": detection.recognises(text),
        }
        if max(surest.values()) == captioning.LIKELY:  # lists class folders, which takes longer
            surest["classification"] = classification.recognises(text)
    return max(surest, key=surest.__getitem__)
