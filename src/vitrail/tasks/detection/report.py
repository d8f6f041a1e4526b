"""The report of a detection run: one page with scores, and images with ground truth and predictions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image

from vitrail.core.errors import DataError
from vitrail.data.images import read_image
from vitrail.interpret.draw import COLOURS, DrawnBox, box_text, colour_of, draw_boxes, hex_colour
from vitrail.report.page import picture_uri, section, table
from vitrail.report.plots import INK, SOFT, inline_svg, line_plot, new_figure
from vitrail.report.sections import (
    History,
    RunRecord,
    confusion_table,
    headline,
    plots_in_row,
    training_section,
    write_run_page,
)
from vitrail.tasks.detection.dataset import BoxSplit
from vitrail.tasks.detection.detections import ImageBoxes
from vitrail.tasks.detection.errors import (
    FoundBox,
    ImageOutcome,
    count_errors,
    image_outcome,
    match_boxes,
)
from vitrail.tasks.detection.predictor import Detector
from vitrail.tasks.detection.scores import RECALLS, ClassDetection, DetectionTables

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_CONFUSION_TABLE = 30  # classes; a larger table would fill the page
MAX_CONFUSED_PAIRS = 12
LONGEST_PX = 560  # of a picture on the page, in which boxes are drawn
MAX_PARTS = 4  # drawn parts of the loss; plots have as many colours
WORST_NOTE = (
    "{shown} of the {wrong:,} images with an error, those with the most. First the ground truth, then the "
    "predictions; broken lines are errors: missed boxes, boxes of another class, and boxes where nothing is. "
    "Look here for wrong and missing annotations first."
)
TYPICAL_NOTE = "Images whose share of errors is near the median: typical, not flattering."
BEST_NOTE = "Images without an error, those with the most boxes first."
STYLE = Path(__file__).with_name("detection_report.css").read_text(encoding="utf-8")


@dataclass(frozen=True)
class ComparedImage:
    """An image with ground-truth and predicted boxes."""

    picture: Image.Image
    name: str
    """File name, or index in the data set."""
    outcome: ImageOutcome
    """The outcome of every box, in pixels of the picture."""


@dataclass(frozen=True, kw_only=True)
class DetectionReportInputs(RunRecord):
    """Everything that the page of a detection run shows."""

    worst: Sequence[ComparedImage] = ()
    typical: Sequence[ComparedImage] = ()
    """Images with about the median number of errors."""
    best: Sequence[ComparedImage] = ()
    set_prediction: Sequence[str] = ()
    """Sections of ``set_sections``."""


def write_detection_report(path: Path, inputs: DetectionReportInputs) -> None:
    """Write the page of a run, a single file that opens offline, replaced atomically.

    Raises:
        CheckpointError: the disk is full or not writable; a former page is unchanged.
    """
    tables = DetectionTables.from_tree(inputs.report.tables)
    names = inputs.report.class_names or tuple(str(label) for label in range(len(tables.per_class)))
    history = inputs.history()
    num_wrong = sum(bool(each.num_errors) for each in tables.images)
    worst_note = WORST_NOTE.format(shown=len(inputs.worst), wrong=num_wrong)
    parts = [
        _head(inputs, tables),
        _compared("Worst images", inputs.worst, names, worst_note),
        _compared("Typical images", inputs.typical, names, TYPICAL_NOTE),
        _compared("Best images", inputs.best, names, BEST_NOTE),
        _curves(tables, names),
        _per_class(tables, names),
        _confusion(tables, names),
        *inputs.set_prediction,
        _training(history),
    ]
    write_run_page(path, inputs, parts, style=STYLE)


def _head(inputs: DetectionReportInputs, tables: DetectionTables) -> str:
    scores = tables.scores
    entries = [
        (scores.ap, "AP", "mean over IoU thresholds 0.50 to 0.95"),
        (scores.ap50, "AP50", "at an IoU of 0.50"),
        (scores.ap75, "AP75", "at an IoU of 0.75"),
        (scores.ap_small, "AP small", "boxes below 32 x 32 pixels"),
        (scores.ap_medium, "AP medium", "boxes up to 96 x 96 pixels"),
        (scores.ap_large, "AP large", "larger boxes"),
        (scores.ar100, "AR", "average recall, up to 100 boxes an image"),
    ]
    shown = [(f"{value:.3f}", name, remark) for value, name, remark in entries if value is not None]
    at = f"at a confidence threshold of {tables.threshold:.2f}: {tables.threshold_origin}"
    shown += [(f"{tables.precision:.1%}", "precision", at), (f"{tables.recall:.1%}", "recall", at)]
    return headline(inputs, shown)


def _compared(title: str, images: Sequence[ComparedImage], names: Sequence[str], note: str) -> str:
    if not images:
        return ""
    figures = "".join(_figure(image, names) for image in images)
    return section(title, f'<div class="compared">{figures}</div>', note)


def _figure(image: ComparedImage, names: Sequence[str]) -> str:
    name = escape(image.name, quote=True)
    shown = ""
    for what, boxes in (("ground truth", image.outcome.true), ("predicted", image.outcome.found)):
        drawn = [
            DrawnBox(
                box.box,
                box.label,
                box_text(names[box.label], box.label, box.score if isinstance(box, FoundBox) else None),
                box.outcome in ("missed", "confused", "spurious"),
            )
            for box in boxes
        ]
        shown += (
            f'<div><img src="{_picture(image.picture, drawn)}" alt="{what} {name}" decoding="async">'
            f"<span>{what}: {len(drawn)}</span></div>"
        )
    errors = count_errors(image.outcome)
    counts = [f"{errors.correct} correct"] if errors.correct else []
    counts += [
        f'<span class="bad">{count} {what}</span>'
        for count, what in (
            (errors.missed, "missed"),
            (errors.confused, "of another class"),
            (errors.spurious, "where nothing is"),
        )
        if count
    ]
    return (
        f'<figure><div class="pair">{shown}</div>'
        f"<figcaption><b>{name}</b> {', '.join(counts) or 'nothing to find'}</figcaption></figure>"
    )


def _picture(picture: Image.Image, boxes: Sequence[DrawnBox]) -> str:
    """Draw boxes at display size, so that lines and texts stay readable."""
    scale = min(LONGEST_PX / max(picture.size), 1.0)
    small = picture.copy()
    small.thumbnail((LONGEST_PX, LONGEST_PX), Image.Resampling.LANCZOS)
    scaled = []
    for box in boxes:
        left, top, right, bottom = (edge * scale for edge in box.corners)
        scaled.append(box._replace(corners=(left, top, right, bottom)))
    return picture_uri(draw_boxes(small, scaled), longest=2 * LONGEST_PX)


def _curves(tables: DetectionTables, names: Sequence[str]) -> str:
    if not any(entry.precision for entry in tables.per_class):
        return ""
    plots = [
        precision_recall_plot("precision over recall at an IoU of 0.50", tables.per_class, names),
        threshold_plot("recall over the confidence threshold", tables.per_class, names, tables.threshold),
    ]
    note = (
        "First plot: precision over recall at an IoU of 0.50; the number is the AP50, the area below. "
        "Second plot: what a lower confidence threshold would find."
    )
    return section("Precision and recall", plots_in_row(plots), note)


def _per_class(tables: DetectionTables, names: Sequence[str]) -> str:
    rows = sorted(
        zip(names, tables.per_class, strict=True),
        key=lambda entry: (entry[1].ap is None, entry[1].ap or 0.0),
    )
    entries = [
        (
            name,
            f"{entry.num_boxes:,}",
            *(
                "none" if score is None else f"{score:.3f}"
                for score in (entry.ap, entry.ap50, entry.ap75, entry.ar100)
            ),
        )
        for name, entry in rows
    ]
    content = table(("class", "boxes", "AP", "AP50", "AP75", "AR"), entries, frozenset({1, 2, 3, 4, 5}))
    return section("Scores of each class", content, "The weakest class first; classes without boxes last.")


def _confusion(tables: DetectionTables, names: Sequence[str]) -> str:
    at = f"at a confidence threshold of {tables.threshold:.2f} and an IoU of 0.50"
    if len(names) <= MAX_CONFUSION_TABLE:
        content = confusion_table(
            tables.confusion, rows=(*names, "nothing there"), columns=(*names, "missed")
        )
        note = f"Rows are ground truth, columns predictions, {at}; shade is the share of the row."
        return section("Confusion", content, note)
    last = len(names)
    pairs = sorted(
        (-count, true, given)
        for true, row in enumerate(tables.confusion)
        for given, count in enumerate(row)
        if true != given and count
    )[:MAX_CONFUSED_PAIRS]
    rows = [
        (
            "nothing there" if true == last else names[true],
            "missed" if given == last else names[given],
            f"{-count:,}",
        )
        for count, true, given in pairs
    ]
    if not rows:
        return ""
    content = table(("ground truth", "predicted as", "boxes"), rows, frozenset({2}))
    return section("Most frequent errors", content, f"Counted {at}.")


def _training(history: History) -> str:
    further = []
    if history.ap50:
        curves = {"validation": history.ap50}
        further.append(
            line_plot("validation AP50 by step", curves, x_label="step", y_label="validation AP50")
        )
    parts = {name: curve for name, curve in history.parts.items() if name != "auxiliary"}  # of another scale
    parts = dict(list(parts.items())[:MAX_PARTS])
    if parts:
        further.append(
            line_plot("parts of the loss by step", parts, x_label="step", y_label="part of the loss")
        )
    return training_section(history, score=history.ap, score_name="validation AP", note="", further=further)


MAX_CURVES = len(COLOURS)  # classes with a colour of their own; more are drawn faintly, with their mean


def precision_recall_plot(name: str, classes: Sequence[ClassDetection], names: Sequence[str]) -> str:
    """Draw precision over recall at an IoU of 0.50, for each class that has boxes, and their mean."""
    figure, axes = new_figure("recall", "precision", size=(5.2, 3.6))
    known = [(label, entry) for label, entry in enumerate(classes) if entry.precision]
    curves = {label: (RECALLS, entry.precision) for label, entry in known}
    _draw_classes(axes, curves, {label: f"{names[label]} {entry.ap50:.2f}" for label, entry in known})
    if len(known) > 1:
        mean = np.mean([entry.precision for _, entry in known], axis=0)
        what = f"mean of {len(known)} classes {mean.mean():.2f}"
        axes.plot(RECALLS, mean, color=INK, linewidth=1.8, linestyle=(0, (4, 2)), label=what)
    return _finished(figure, axes, name, has_legend=bool(known))


def threshold_plot(
    name: str, classes: Sequence[ClassDetection], names: Sequence[str], threshold: float
) -> str:
    """Draw recall over the confidence threshold, for each class; the threshold that reports use is marked."""
    figure, axes = new_figure("confidence threshold", "recall", size=(5.2, 3.6))
    curves = {
        label: [
            (score, recall)
            for score, recall, precision in zip(entry.thresholds, RECALLS, entry.precision, strict=True)
            if precision > 0
        ]
        for label, entry in enumerate(classes)
        if entry.precision
    }
    reached = {label: tuple(zip(*points, strict=True)) for label, points in curves.items()}
    _draw_classes(axes, reached, dict(enumerate(names)))
    axes.axvline(threshold, color=INK, linewidth=1.2, linestyle=(0, (4, 2)), label=f"used: {threshold:.2f}")
    return _finished(figure, axes, name, has_legend=True)


def _draw_classes(
    axes: Axes, curves: Mapping[int, Sequence[Sequence[float]]], texts: Mapping[int, str]
) -> None:
    """Draw a curve, points along x and y, for each class; faintly and without a name if there are many."""
    import matplotlib.patheffects as effects

    is_few = len(curves) <= MAX_CURVES
    rim = [effects.withStroke(linewidth=2.8, foreground=SOFT)]  # light colours on a light page
    for label, curve in curves.items():
        if curve:
            axes.plot(
                *curve,
                color=hex_colour(colour_of(label)) if is_few else SOFT,
                alpha=1.0 if is_few else 0.35,
                linewidth=1.8 if is_few else 0.8,
                path_effects=rim if is_few else None,
                label=texts[label] if is_few else None,
            )


def _finished(figure: Figure, axes: Axes, name: str, *, has_legend: bool) -> str:
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.03)
    if has_legend:
        figure.legend(frameon=False, labelcolor=INK, loc="outside lower left", ncols=2, fontsize=9)
    return inline_svg(figure, name)


def compare_boxes(
    detector: Detector, split: BoxSplit, tables: DetectionTables, indices: Sequence[int]
) -> list[ComparedImage]:
    """Return images with ground truth and predictions; unreadable images are left out.

    Args:
        split: the images that were evaluated.
        tables: of the evaluation; its worst images are not predicted again.
        indices: in the split, as from ``typical_images`` and ``best_images``.
    """
    known = {outcome.index: outcome for outcome in tables.worst}
    compared = []
    for index in indices:
        name = split.names[index]
        try:
            picture = read_image(split.images[index], name=name)
        except DataError:
            continue
        outcome = known.get(index) or _look(detector, split, index, tables.threshold)
        compared.append(ComparedImage(picture=picture, name=name, outcome=outcome))
    return compared


def _look(detector: Detector, split: BoxSplit, index: int, threshold: float) -> ImageOutcome:
    pixels, size = detector.read(split.images[index], split.names[index])
    found = detector.in_pixels(detector.find([pixels])[0], size, split.names[index])
    image = ImageBoxes(
        index=index,
        boxes_xyxy=torch.tensor(split.boxes[index]),
        labels=torch.tensor(split.labels[index]),
        is_crowd=torch.tensor(split.is_crowd[index]),
        found_xyxy=found.boxes_xyxy,
        found_labels=found.labels,
        found_scores=found.scores,
    )
    return image_outcome(match_boxes(image), threshold)


def typical_images(tables: DetectionTables, count: int) -> list[int]:
    """Return the indices of images whose share of errors is nearest to the median.

    Images without ground truth and predictions are left out.
    """
    shares = {
        entry.index: entry.num_errors / (entry.correct + entry.num_errors)
        for entry in tables.images
        if entry.correct + entry.num_errors
    }
    median = statistics.median(shares.values()) if shares else 0.0
    return sorted(shares, key=lambda index: (abs(shares[index] - median), index))[:count]


def best_images(tables: DetectionTables, count: int) -> list[int]:
    """Return the indices of images without an error, those with the most boxes first."""
    right = [entry for entry in tables.images if entry.correct and not entry.num_errors]
    ranked = sorted(right, key=lambda entry: (-entry.correct, entry.index))
    return [entry.index for entry in ranked[:count]]
