"""Before the training: open the data, check it, choose the experiment, fit the steps to the budget."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.data import ImageDataset, Verdict, check, open_dataset
from vitrail.errors import ConfigError, DataError
from vitrail.experiment import ClassificationExperiment, ImageDataSettings, TrainSettings
from vitrail.models import MODELS, model_settings
from vitrail.pipeline.assembling import Parts, assemble, load_weights
from vitrail.pipeline.planning import Budget, plan_steps
from vitrail.pipeline.request import Request
from vitrail.recipes.automatic import Choice, choose
from vitrail.recipes.machine import inspect_machine, measure_matrix_products
from vitrail.recipes.situation import describe_situation
from vitrail.train.processes import Processes


@dataclass(frozen=True)
class Prepared:
    """Everything that is decided before the first step."""

    parts: Parts
    """The data without its unusable images, the task, the untrained model."""
    verdict: Verdict
    """What the doctor found."""
    experiment: ClassificationExperiment
    """The resolved settings."""
    choices: tuple[Choice, ...]
    """What was chosen, by whom and why."""
    ends_at: float | None = None
    """When the last step must be done, on ``time.monotonic``; None where the number of steps was given."""


def prepare(request: Request, processes: Processes) -> Prepared:
    """Open and check the data, and choose every setting of the experiment.

    With several processes the first one looks and chooses, and the others take over what it found.

    Args:
        request: what the user asked for.
        processes: those that train together.

    Raises:
        DataError: the data cannot be used.
        ConfigError: a name or a value is wrong, or the budget is too short for one step.
    """
    budget = Budget(request.budget_s, started=time.monotonic())
    request.check_fresh()
    source, settings = str(request.source), request.settings
    if request.config is not None:
        experiment = _stored_experiment(Path(request.config), source, settings)
        repeated = Choice("everything", str(request.config), "the settings of an earlier run")
        dataset, verdict = open_as(experiment, processes)
        return Prepared(assemble(experiment, dataset), verdict, experiment, (repeated, *request.choices()))
    check_settings(settings)
    dataset, verdict = open_checked(source, _data_changes(settings), processes)
    experiment, choices = processes.from_first(lambda: _choose(dataset, settings, budget.seconds))
    choices = (*choices, *request.choices())
    parts = assemble(experiment, dataset)
    if "train.steps" in settings:
        return Prepared(parts, verdict, experiment, choices)
    plan = plan_steps(experiment, parts, budget, processes)
    return Prepared(parts, verdict, plan.experiment, (*choices, plan.choice), ends_at=plan.ends_at)


def check_settings(settings: Mapping[str, Any]) -> None:
    """Find wrong names and values before anything is read; a model's fields depend on the data.

    Raises:
        ConfigError: a name is unknown or a value does not fit.
    """
    if "model.name" in settings:
        MODELS[settings["model.name"]]
    known = {path: value for path, value in settings.items() if not path.startswith("model.")}
    data = ImageDataSettings(source="", image_size=(32, 32))
    ClassificationExperiment(data=data, model={}, train=TrainSettings(steps=1, batch_size=1)).with_changes(
        known
    )


def open_as(experiment: ClassificationExperiment, processes: Processes) -> tuple[ImageDataset, Verdict]:
    """Open the data of an experiment, divided as it says.

    Raises:
        DataError: as ``open_checked``.
    """
    settings = experiment.data
    return open_checked(settings.source, settings.model_dump(mode="json", exclude={"source"}), processes)


def open_checked(
    source: str, changes: Mapping[str, Any], processes: Processes
) -> tuple[ImageDataset, Verdict]:
    """Open a data set, check it in the first process and leave out what cannot be used.

    Args:
        source: a path or a name.
        changes: settings of the data, without their section's name.
        processes: those that use the data together.

    Raises:
        DataError: the data cannot be opened, or the doctor found an error.
    """
    settings = ImageDataSettings(source=source, image_size=(32, 32)).with_changes(changes)
    dataset = open_dataset(source, settings=settings)
    verdict = processes.from_first(lambda: check(dataset))
    if not verdict.usable:
        first = verdict.of("error")[0]
        raise DataError(
            f"{source} cannot be used: {first.message}",
            expected="data in which the doctor finds no error",
            remedy=f"{first.remedy}. For everything that was found, run: vitrail check {source}",
        )
    return dataset.without(verdict.exclude), verdict


def _stored_experiment(config: Path, source: str, settings: Mapping[str, Any]) -> ClassificationExperiment:
    """Return what an earlier run did, its corrected number of steps included, unless that is set anew."""
    try:
        tree = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{config} cannot be read as settings: {error}",
            expected="the config.json of a run directory",
            remedy="Name the file that an earlier run wrote, such as runs/NAME/config.json",
        ) from None
    changes = {"data.source": source, **settings}
    if "train.steps" in settings:
        changes = {"train.replans": (), **changes}
    return _settle_model(ClassificationExperiment.from_tree(tree).with_changes(changes))


def _data_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return those settings that decide how the data is divided, without their section's name."""
    return {path.removeprefix("data."): value for path, value in changes.items() if path.startswith("data.")}


def _choose(
    dataset: ImageDataset, settings: Mapping[str, Any], budget_s: float
) -> tuple[ClassificationExperiment, tuple[Choice, ...]]:
    """Return the experiment and those choices in it that were not settled by the user or a recipe."""
    machine = inspect_machine()
    flops = measure_matrix_products(machine)
    situation = describe_situation(dataset, machine, flops=flops, budget_s=budget_s)
    pretrained = load_weights(settings.get("weights"), settings.get("model.name"))
    model = settings.get("model.name")
    experiment, choices = choose(situation, model=model, seed=0, pretrained=pretrained, asked=settings)
    changes = {path: value for path, value in settings.items() if path != "model.name"}
    kept = tuple(choice for choice in choices if choice.setting not in settings)
    return _settle_model(experiment.with_changes(changes)), kept


def _settle_model(experiment: ClassificationExperiment) -> ClassificationExperiment:
    """Make the model's positions fit the input size that was finally set, and check its settings.

    Positions that were learned keep their grid; the model resizes them to the images that it is given.
    """
    fields = {key: value for key, value in experiment.model.items() if key != "name"}
    if experiment.weights is None:
        fields["image_size"] = experiment.data.image_size
    model = model_settings(experiment.model["name"], **fields)
    return experiment.model_copy(update={"model": model})
