"""Calibration of a trained classifier, with and without temperature scaling."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail import __version__
from vitrail.core.config import Config
from vitrail.core.errors import ConfigError, DataError
from vitrail.report.page import conclusions, section, table
from vitrail.studies.panels import Panel, join_panels, write_panels
from vitrail.tasks.classification.objective import LogitsEvaluator
from vitrail.tasks.classification.scores import (
    CalibrationScores,
    calibration_scores,
    draw_reliability,
    fit_temperature,
)
from vitrail.tasks.contract import Scoring
from vitrail.tasks.evaluating import load_classifier, open_scoring
from vitrail.train.evaluate import join_signature, run_evaluator
from vitrail.train.machine import inspect_machine

HEADER = ("", "as it is", "temperature")
NOTE = (
    "Bars below the diagonal are overconfident predictions; the fewer images, the fainter the bar. One "
    "temperature for all logits changes no prediction: the accuracy stays."
)


TEXTS = {
    "accuracy": "accuracy",
    "confidence": "mean confidence",
    "calibration_error": "expected calibration error",
    "max_calibration_error": "maximum calibration error",
    "brier": "Brier score",
    "nll": "log loss",
}


def score_rows(before: CalibrationScores, after: CalibrationScores) -> list[list[str]]:
    """Return the rows: a score, its value without and with the temperature."""
    return [
        [text, *(f"{getattr(scores, name):.4f}" for scores in (before, after))]
        for name, text in TEXTS.items()
    ]


class Calibration(Config):
    """Calibration of a model on one split, without and with temperature scaling."""

    signature: dict[str, str]
    """Results compare only where these agree."""
    temperature: float
    """Divisor of the logits, fitted on another split."""
    before: CalibrationScores
    """Without temperature."""
    after: CalibrationScores
    """With the temperature."""


def write_calibration(path: Path, found: Calibration, *, title: str) -> None:
    """Write a page with reliability diagrams and table, or the diagrams alone as .png, .svg or .pdf.

    Raises: as ``write_panels``.
    """
    both = {"as it is": found.before, f"temperature {found.temperature:.3f}": found.after}
    panels = [
        Panel(
            f"reliability {name}",
            f"{name}: calibration error {scores.calibration_error:.4f}",
            ("confidence", "accuracy"),
            partial(draw_reliability, scores.bins),
        )
        for name, scores in both.items()
    ]
    before, after = found.before, found.after
    lean = "over" if before.confidence > before.accuracy else "under"
    says = (
        f"The model is {lean}confident: confidence {before.confidence:.1%}, accuracy {before.accuracy:.1%}.",
        f"The temperature {found.temperature:.3f} brings the expected calibration error from "
        f"{before.calibration_error:.1%} to {after.calibration_error:.1%}.",
    )
    body = conclusions(says) + section("Reliability", join_panels(panels), NOTE)
    body += section("Scores", table(HEADER, score_rows(before, after), frozenset((1, 2))))
    write_panels(path, panels, title=title, subtitle=join_signature(found.signature), body=body)


def calibrate(
    run: str | Path, source: str | Path, *, split: str = "test", fit_on: str = "validation"
) -> Calibration:
    """Fit a temperature on one split, and score calibration on another with and without it.

    Args:
        run: a run directory, the folder of a saved model, or a published model.
        source: any images that ``vitrail.train`` takes, with the same classes.
        split: the split to score.
        fit_on: the split to fit the temperature on.

    Raises: as ``load_classifier`` and ``open_scoring``; ConfigError if both splits are the same.
    """
    if split == fit_on:
        raise ConfigError(
            f"the temperature was to be fitted and scored on the same split, {split}",
            expected="two splits",
            remedy="Score on test and fit on validation",
        )
    loaded = load_classifier(run)
    scored, fitted = open_scoring(run, loaded, source, split, fit_on)
    model = loaded.model.to(inspect_machine().device)
    outputs = [_logits(scoring, model, len(loaded.class_names)) for scoring in (scored, fitted)]
    temperature = fit_temperature(*outputs[1])
    return Calibration(
        signature=scored.signature
        | {
            "samples": str(len(scored.source)),
            "temperature": f"fitted on {len(fitted.source)} images of {fit_on}",
            "precision": "float32",
            "vitrail": __version__,
        },
        temperature=temperature,
        before=calibration_scores(*outputs[0]),
        after=calibration_scores(*outputs[0], temperature=temperature),
    )


def _logits(
    scoring: Scoring, model: nn.Module, num_classes: int
) -> tuple[Float[Tensor, "n classes"], Int[Tensor, " n"]]:
    if not len(scoring.source):
        raise DataError(
            "there is nothing to calibrate on, a split holds no sample",
            expected="images in both the split that is scored and the one that is fitted on",
            remedy="Name other splits with --split and --fit-on",
        )
    evaluator = LogitsEvaluator(num_classes)
    run_evaluator(evaluator, scoring.objective, model, scoring.source, batch_size=scoring.batch_size)
    return evaluator.outputs()
