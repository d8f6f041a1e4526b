"""Attention models for images, boxes and text: train, evaluate, explain and use them.

The names below are loaded at their first use, so that ``import vitrail`` costs next to nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from vitrail._version import __version__

if TYPE_CHECKING:
    from vitrail.data import check, open_dataset
    from vitrail.deploy.captioner import Captioner
    from vitrail.deploy.detector import Detector
    from vitrail.deploy.loading import load
    from vitrail.deploy.predictor import Predictor
    from vitrail.deploy.translator import Translator
    from vitrail.describe import describe
    from vitrail.interpret.record import record_attention
    from vitrail.models import build, list_models
    from vitrail.pipeline import compare, evaluate, train
    from vitrail.weights.conversion import convert

__all__ = [
    "Captioner",
    "Detector",
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
    "Captioner": "vitrail.deploy.captioner",
    "Detector": "vitrail.deploy.detector",
    "Predictor": "vitrail.deploy.predictor",
    "Translator": "vitrail.deploy.translator",
    "build": "vitrail.models",
    "check": "vitrail.data",
    "compare": "vitrail.pipeline",
    "convert": "vitrail.weights.conversion",
    "describe": "vitrail.describe",
    "evaluate": "vitrail.pipeline",
    "list_models": "vitrail.models",
    "load": "vitrail.deploy.loading",
    "open_dataset": "vitrail.data",
    "record_attention": "vitrail.interpret.record",
    "train": "vitrail.pipeline",
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
