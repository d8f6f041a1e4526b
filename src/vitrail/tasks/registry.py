"""The tasks: each folder here is one, and its ``task.py`` offers it as ``TASK``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from vitrail.core.config import check_place
from vitrail.core.errors import ConfigError
from vitrail.core.registry import Registry
from vitrail.data.dataset import Progress
from vitrail.data.findings import Verdict
from vitrail.data.settings import DataSettings
from vitrail.engines.export.package import Package
from vitrail.models import MODELS
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import ImageTextModelConfig
from vitrail.tasks.contract import Task
from vitrail.train.run import Run
from vitrail.train.settings import Experiment

FALLBACK = "classification"  # whose opening reports what is wrong with unknown data
CAPTIONS, IMAGE_TEXT = "captioning", "contrastive"  # two uses of the same data
UNSURE = 1  # how surely unreadable tables may be captions


def _collect(module: ModuleType) -> dict[str, Task]:
    found: Task | None = getattr(module, "TASK", None)
    return {} if found is None else {found.name: found}


TASKS: Registry[Task] = Registry("task", "vitrail.tasks", _collect, module="task")
"""Every task by its name."""


def task_of_source(source: str, asked: Mapping[str, Any] | None = None) -> Task:
    """Return the task of a data source by a cheap look; never raises.

    Args:
        asked: settings by dotted path. One of data that a single task has decides, such as languages; of
            captioned images, a CLIP learns the matching, other models write captions.
    """
    found, asked = recognise(source), asked or {}
    fields = {path.removeprefix("data.") for path in asked if path.startswith("data.")}
    fitting = [
        name for name, task in TASKS.items() if fields <= type(task.data_settings("")).model_fields.keys()
    ]
    if len(fitting) == 1:
        found = fitting[0]
    named = MODELS.get(asked["model.name"]) if "model.name" in asked else None
    if found == CAPTIONS and isinstance(named, ImageTextModelConfig):
        found = IMAGE_TEXT
    return TASKS[found]


def task_of(experiment: Experiment) -> Task:
    """Return the task of an experiment."""
    return TASKS[experiment.task.name]


def task_of_model(loaded: LoadedModel | Package) -> Task:
    """Return the task of a saved or exported model; classification if its preprocessing names none."""
    return TASKS[loaded.preprocessing.get("task", FALLBACK)]


def open_dataset(source: str | os.PathLike[str], *, settings: DataSettings | None = None) -> Any:
    """Open data of any task, as ``train`` and ``vitrail check`` do; see ``docs/data.md`` for the sources.

    Args:
        settings: of the task that recognises the source, such as fractions and seed of missing splits.

    Raises:
        DataError: there is nothing of that name, its format is unknown, or it cannot be used.

    >>> dataset = open_dataset("digits")
    >>> len(dataset.train), len(dataset.validation), len(dataset.test), len(dataset.class_names)
    (1366, 72, 359, 10)
    """
    text = os.fspath(check_place(source))
    task = task_of_source(text)
    return task.open((settings or task.data_settings(text)).model_copy(update={"source": text}))


def check(dataset: Any, progress: Progress | None = None) -> Verdict:
    """Examine every sample of every split; return findings, errors first, and the samples to leave out.

    Args:
        dataset: what ``open_dataset`` returned, or an argument of it.
        progress: called with the images done and their total.

    >>> verdict = check("digits")
    >>> verdict.usable, verdict.counts["images"]
    (True, {'train': 1366, 'validation': 72, 'test': 359})
    """
    opened = dataset if hasattr(dataset, "source") else open_dataset(dataset)
    return task_of_source(opened.source).check(opened, progress)


def read_experiment(tree: Mapping[str, Any]) -> Experiment:
    """Validate the content of a ``config.json``, by its task's experiment class.

    Raises:
        ConfigError: the task is unknown, or a field is unknown, missing or of the wrong type.
    """
    settings = tree.get("task")
    name = settings.get("name") if isinstance(settings, Mapping) else None
    if not isinstance(name, str) or name not in TASKS:
        raise ConfigError(
            f"the settings are for the task {name!r}",
            expected=f"a task among {', '.join(TASKS)}",
            remedy="Name the config.json of a run, or install a later version of vitrail",
        )
    return TASKS[name].experiment.from_tree(tree)


def open_run(path: str | Path) -> Run:
    """Open an existing run directory.

    Raises:
        CheckpointError: the directory or its ``config.json`` is missing or damaged.
        ConfigError: a setting in ``config.json`` is unknown or does not fit.
    """
    return Run.open(Path(path), read_experiment)


def recognise(source: str | os.PathLike[str]) -> str:
    """Return the name of the task that recognises a path or a name most surely.

    Defaults to classification. Only ends and first rows of files are read, without network access.

    >>> recognise("digits")
    'classification'
    """
    text = os.fspath(check_place(source))
    surest = {FALLBACK: 0}
    with suppress(OSError, RuntimeError, ValueError):  # no permission, no home, or not a path
        surest |= {name: task.recognises(text) for name, task in TASKS.items() if name != FALLBACK}
        if max(surest.values()) == UNSURE:  # lists class folders, which takes longer
            surest[FALLBACK] = TASKS[FALLBACK].recognises(text)
    return max(surest, key=surest.__getitem__)


def other_use(preprocessing: Mapping[str, Any]) -> str:
    """Return the right use of a model given to the wrong command, as the remedy of an error."""
    name = str(preprocessing.get("task", FALLBACK))
    return f"Name another run; this one is for {TASKS[name].usage if name in TASKS else 'another command'}"
