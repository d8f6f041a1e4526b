"""Before the training: open the data, check it, choose the experiment, fit the steps to the budget."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.data import ImageDataset, Verdict, check, open_dataset
from vitrail.duration import format_duration
from vitrail.errors import ConfigError, DataError
from vitrail.experiment import DataSettings, Experiment
from vitrail.models import model_settings
from vitrail.pipeline.assembling import assemble
from vitrail.recipes import RECIPES
from vitrail.recipes.automatic import MAX_EPOCHS, Choice, choose
from vitrail.recipes.machine import inspect_machine, measure_matrix_products
from vitrail.recipes.situation import describe_situation
from vitrail.train.budget import StepTimes, calibrate, steps_for_budget
from vitrail.train.processes import Processes

DEFAULT_BUDGET_S = 600.0
REPORT_S = 12.0  # importing the metrics, drawing plots and explanations, on 2 cores
FORWARD_SHARE = 0.5  # of a train step's time that a forward pass of as many images takes, at most
CALIBRATION_SHARE = 0.03  # of the budget


@dataclass(frozen=True)
class Prepared:
    """Everything that is decided before the first step."""

    dataset: ImageDataset
    """The data without its unusable images."""
    verdict: Verdict
    """What the doctor found."""
    experiment: Experiment
    """The resolved settings."""
    choices: tuple[Choice, ...]
    """What was chosen, by whom and why."""
    ends_at: float | None
    """When the last step must be done, on ``time.monotonic``; None where the number of steps was given."""


def prepare(
    source: str,
    *,
    model: str | None = None,
    budget_s: float | None = None,
    recipe: str | None = None,
    config: Path | None = None,
    changes: Mapping[str, Any] | None = None,
    seed: int | None = None,
    processes: Processes,
) -> Prepared:
    """Open and check the data, and choose every setting of the experiment.

    With several processes the first one looks and chooses, and the others take over what it found.

    Args:
        source: a path or a name that ``vitrail.open_dataset`` takes.
        model: a model's name, instead of the automatic choice.
        budget_s: wall-clock time from this call to the end of the report, in seconds; ten minutes by default.
        recipe: a recipe's name; its settings go before the automatic choices.
        config: stored settings of an earlier run, used instead of automatic choices.
        changes: dotted settings and their values; they go before everything.
        seed: the training seed.
        processes: those that train together.

    Raises:
        DataError: the data cannot be used.
        ConfigError: a name or a value is wrong, or the budget is too short for one step.
    """
    started = time.monotonic()
    if budget_s is not None and budget_s <= 0:
        raise ConfigError(
            f"the budget is {budget_s:g} seconds",
            expected="a time longer than zero",
            remedy="Give a budget such as 10m",
        )
    wanted = {**(RECIPES[recipe]() if recipe else {}), **(changes or {})}
    if model is not None:
        wanted["model.name"] = model
    if seed is not None:
        wanted["train.seed"] = seed
    if config is not None:
        return _repeat(source, config, wanted)
    dataset, verdict = open_checked(source, _data_changes(wanted))
    experiment, choices = processes.from_first(
        lambda: _choose(dataset, wanted, budget_s or DEFAULT_BUDGET_S, recipe)
    )
    if "train.steps" in wanted:
        return Prepared(dataset, verdict, experiment, choices, ends_at=None)
    budget = budget_s or DEFAULT_BUDGET_S
    parts = assemble(experiment, dataset)
    parts.train.prepare()
    times = calibrate(
        parts.task,
        parts.model,
        parts.train,
        parts.validation,
        experiment=experiment,
        processes=processes,
        seconds=CALIBRATION_SHARE * budget,
    )
    reserve_s = REPORT_S + _evaluation_s(times, experiment, len(dataset.test))
    ends_at = started + budget - reserve_s
    pauses_s = times.validation_s * experiment.train.validations
    steps = processes.from_first(
        lambda: steps_for_budget(ends_at - time.monotonic() - pauses_s, times.step_s, 0.0)
    )
    most = MAX_EPOCHS * len(dataset.train) // experiment.train.batch_size + 1
    fitted = min(steps, most)
    experiment = experiment.with_changes({"train.steps": fitted, "budget_s": budget})
    choice = Choice(
        "train.steps", str(fitted), _steps_reason(fitted, times, experiment, len(dataset.train), budget_s)
    )
    return Prepared(
        dataset, verdict, experiment, (*choices, choice), ends_at=ends_at if fitted == steps else None
    )


def _repeat(source: str, config: Path, wanted: Mapping[str, Any]) -> Prepared:
    """Prepare what an earlier run did, its corrected number of steps included."""
    try:
        tree = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{config} cannot be read as settings: {error}",
            expected="the config.json of a run directory",
            remedy="Name the file that an earlier run wrote, such as runs/NAME/config.json",
        ) from None
    experiment = Experiment.from_tree(tree).with_changes({"data.source": source, **wanted})
    dataset, verdict = open_checked(source, experiment.data.model_dump(mode="json", exclude={"source"}))
    choices = [Choice("everything", str(config), "the settings of an earlier run")]
    choices += [Choice(path, str(value), "you set it") for path, value in wanted.items()]
    return Prepared(dataset, verdict, _settle_model(experiment), tuple(choices), ends_at=None)


def open_checked(source: str, changes: Mapping[str, Any]) -> tuple[ImageDataset, Verdict]:
    """Open a data set, check it and leave out what cannot be used.

    Raises:
        DataError: the data cannot be opened, or the doctor found an error.
    """
    settings = DataSettings(source=source, image_size=(32, 32)).with_changes(changes)
    dataset = open_dataset(source, settings=settings)
    verdict = check(dataset)
    if not verdict.usable:
        first = verdict.of("error")[0]
        raise DataError(
            f"{source} cannot be used: {first.message}",
            expected="data in which the doctor finds no error",
            remedy=f"{first.remedy}. For everything that was found, run: vitrail check {source}",
        )
    return dataset.without(verdict.exclude), verdict


def _data_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return those settings that decide how the data is divided, without their section's name."""
    return {path.removeprefix("data."): value for path, value in changes.items() if path.startswith("data.")}


def _choose(
    dataset: ImageDataset, wanted: Mapping[str, Any], budget_s: float, recipe: str | None
) -> tuple[Experiment, tuple[Choice, ...]]:
    machine = inspect_machine()
    situation = describe_situation(
        dataset, machine, flops=measure_matrix_products(machine), budget_s=budget_s
    )
    experiment, choices = choose(situation, model=wanted.get("model.name"), seed=0)
    experiment = experiment.with_changes(
        {path: value for path, value in wanted.items() if path != "model.name"}
    )
    experiment = _settle_model(experiment)
    author = f"recipe {recipe}" if recipe else "you set it"
    kept = [choice for choice in choices if choice.setting not in wanted]
    given = [
        Choice(path, str(value), "you set it" if not recipe else author) for path, value in wanted.items()
    ]
    return experiment, (*kept, *given)


def _settle_model(experiment: Experiment) -> Experiment:
    """Make the model's positions fit the input size that was finally set, and check its settings."""
    fields = {key: value for key, value in experiment.model.items() if key != "name"}
    fields["image_size"] = experiment.data.image_size
    model = model_settings(experiment.model["name"], **fields)
    return experiment.model_copy(update={"model": model})


def _evaluation_s(times: StepTimes, experiment: Experiment, num_test: int) -> float:
    return FORWARD_SHARE * times.step_s * num_test / experiment.train.batch_size


def _steps_reason(
    steps: int, times: StepTimes, experiment: Experiment, num_train: int, budget_s: float | None
) -> str:
    rate = experiment.train.batch_size / times.step_s
    epochs = steps * experiment.train.batch_size / num_train
    budget = format_duration(budget_s or DEFAULT_BUDGET_S)
    default = "" if budget_s else ", the default budget"
    return f"{budget}{default} at {rate:.0f} images/s: {epochs:.1f} epochs"
