"""Remedies for models given to the wrong command."""

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
    """Return the right use of a model, as the remedy of an error."""
    use = USES.get(preprocessing.get("task", "classification"), "another command")
    return f"Name another run; this one is for {use}"
