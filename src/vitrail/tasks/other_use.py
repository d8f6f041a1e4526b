"""What a model of each kind is used with, to tell whoever gave it to something else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

USES = {
    "classification": "vitrail predict, in Python vitrail.Predictor",
    "detection": "vitrail predict, in Python vitrail.Detector",
    "captioning": "vitrail predict, in Python vitrail.Captioner",
    "contrastive": "vitrail classify, which takes names of classes, or vitrail retrieve",
    "translation": "vitrail translate, in Python vitrail.Translator",
}


def other_use(preprocessing: Mapping[str, Any]) -> str:
    """Return what to do with a model that does not fit, as the remedy of an error.

    Args:
        preprocessing: the model's, which tells its kind.

    >>> other_use({"task": "translation"})
    'Name another run; this one is for vitrail translate, in Python vitrail.Translator'
    """
    use = USES.get(preprocessing.get("task", "classification"), "another command")
    return f"Name another run; this one is for {use}"
