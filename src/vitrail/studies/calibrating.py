"""How far the probabilities of a finished classifier can be believed, with and without a temperature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail import __version__
from vitrail.core.config import Config
from vitrail.core.errors import ConfigError, DataError
from vitrail.engines.loading import load_any
from vitrail.tasks.classification.calibration import CalibrationScores, calibration_scores, fit_temperature
from vitrail.tasks.classification.outputs import LogitsEvaluator
from vitrail.tasks.contract import Scoring
from vitrail.tasks.evaluating import open_scorings, trained_experiment
from vitrail.tasks.other_use import other_use
from vitrail.train.evaluate import run_evaluator
from vitrail.train.machine import Precision, inspect_machine


class Calibration(Config):
    """The calibration of one model on one split, and what a temperature makes of it."""

    signature: dict[str, str]
    """What two results must agree in to be compared."""
    temperature: float
    """What the logits are divided by, fitted on other images than those that are scored."""
    before: CalibrationScores
    """Of the model as it is."""
    after: CalibrationScores
    """Of its logits divided by the temperature."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return self.model_dump(mode="json")


def calibrate(
    run: str | Path,
    source: str | Path,
    *,
    split: str = "test",
    fit_on: str = "validation",
    batch_size: int | None = None,
) -> Calibration:
    """Fit a temperature on one split and score the probabilities on another, with and without it.

    Args:
        run: a run directory, the folder of a saved model, or a published model.
        source: any images that ``vitrail.train`` takes, with the same classes.
        split: what is scored.
        fit_on: what the temperature is fitted on.
        batch_size: images of one forward pass.

    Raises:
        CheckpointError: there is no usable model.
        DataError: the data cannot be used, or a split is empty.
        ConfigError: the model does not classify images; or both splits are the same.
    """
    if split == fit_on:
        raise ConfigError(
            f"the temperature was to be fitted and scored on the same split, {split}",
            expected="two splits",
            remedy="Score on test and fit on validation",
        )
    loaded = load_any(run)
    if loaded.preprocessing.get("task", "classification") != "classification":
        raise ConfigError(
            f"{run} gives no probabilities of classes",
            expected="a run that was trained on images with a class each",
            remedy=other_use(loaded.preprocessing),
        )
    machine, trained = inspect_machine(), trained_experiment(run)
    precision = machine.precision if trained is None else trained.train.precision
    scored, fitted = open_scorings(run, loaded, source, (split, fit_on))
    model = loaded.model.to(machine.device)
    outputs = [
        _logits(scoring, model, len(loaded.class_names), precision, batch_size)
        for scoring in (scored, fitted)
    ]
    temperature = fit_temperature(*outputs[1])
    return Calibration(
        signature=scored.signature
        | {
            "samples": str(len(scored.source)),
            "temperature": f"fitted on {len(fitted.source)} images of {fit_on}",
            "precision": precision,
            "vitrail": __version__,
        },
        temperature=temperature,
        before=calibration_scores(*outputs[0]),
        after=calibration_scores(*outputs[0], temperature=temperature),
    )


def _logits(
    scoring: Scoring, model: nn.Module, num_classes: int, precision: Precision, batch_size: int | None
) -> tuple[Float[Tensor, "n classes"], Int[Tensor, " n"]]:
    if not len(scoring.source):
        raise DataError(
            "there is nothing to calibrate on, a split holds no sample",
            expected="images in both the split that is scored and the one that is fitted on",
            remedy="Name other splits with --split and --fit-on",
        )
    evaluator = LogitsEvaluator(num_classes)
    run_evaluator(
        evaluator,
        scoring.objective,
        model,
        scoring.source,
        batch_size=batch_size or scoring.batch_size,
        precision=precision,
    )
    return evaluator.outputs()
