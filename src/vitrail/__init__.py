"""Attention models for images, boxes and text: train, evaluate, explain and use them.

The names below are loaded at their first use, so that ``import vitrail`` costs next to nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.engines.loading import load
    from vitrail.interpret.record import record_attention
    from vitrail.models import build, list_models
    from vitrail.models.describe import describe
    from vitrail.models.weights.conversion import convert
    from vitrail.studies.comparing import compare
    from vitrail.tasks.captioning.predictor import Captioner
    from vitrail.tasks.classification.predictor import Predictor
    from vitrail.tasks.detection.predictor import Detector
    from vitrail.tasks.evaluating import evaluate
    from vitrail.tasks.labelling.predictor import Labeller
    from vitrail.tasks.registry import check, open_dataset
    from vitrail.tasks.training import train
    from vitrail.tasks.translation.predictor import Translator

__version__ = "0.1.0"

__all__ = [
    "Captioner",
    "Detector",
    "Labeller",
    "Predictor",
    "Translator",
    "__version__",
    "build",
    "check",
    "compare",
    "convert",
    "describe",
    "evaluate",
    "list_models",
    "load",
    "open_dataset",
    "record_attention",
    "train",
]

_HOMES = {
    "Captioner": "vitrail.tasks.captioning.predictor",
    "Detector": "vitrail.tasks.detection.predictor",
    "Labeller": "vitrail.tasks.labelling.predictor",
    "Predictor": "vitrail.tasks.classification.predictor",
    "Translator": "vitrail.tasks.translation.predictor",
    "build": "vitrail.models",
    "check": "vitrail.tasks.registry",
    "compare": "vitrail.studies.comparing",
    "convert": "vitrail.models.weights.conversion",
    "describe": "vitrail.models.describe",
    "evaluate": "vitrail.tasks.evaluating",
    "list_models": "vitrail.models",
    "load": "vitrail.engines.loading",
    "open_dataset": "vitrail.tasks.registry",
    "record_attention": "vitrail.interpret.record",
    "train": "vitrail.tasks.training",
}


class _Package(ModuleType):
    """A module in which ``train`` and ``evaluate`` stay the functions.

    The import system binds every submodule it loads as an attribute of its package, and two submodules
    have the names of these functions. They are reached by ``from vitrail.train.loop import ...``.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitrail' has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
