"""The report of a detection run: one page with scores, and images with ground truth and predictions."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitrail.core.errors import DataError
from vitrail.data.images import read_image
from vitrail.interpret.draw import COLOURS, Corners, DrawnBox, box_text, colour_of, draw_boxes, hex_colour
from vitrail.report.history import History
from vitrail.report.page import picture_uri, section, table
from vitrail.report.plots import INK, SOFT, inline_svg, line_plot, new_figure
from vitrail.report.sections import (
    RunRecord,
    confusion_table,
    headline,
    plots_in_row,
    training_section,
    write_run_page,
)
from vitrail.tasks.detection.dataset import BoxSplit
from vitrail.tasks.detection.detections import ImageBoxes
from vitrail.tasks.detection.errors import ImageErrors, ImageOutcome, image_outcome, match_boxes
from vitrail.tasks.detection.predictor import Detector
from vitrail.tasks.detection.scores import RECALLS, ClassDetection, DetectionTables

MAX_CONFUSION_TABLE = 30  # classes; a larger table would fill the page
MAX_CONFUSED_PAIRS = 12
LONGEST_PX = 560  # of a picture on the page, in which boxes are drawn
MAX_PARTS = 4  # drawn parts of the loss; plots have as many colours
WORST_NOTE = (
    "{shown} of the {wrong:,} images with an error, those with the most. First the boxes in the data, then "
    "those found; broken lines are errors: what was missed or predicted as another class, and what was found "
    "and is wrong. Look here for wrong and missing boxes in the data first."
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


def write_detection_report(path: Path, inputs: DetectionReportInputs) -> None:
    """Write the page of a run, a single file that opens offline, replaced atomically.

    Raises:
        CheckpointError: the disk is full or not writable; a former page is unchanged.
    """
    tables = DetectionTables.from_tree(inputs.report.tables)
    names = inputs.report.class_names or tuple(str(label) for label in range(len(tables.per_class)))
    history = inputs.history()
    parts = [
        _head(inputs, tables),
        _compared("Worst images", inputs.worst, names, _worst_note(tables, len(inputs.worst))),
        _compared("Typical images", inputs.typical, names, TYPICAL_NOTE),
        _compared("Best images", inputs.best, names, BEST_NOTE),
        _curves(tables, names),
        _per_class(tables, names),
        _confusion(tables, names),
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


def _worst_note(tables: DetectionTables, num_shown: int) -> str:
    return WORST_NOTE.format(shown=num_shown, wrong=sum(bool(each.num_errors) for each in tables.images))


def _compared(title: str, images: Sequence[ComparedImage], names: Sequence[str], note: str) -> str:
    if not images:
        return ""
    figures = "".join(_figure(image, names) for image in images)
    return section(title, f'<div class="compared">{figures}</div>', note)


def _figure(image: ComparedImage, names: Sequence[str]) -> str:
    outcome = image.outcome
    true = [
        _drawn(box.box, names[box.label], box.label, None, box.outcome in ("missed", "confused"))
        for box in outcome.true
    ]
    found = [
        _drawn(box.box, names[box.label], box.label, box.score, box.outcome in ("spurious", "confused"))
        for box in outcome.found
    ]
    name = escape(image.name, quote=True)
    shown = "".join(
        f'<div><img src="{_picture(image.picture, boxes)}" alt="{what} {name}" decoding="async">'
        f"<span>{what}: {len(boxes)}</span></div>"
        for what, boxes in (("in the data", true), ("found", found))
    )
    counts = {
        "correct": [box.outcome for box in outcome.true].count("correct"),
        "missed": [box.outcome for box in outcome.true].count("missed"),
        "of another class": [box.outcome for box in outcome.true].count("confused"),
        "where nothing is": [box.outcome for box in outcome.found].count("spurious"),
    }
    told = ", ".join(
        f"{count} {what}" if what == "correct" else f'<span class="bad">{count} {what}</span>'
        for what, count in counts.items()
        if count
    )
    return (
        f'<figure><div class="pair">{shown}</div>'
        f"<figcaption><b>{name}</b> {told or 'nothing to find'}</figcaption></figure>"
    )


def _drawn(corners: Corners, name: str, label: int, score: float | None, is_wrong: bool) -> DrawnBox:
    return DrawnBox(corners, label, box_text(name, label, score), is_wrong)


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
        "The first plot: which share of the boxes found is right when so many are found, at an IoU of 0.50; "
        "the number is the AP50, the area below. The second one: what lower scores would find."
    )
    return section("Precision and recall", plots_in_row(plots), note)


def _per_class(tables: DetectionTables, names: Sequence[str]) -> str:
    rows = sorted(
        zip(names, tables.per_class, strict=True),
        key=lambda entry: (entry[1].ap is None, entry[1].ap or 0.0),
    )
    cells = [
        (name, f"{entry.num_boxes:,}", *map(_number, (entry.ap, entry.ap50, entry.ap75, entry.ar100)))
        for name, entry in rows
    ]
    content = table(("class", "boxes", "AP", "AP50", "AP75", "AR"), cells, frozenset({1, 2, 3, 4, 5}))
    return section("Scores of each class", content, "The weakest class first; classes without boxes last.")


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def _confusion(tables: DetectionTables, names: Sequence[str]) -> str:
    at = f"at a confidence threshold of {tables.threshold:.2f} and an IoU of 0.50"
    if len(names) <= MAX_CONFUSION_TABLE:
        content = confusion_table(
            tables.confusion, rows=(*names, "nothing there"), columns=(*names, "missed")
        )
        note = f"Rows are classes in the data, columns what was found, {at}; shade is the share of the row."
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
    content = table(("in the data", "found as", "boxes"), rows, frozenset({2}))
    return section("Most frequent errors", content, f"Counted {at}.")


def _training(history: History) -> str:
    further = []
    if history.ap50:
        plot = line_plot(
            "validation AP50 by step",
            {"validation": history.ap50},
            x_label="step",
            y_label="validation AP50",
        )
        further.append(plot)
    parts = {name: curve for name, curve in history.parts.items() if name != "auxiliary"}  # of another scale
    parts = dict(list(parts.items())[:MAX_PARTS])
    if parts:
        further.append(
            line_plot("parts of the loss by step", parts, x_label="step", y_label="part of the loss")
        )
    return training_section(history, score=history.ap, score_name="validation AP", note="", further=further)


MAX_CURVES = len(COLOURS)  # classes with a colour of their own; more are drawn faintly, with their mean


def precision_recall_plot(name: str, classes: Sequence[ClassDetection], names: Sequence[str]) -> str:
    """Draw precision over recall at an IoU of 0.50, for each class that has boxes, and their mean.

    Args:
        name: alternative text of the picture.
        classes: curves of each class.
        names: of the classes.
    """
    import matplotlib.patheffects as effects

    figure, axes = new_figure("recall", "precision", size=(5.2, 3.6))
    known = [(label, entry) for label, entry in enumerate(classes) if entry.precision]
    is_few = len(known) <= MAX_CURVES
    rim = [effects.withStroke(linewidth=2.8, foreground=SOFT)]  # light colours on a light page
    for label, entry in known:
        axes.plot(
            RECALLS,
            entry.precision,
            color=hex_colour(colour_of(label)) if is_few else SOFT,
            alpha=1.0 if is_few else 0.35,
            linewidth=1.8 if is_few else 0.8,
            path_effects=rim if is_few else None,
            label=f"{names[label]} {entry.ap50:.2f}" if is_few else None,
        )
    if len(known) > 1:
        mean = np.mean([entry.precision for _, entry in known], axis=0)
        what = f"mean of {len(known)} classes {mean.mean():.2f}"
        axes.plot(RECALLS, mean, color=INK, linewidth=1.8, linestyle=(0, (4, 2)), label=what)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.03)
    if known:
        figure.legend(frameon=False, labelcolor=INK, loc="outside lower left", ncols=2, fontsize=9)
    return inline_svg(figure, name)


def threshold_plot(
    name: str, classes: Sequence[ClassDetection], names: Sequence[str], threshold: float
) -> str:
    """Draw recall over the confidence threshold, for each class.

    Args:
        name: alternative text of the picture.
        classes: curves of each class.
        names: of the classes.
        threshold: the one that reports use, marked.
    """
    import matplotlib.patheffects as effects

    figure, axes = new_figure("confidence threshold", "recall", size=(5.2, 3.6))
    known = [(label, entry) for label, entry in enumerate(classes) if entry.precision]
    is_few = len(known) <= MAX_CURVES
    rim = [effects.withStroke(linewidth=2.8, foreground=SOFT)]
    for label, entry in known:
        reached = [
            (score, recall)
            for score, recall, precision in zip(entry.thresholds, RECALLS, entry.precision, strict=True)
            if precision > 0
        ]
        if reached:
            scores, recalls = zip(*reached, strict=True)
            axes.plot(
                scores,
                recalls,
                color=hex_colour(colour_of(label)) if is_few else SOFT,
                alpha=1.0 if is_few else 0.35,
                linewidth=1.8 if is_few else 0.8,
                path_effects=rim if is_few else None,
                label=names[label] if is_few else None,
            )
    axes.axvline(threshold, color=INK, linewidth=1.2, linestyle=(0, (4, 2)), label=f"used: {threshold:.2f}")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.03)
    figure.legend(frameon=False, labelcolor=INK, loc="outside lower left", ncols=2, fontsize=9)
    return inline_svg(figure, name)


def compare_boxes(
    detector: Detector, split: BoxSplit, tables: DetectionTables, indices: Sequence[int]
) -> list[ComparedImage]:
    """Return images with ground truth and predictions; unreadable images are left out.

    Args:
        split: the images that were evaluated.
        tables: of the evaluation; its worst images are not predicted again.
        indices: in the split, as those of ``tasks.detection.examples`` are.
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
    known = [entry for entry in tables.images if _num_boxes(entry)]
    if not known:
        return []
    median = statistics.median(map(_share_wrong, known))
    ranked = sorted(known, key=lambda entry: (abs(_share_wrong(entry) - median), entry.index))
    return [entry.index for entry in ranked[:count]]


def best_images(tables: DetectionTables, count: int) -> list[int]:
    """Return the indices of images without an error, those with the most boxes first."""
    right = [entry for entry in tables.images if entry.correct and not entry.num_errors]
    ranked = sorted(right, key=lambda entry: (-entry.correct, entry.index))
    return [entry.index for entry in ranked[:count]]


def _num_boxes(entry: ImageErrors) -> int:
    return entry.correct + entry.num_errors


def _share_wrong(entry: ImageErrors) -> float:
    return entry.num_errors / _num_boxes(entry)
