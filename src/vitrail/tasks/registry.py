"""The tasks: each folder here is one, and its ``task.py`` offers it as ``TASK``."""

from __future__ import annotations

from types import ModuleType

from vitrail.core.registry import Registry
from vitrail.models import MODELS
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import ImageTextModelConfig
from vitrail.tasks.contract import Parts, Scoring, Settled, Task
from vitrail.tasks.recognising import recognise
from vitrail.train.experiments import Experiment

__all__ = [
    "TASKS",
    "Parts",
    "Scoring",
    "Settled",
    "Task",
    "task_of",
    "task_of_model",
    "task_of_source",
]

CAPTIONS, IMAGE_TEXT = "captioning", "contrastive"  # two uses of the same data


def _collect(module: ModuleType) -> dict[str, Task]:
    found: Task | None = getattr(module, "TASK", None)
    return {} if found is None else {found.name: found}


TASKS: Registry[Task] = Registry("task", "vitrail.tasks", _collect, module="task")
"""Every task by its name."""


def task_of_source(source: str, model: str | None = None) -> Task:
    """Return the task that suits data; a cheap look that raises nothing.

    Args:
        source: a path or a name.
        model: the name of the model that is to learn from it, if one was named: one of images and texts
            learns from captions which images they belong to, others write them.
    """
    found: str = recognise(source)
    named = None if model is None else MODELS.get(model)
    if found == CAPTIONS and isinstance(named, ImageTextModelConfig):
        found = IMAGE_TEXT
    return TASKS[found]


def task_of(experiment: Experiment) -> Task:
    """Return the task whose runs have such settings."""
    return TASKS[experiment.task.name]


def task_of_model(loaded: LoadedModel) -> Task:
    """Return the task of a saved model; classification where its preprocessing names none."""
    return TASKS[loaded.preprocessing.get("task", "classification")]
