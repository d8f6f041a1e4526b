"""Calibration of a trained classifier, with and without temperature scaling."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail import __version__
from vitrail.core.config import Config
from vitrail.core.durable import atomic_write
from vitrail.core.errors import ConfigError, DataError
from vitrail.report.page import section, table, write_page
from vitrail.report.pictures import check_picture_path, to_png, white_figure
from vitrail.report.plots import COLOURS
from vitrail.tasks.classification.objective import LogitsEvaluator
from vitrail.tasks.classification.scores import (
    CalibrationScores,
    calibration_scores,
    fit_temperature,
    reliability_plot,
)
from vitrail.tasks.contract import Scoring
from vitrail.tasks.evaluating import load_classifier, open_scorings, trained_experiment
from vitrail.train.evaluate import run_evaluator
from vitrail.train.machine import Precision, inspect_machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE = ".pair{display:flex;flex-wrap:wrap;gap:18px}.pair svg{max-width:100%;height:auto}"
HEADER = ("", "as it is", "temperature")
NOTE = (
    "Bars below the diagonal are overconfident predictions; the fewer images, the fainter the bar. One "
    "temperature for all logits changes no prediction: the accuracy stays."
)


def score_rows(before: CalibrationScores, after: CalibrationScores) -> list[list[str]]:
    """Return the rows: a score, its value without and with the temperature."""
    names = {
        "accuracy": "accuracy",
        "confidence": "mean confidence",
        "calibration_error": "expected calibration error",
        "max_calibration_error": "largest calibration error",
        "brier": "Brier score",
        "nll": "log loss",
    }
    return [
        [text, f"{getattr(before, name):.4f}", f"{getattr(after, name):.4f}"] for name, text in names.items()
    ]


def write_calibration(
    path: Path,
    before: CalibrationScores,
    after: CalibrationScores,
    *,
    temperature: float,
    title: str,
    signature: str,
) -> None:
    """Write a page with reliability diagrams and table, or the diagrams alone if the name ends in .png.

    Args:
        before: scores without temperature.
        after: scores with the temperature.
        signature: on one line.

    Raises:
        ConfigError: the name ends otherwise.
        CheckpointError: the disk is full or not writable; a former file is as it was.
    """
    check_picture_path(path)
    panels = (("as it is", before), (f"temperature {temperature:.3f}", after))
    if path.suffix.lower() == ".png":
        atomic_write(path, _png(panels, title=title))
        return
    plots = "".join(
        f"<figure>{reliability_plot(f'reliability {name}', scores.bins)}"
        f'<figcaption class="soft small">{escape(name)}: calibration error '
        f"{scores.calibration_error:.4f}</figcaption></figure>"
        for name, scores in panels
    )
    body = (
        f'<h1>{escape(title)}</h1><p class="soft small">{escape(signature)}</p>'
        + section("Reliability", f'<div class="pair">{plots}</div>', NOTE)
        + section("Scores", table(HEADER, score_rows(before, after), frozenset((1, 2))))
    )
    write_page(path, title=title, body=body, style=STYLE)


def _png(panels: Sequence[tuple[str, CalibrationScores]], *, title: str) -> bytes:
    figure = white_figure(8.4, 4.0, title)
    for axes, (name, scores) in zip(figure.subplots(1, len(panels), sharey=True), panels, strict=True):
        _draw(axes, scores)
        axes.set_title(f"{name}: calibration error {scores.calibration_error:.4f}", fontsize=9)
    return to_png(figure)


def _draw(axes: Axes, scores: CalibrationScores) -> None:
    """Plot accuracy against confidence; the opacity shows how many images each bin has."""
    filled = [entry for entry in scores.bins if entry.count]
    most = max(entry.count for entry in filled)
    axes.plot([0, 1], [0, 1], color="#777777", linewidth=1, linestyle="--", label="calibrated")
    for entry in filled:
        axes.bar(
            (entry.lower + entry.upper) / 2,
            entry.accuracy,
            width=(entry.upper - entry.lower) * 0.92,
            color=COLOURS[0],
            alpha=0.25 + 0.65 * (entry.count / most) ** 0.5,
        )
    axes.plot(
        [entry.confidence for entry in filled],
        [entry.accuracy for entry in filled],
        color=COLOURS[1],
        marker="o",
        markersize=4,
        linewidth=0,
        label="mean of the bin",
    )
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("confidence")
    axes.set_ylabel("accuracy")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="upper left")


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

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


def calibrate(
    run: str | Path,
    source: str | Path,
    *,
    split: str = "test",
    fit_on: str = "validation",
    batch_size: int | None = None,
) -> Calibration:
    """Fit a temperature on one split, and score calibration on another with and without it.

    Args:
        run: a run directory, the folder of a saved model, or a published model.
        source: any images that ``vitrail.train`` takes, with the same classes.
        split: the split to score.
        fit_on: the split to fit the temperature on.

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
    loaded = load_classifier(run)
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
