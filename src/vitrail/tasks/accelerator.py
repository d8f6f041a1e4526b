"""What is chosen on a GPU alone: micro-batches that fit into its memory, and compiling where it pays."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from vitrail.core.errors import ConfigError, one_line
from vitrail.tasks.contract import Parts
from vitrail.train.machine import memory_is_full
from vitrail.train.processes import Processes
from vitrail.train.run import Choice
from vitrail.train.settings import Experiment
from vitrail.train.step import TrainStep

if TYPE_CHECKING:
    from vitrail.tasks.preparing import Fit

COMPILED_FROM_S = 900.0  # shorter budgets have no time for two measurements and the compiler
PAYS = 1.05  # as many steps


def divide_steps(
    experiment: Experiment, parts: Parts, processes: Processes
) -> tuple[Experiment, list[Choice]]:
    """Divide a step into as many micro-batches as the memory needs, by taking one with a copy of the model.

    Raises:
        ConfigError: not even a single sample fits.
    """
    settings = experiment.train
    accumulate = settings.accumulate
    while True:
        train = settings.model_copy(update={"accumulate": accumulate})
        tried = experiment.model_copy(update={"train": train})
        if _fits(tried, parts, processes):
            break
        accumulate *= 2
        if accumulate > settings.batch_size:
            raise memory_is_full("Choose a smaller model or smaller inputs")
    if accumulate == settings.accumulate:
        return experiment, []
    reason = f"a step of {settings.batch_size} at once needs more memory than the GPU has"
    return tried, [Choice("train.accumulate", str(accumulate), reason)]


def _fits(experiment: Experiment, parts: Parts, processes: Processes) -> bool:
    try:
        _take_step(experiment, parts, processes)
    except torch.OutOfMemoryError:
        return False
    finally:
        torch.cuda.empty_cache()
    return True


def _take_step(experiment: Experiment, parts: Parts, processes: Processes) -> None:
    step = TrainStep(parts.objective, copy.deepcopy(parts.model), experiment, processes)
    step(next(step.batches(parts.train, 0, 1)), 0, experiment.train)


def choose_compiled(
    experiment: Experiment, fit: Fit, refit: Callable[[Experiment], Fit]
) -> tuple[Experiment, Fit, Choice]:
    """Compile the model if the budget then holds more steps, the compiler's time counted.

    Args:
        fit: what fits into the budget without.
        refit: measures what fits.
    """
    train = experiment.train.model_copy(update={"compile": True})
    compiled = experiment.model_copy(update={"train": train})
    try:
        found = refit(compiled)
    except ConfigError:
        reason = "no time would be left for training"
    except Exception as error:  # the compiler's own, or of what it calls
        reason = f"it cannot be compiled here: {one_line(error)}"
    else:
        reason = f"{found.steps:,} steps fit into the budget, and {fit.steps:,} without"
        if found.steps > PAYS * fit.steps:
            return compiled, found, Choice("train.compile", "true", reason)
    return experiment, fit, Choice("train.compile", "false", reason)
