"""Kinds of data: each file of this folder says what one kind needs on its way from a path to a report."""

from __future__ import annotations

from types import ModuleType

from vitrail.core.registry import Registry
from vitrail.models import MODELS
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.image_text_contract import ImageTextModelConfig
from vitrail.tasks.contract import Kind, Parts, Scoring, Settled
from vitrail.tasks.recognising import recognise
from vitrail.train.experiments import Experiment

__all__ = [
    "KINDS",
    "Kind",
    "Parts",
    "Scoring",
    "Settled",
    "kind_of",
    "kind_of_model",
    "kind_of_source",
]

CAPTIONS, IMAGE_TEXT = "captioning", "contrastive"  # two uses of the same data


def _collect(module: ModuleType) -> dict[str, Kind]:
    found: Kind | None = getattr(module, "KIND", None)
    return {} if found is None else {found.name: found}


KINDS: Registry[Kind] = Registry("kind of data", "vitrail.tasks", _collect, module="task")
"""Every kind by its name."""


def kind_of_source(source: str, model: str | None = None) -> Kind:
    """Return the kind of what a user named; a cheap look that raises nothing.

    Args:
        source: a path or a name.
        model: the name of the model that is to learn from it, if one was named: one of images and texts
            learns from captions which images they belong to, others write them.
    """
    found: str = recognise(source)
    named = None if model is None else MODELS.get(model)
    if found == CAPTIONS and isinstance(named, ImageTextModelConfig):
        found = IMAGE_TEXT
    return KINDS[found]


def kind_of(experiment: Experiment) -> Kind:
    """Return the kind whose runs have such settings."""
    return next(kind for kind in KINDS.values() if type(experiment) is kind.experiment)


def kind_of_model(loaded: LoadedModel) -> Kind:
    """Return the kind that a saved model takes; its preprocessing says so, images where it does not."""
    return KINDS[loaded.preprocessing.get("task", "classification")]
