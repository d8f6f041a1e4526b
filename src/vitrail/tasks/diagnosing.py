"""What is the matter with a finished run, and what to do about it."""

from __future__ import annotations

import math
import shlex
from statistics import fmean

from vitrail.data.stream import steps_of_epoch
from vitrail.models.contract import ModelConfig
from vitrail.report.plots import Curve
from vitrail.report.sections import read_history
from vitrail.tasks.contract import Diagnosis, Parts
from vitrail.tasks.registry import task_of
from vitrail.train.evaluate import Report
from vitrail.train.run import Run

USUAL, FEW = 0.05, 0.015  # epochs, as fractions of max_epochs: 10 and 3 for a classifier, 100 and 30 for DETR
LONGER = 3.0  # times as many epochs, where the validation score was still improving
IMPROVED, WORSENED = 0.1, 0.2  # shares of a validation score; smaller changes are noise
TINY = 0.125  # side of images as a share of the family's, below which published weights do not suit
FITTED, SLACK, LAST_STEPS = 0.8, 0.1, 20  # accuracies of a model that fits its data, and noise between them
START_S = 30.0  # for opening the data and writing the report again
SPENT = 0.7  # share of the budget from which on it was time that ended the training


def diagnose(run: Run, parts: Parts, report: Report) -> Diagnosis:
    """Judge a run by its scores, by how often it saw the data, and by the course of its validations."""
    settings, task = run.experiment, task_of(run.experiment)
    train, budget_s, is_random = settings.train, settings.budget_s, settings.weights is None
    curves, of_training = read_history(run.metrics_path)
    if not curves.keys() >= {"loss", "elapsed_s"}:  # a power failure took them
        return Diagnosis(task.conclude(report)[0])
    steps, elapsed_s = curves["loss"][0][-1], curves["elapsed_s"][1][-1]
    per_epoch = steps_of_epoch(parts.train, train.batch_size, train.seed)
    epochs, usual = steps / per_epoch, USUAL * task.max_epochs
    result, found, _ = task.conclude(report)
    change = 0.0
    if epochs < FEW * task.max_epochs and (is_random or found):
        seen = f"The {len(parts.train):,} training {task.samples} were seen {epochs:.2g} times each"
        usually = f"usually takes {usual:.0f} epochs or more, less where {task.samples} are many or simple"
        found += (f"{seen}; learning from random weights {usually}.",)
    elif course := (curves.get("nll") or curves.get(task.headline)):
        score = "log loss" if "nll" in curves else task.headline
        change, earlier = change_at_end(course, sign=-1 if "nll" in curves else 1)
        ended = f"{earlier:.3g} to {course[1][-1]:.3g}"
        if change > IMPROVED and (budget_s is None or elapsed_s > SPENT * budget_s):
            found += (f"The validation {score} was still improving in the last quarter: {ended}.",)
        elif change < -WORSENED:
            found += (f"The validation {score} got worse from its best, {ended}: the model overfits.",)
    correct = of_training.get("correct", ([], []))[1]
    learned, reached = fmean(correct[-LAST_STEPS:] or [1.0]), report.scores.get("accuracy", 1.0)
    underfits = not found and learned < reached + SLACK and reached < FITTED
    if underfits:
        found = (f"The training accuracy, {learned:.0%}, is as low as on new data: more can be learned.",)
    if not found:
        return Diagnosis(result)
    remedies = [f"give more training {task.samples}"]
    if change > IMPROVED or epochs < usual or underfits:
        longer = max(usual, LONGER * epochs)
        minutes = math.ceil((elapsed_s * (longer / epochs - 1) + START_S) / 60)
        budget = f"{minutes}m" if minutes < 120 else f"{math.ceil(minutes / 60)}h"
        option = f"--resume {shlex.quote(str(run.path))} --budget {budget}"
        remedies = [f"train longer ({option} for about {longer:.0f} epochs)"]
    if is_random and task.pretrained and not _is_tiny(settings.model):
        remedies.append(f"start from pretrained weights, such as --weights {task.pretrained}")
    return Diagnosis(result, found, f"What to do: {', or '.join(remedies)}.")


def _is_tiny(model: ModelConfig) -> bool:
    """Return whether a model's images are much smaller than those of published models of its family."""
    field = type(model).model_fields.get("image_size")
    return field is not None and min(vars(model)["image_size"]) < TINY * min(field.default)


def change_at_end(course: Curve, *, sign: int) -> tuple[float, float]:
    """Return the change of a validation score towards the end, as a share, and what it was before.

    The change in the last quarter of the training of a score that was best at the end; of others, the change
    since the best, which is negative.

    Args:
        sign: 1 where more is better, -1 where less is.

    >>> change_at_end(([2, 4, 6, 8], [0.9, 0.7, 0.5, 0.4]), sign=-1)
    (0.2, 0.5)
    """
    steps, values = course
    best = sign * max(sign * value for value in values)
    early = [value for step, value in zip(steps, values, strict=True) if step <= 0.75 * steps[-1]]
    before = early[-1] if early and best == values[-1] else best
    largest = max(abs(before), abs(values[-1]), 1e-9)
    return round(sign * (values[-1] - before) / largest, 6), before
