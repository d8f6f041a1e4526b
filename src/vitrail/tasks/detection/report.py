"""The report of a detection run: one page with scores, and images with ground truth and predictions."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from vitrail.core.errors import DataError
from vitrail.data.findings import not_found, number_of
from vitrail.data.images import read_image
from vitrail.interpret.draw import COLOURS, DrawnBox, box_text, colour_of, draw_boxes, hex_colour
from vitrail.interpret.viewer.picture import on_picture
from vitrail.report.page import picture_uri, section, table
from vitrail.report.plots import INK, SOFT, Curve, inline_svg, line_plot, new_figure
from vitrail.report.sections import (
    History,
    RunRecord,
    confusion_table,
    headline,
    plots_in_row,
    training_section,
    write_run_page,
)
from vitrail.tasks.contract import Diagnosis
from vitrail.tasks.detection.dataset import BoxSplit
from vitrail.tasks.detection.errors import FoundBox, ImageOutcome, count_errors, image_outcome, match_boxes
from vitrail.tasks.detection.objective import DetectionObjective
from vitrail.tasks.detection.predictor import Detector
from vitrail.tasks.detection.samples import BoxSource
from vitrail.tasks.detection.scores import RECALLS, DetectionTables
from vitrail.train.evaluate import Report

MAX_CONFUSION_TABLE = 30  # classes; a larger table would fill the page
MAX_CONFUSED_PAIRS = 12
LONGEST_PX = 560  # of a picture on the page, in which boxes are drawn
MAX_CURVES = len(COLOURS)  # classes with a colour of their own
TOP = 1.03  # of plots of shares
LEAST_AP = 0.01  # AP50 below which hardly anything is found
MAX_PARTS = 4  # drawn parts of the loss; plots have as many colours
NOTES = {
    "worst": "{shown} of the {wrong:,} images with an error, those with the most. First the ground truth, "
    "then the predictions; broken lines are errors: missed boxes, boxes of another class, and boxes found "
    "twice or where nothing is. Look here for wrong and missing annotations first.",
    "typical": "Images whose share of errors is near the median: typical, not flattering.",
    "best": "Images without an error, those with the most boxes first.",
}
STYLE = Path(__file__).with_name("detection_report.css").read_text(encoding="utf-8")


class ComparedImage(NamedTuple):
    """An image with ground-truth and predicted boxes."""

    picture: Image.Image
    name: str
    """File name, or index in the data set."""
    outcome: ImageOutcome
    """The outcome of every box, in pixels of the picture."""


def write_detection_report(
    path: Path,
    record: RunRecord,
    compared: Mapping[str, Sequence[ComparedImage]],
    further: Iterable[str] = (),
) -> None:
    """Write the page of a run, a single file that opens offline, replaced atomically.

    Args:
        compared: images by kind: the worst, typical and best ones.
        further: sections before that of the training.

    Raises:
        CheckpointError: the disk is full or not writable; a former page is unchanged.
    """
    tables = DetectionTables.from_tree(record.report.tables)
    names = record.report.class_names or tuple(str(label) for label in range(len(tables.per_class)))
    num_wrong = sum(bool(each.num_errors) for each in tables.images)
    parts = [
        _head(record, tables),
        *(_compared(kind, images, names, num_wrong) for kind, images in compared.items() if images),
        _curves(tables, names),
        _per_class(tables, names),
        _confusion(tables, names),
        *further,
        _training(record.history()),
    ]
    write_run_page(path, record, parts, style=STYLE)


def conclude_boxes(report: Report) -> Diagnosis:
    """Say how many boxes are found, and which classes never are."""
    tables = DetectionTables.from_tree(report.tables)
    ap50, at = tables.scores.ap50 or 0.0, f"at a confidence threshold of {tables.threshold:.2f}"
    rows = [row for row in zip(report.class_names, tables.per_class, strict=True) if row[1].num_boxes]
    never = [name for name, row in rows if (row.ap50 or 0.0) < LEAST_AP]
    problems = not_found(never, len(rows), "hardly ever found")
    if ap50 < LEAST_AP:
        problems = [f"Hardly any true box is found: AP50 is {ap50:.3f}."]
    found = f"{at}, {tables.recall:.0%} of the true boxes are found"
    right = f"{tables.precision:.0%} of the predicted boxes are right"
    return Diagnosis(
        f"AP50 {ap50:.3f} on {number_of(len(tables.images), 'image')}; {found}, and {right}.",
        tuple(problems),
    )


def _head(record: RunRecord, tables: DetectionTables) -> str:
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
    return headline(record, shown)


def _compared(kind: str, images: Sequence[ComparedImage], names: Sequence[str], num_wrong: int) -> str:
    figures = "".join(_figure(image, names) for image in images)
    note = NOTES[kind].format(shown=len(images), wrong=num_wrong)
    return section(f"{kind.capitalize()} images", f'<div class="compared">{figures}</div>', note)


def _figure(image: ComparedImage, names: Sequence[str]) -> str:
    name = escape(image.name, quote=True)
    shown = ""
    for what, boxes in (("ground truth", image.outcome.true), ("predicted", image.outcome.found)):
        drawn = []
        for box in boxes:
            text = box_text(names[box.label], box.label, box.score if isinstance(box, FoundBox) else None)
            is_wrong = box.outcome in ("missed", "confused", "spurious")
            drawn.append(DrawnBox(box.box, box.label, text, is_wrong))
        shown += (
            f'<div><img src="{_picture(image.picture, drawn)}" alt="{what} {name}" decoding="async">'
            f"<span>{what}: {len(drawn)}</span></div>"
        )
    errors = count_errors(image.outcome)
    wrong = {
        "missed": errors.missed,
        "of another class": errors.confused,
        "found twice or where nothing is": errors.spurious,
    }
    counts = [f"{errors.correct} correct"] if errors.correct else []
    counts += [f'<span class="bad">{count} {what}</span>' for what, count in wrong.items() if count]
    return (
        f'<figure><div class="pair">{shown}</div>'
        f"<figcaption><b>{name}</b> {', '.join(counts) or 'nothing to find'}</figcaption></figure>"
    )


def _picture(picture: Image.Image, boxes: Sequence[DrawnBox]) -> str:
    """Draw boxes at display size, so that lines and texts stay readable."""
    scale = min(LONGEST_PX / max(picture.size), 1.0)
    small = picture.copy()
    small.thumbnail((LONGEST_PX, LONGEST_PX), Image.Resampling.LANCZOS)
    scaled = [on_picture(box, (scale, scale)) for box in boxes]
    return picture_uri(draw_boxes(small, scaled), longest=2 * LONGEST_PX)


def _curves(tables: DetectionTables, names: Sequence[str]) -> str:
    """Plot precision over recall at an IoU of 0.50, and recall over the confidence threshold."""
    known = {label: entry for label, entry in enumerate(tables.per_class) if entry.precision}
    if not known:
        return ""
    precision = {label: (RECALLS, entry.precision) for label, entry in known.items()}
    mean = np.mean([entry.precision for entry in known.values()], axis=0)
    reached: dict[int, Curve] = {}
    for label, entry in known.items():
        points = zip(entry.thresholds, RECALLS, entry.precision, strict=True)
        if used := [(score, recall) for score, recall, value in points if value > 0]:
            scores, recalls = zip(*used, strict=True)
            reached[label] = (scores, recalls)
    plots = [
        _plot_classes(
            ("recall", "precision"),
            precision,
            {label: f"{names[label]} {entry.ap50:.2f}" for label, entry in known.items()},
            {f"mean of {len(known)} classes {mean.mean():.2f}": (RECALLS, mean.tolist())}
            if len(known) > 1
            else {},
        ),
        _plot_classes(
            ("confidence threshold", "recall"),
            reached,
            dict(enumerate(names)),
            {f"used: {tables.threshold:.2f}": ((tables.threshold, tables.threshold), (0, TOP))},
        ),
    ]
    note = (
        "First plot: precision over recall at an IoU of 0.50; the number is the AP50, the area below. "
        "Second plot: what a lower confidence threshold would find."
    )
    return section("Precision and recall", plots_in_row(plots), note)


def _plot_classes(
    labels: tuple[str, str],
    curves: Mapping[int, Curve],
    texts: Mapping[int, str],
    dashed: Mapping[str, Curve],
) -> str:
    """Draw a curve for each class, faintly and without a name if there are many, and dashed lines."""
    import matplotlib.patheffects as effects

    figure, axes = new_figure(*labels, size=(5.2, 3.6))
    rim = [effects.withStroke(linewidth=2.8, foreground=SOFT)]  # light colours on a light page
    for label, curve in curves.items():
        if len(curves) > MAX_CURVES:
            axes.plot(*curve, color=SOFT, alpha=0.35, linewidth=0.8)
        else:
            colour = hex_colour(colour_of(label))
            axes.plot(*curve, color=colour, linewidth=1.8, path_effects=rim, label=texts[label])
    for text, line in dashed.items():
        axes.plot(*line, color=INK, linewidth=1.5, linestyle=(0, (4, 2)), label=text)
    axes.set(xlim=(0, 1), ylim=(0, TOP))
    figure.legend(frameon=False, labelcolor=INK, loc="outside lower left", ncols=2, fontsize=9)
    return inline_svg(figure, f"{labels[1]} over {labels[0]}")


def _per_class(tables: DetectionTables, names: Sequence[str]) -> str:
    rows = sorted(
        zip(names, tables.per_class, strict=True), key=lambda row: (row[1].ap is None, row[1].ap or 0)
    )
    entries = []
    for name, row in rows:
        scores = (
            "none" if score is None else f"{score:.3f}" for score in (row.ap, row.ap50, row.ap75, row.ar100)
        )
        entries.append((name, f"{row.num_boxes:,}", *scores))
    content = table(("class", "boxes", "AP", "AP50", "AP75", "AR"), entries, frozenset(range(1, 6)))
    return section("Scores of each class", content, "The weakest class first; classes without boxes last.")


def _confusion(tables: DetectionTables, names: Sequence[str]) -> str:
    at = f"at a confidence threshold of {tables.threshold:.2f} and an IoU of 0.50"
    if len(names) <= MAX_CONFUSION_TABLE:
        content = confusion_table(
            tables.confusion, rows=(*names, "nothing there"), columns=(*names, "missed")
        )
        note = f"Rows are ground truth, columns predictions, {at}; shade is the share of the row."
        return section("Confusion", content, note)
    pairs = sorted(
        (-count, true, given)
        for true, row in enumerate(tables.confusion)
        for given, count in enumerate(row)
        if true != given and count
    )[:MAX_CONFUSED_PAIRS]
    if not pairs:
        return ""
    trues, predictions = (*names, "nothing there"), (*names, "missed")
    rows = [(trues[true], predictions[given], f"{-count:,}") for count, true, given in pairs]
    content = table(("ground truth", "predicted as", "boxes"), rows, frozenset({2}))
    return section("Most frequent errors", content, f"Counted {at}.")


def _training(history: History) -> str:
    # The auxiliary outputs' loss is of another scale.
    losses = [(name, curve) for name, curve in history.parts.items() if name != "auxiliary"]
    validation = {"validation": history.curves["ap50"]} if "ap50" in history.curves else {}
    further = [
        line_plot(f"{name} by step", curves, x_label="step", y_label=label)
        for name, label, curves in (
            ("validation AP50", "validation AP50", validation),
            ("parts of the loss", "part of the loss", dict(losses[:MAX_PARTS])),
        )
        if curves
    ]
    return training_section(history, score="ap", score_name="validation AP", note="", further=further)


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
    source = BoxSource(split, detector.preprocessing)
    scoring, number = detector.config.scoring, len(detector.class_names)
    objective = DetectionObjective(number, detector.preprocessing, scoring=scoring)
    compared = []
    for index in indices:
        name = split.names[index]
        try:
            picture = read_image(split.images[index], name=name)
        except DataError:
            continue
        if index not in known:
            evaluator = objective.evaluator()
            batch = objective.collate([source.load(index, None)], None).to(detector.device)
            with torch.inference_mode():
                evaluator.update(detector.model, batch)
            (image,) = evaluator.images_in_order()
            known[index] = image_outcome(match_boxes(image), tables.threshold)
        compared.append(ComparedImage(picture=picture, name=name, outcome=known[index]))
    return compared


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
