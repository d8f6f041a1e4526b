"""Pictures of a set predictor: its object queries, its decoder blocks, its matching and its attention."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from PIL import Image, ImageDraw
from torch import Tensor

from vitrail.core.boxes import box_iou, cxcywh_to_xyxy
from vitrail.core.errors import DataError
from vitrail.interpret.draw import DrawnBox, box_text, colour_of, draw_boxes, side_by_side, to_picture
from vitrail.models.contract import BoxTargets, DetectionOutput, class_scores
from vitrail.report.page import picture_uri, section, table
from vitrail.report.plots import COLOURS, INK, SOFT, inline_svg, line_plot
from vitrail.report.sections import plots_in_row
from vitrail.tasks.contract import Parts
from vitrail.tasks.detection.detections import ImageBoxes
from vitrail.tasks.detection.explanation import explain_boxes
from vitrail.tasks.detection.losses import NO_BOX, assign, matching_costs
from vitrail.tasks.detection.objective import DetectionEvaluator, DetectionObjective
from vitrail.tasks.detection.predictor import Detector
from vitrail.tasks.detection.samples import BoxSource
from vitrail.tasks.detection.scores import coco_scores

MAX_IMAGES, BATCH = 100, 16  # of the test split
MAX_QUERIES, COLUMNS = 20, 5  # Carion et al. 2020, figure 7
SMALL_SIDE = 0.25  # of the image: boxes of less area than its square are small
NMS_IOU = 0.5
GAP_PX, POINT_PX = 60, 3
LONGEST_PX = 1400  # of a picture on the page
QUERIES_NOTE = (
    "Centres of the boxes that each query predicts in {count} test images (Carion et al. 2020, "
    "figure 7). Green: small; orange: wide; blue: tall. Percent of the images in which it finds an object."
)
BLOCKS_NOTE = (
    "Scores of {count} test images by decoder block (Carion et al. 2020, figure 4). Early blocks predict "
    "objects twice, so that non-maximum suppression (NMS) helps; after long training the last one needs none."
)
MATCHING_NOTE = (
    "The assignment of least cost between ground truth (left) and predictions (right), as in the loss. "
    "Numbers are queries; grey points are queries that are assigned to no object."
)
ATTENTION_NOTE = (
    "The boxes; what the last decoder block read each from (Carion et al. 2020, figure 6); and what the "
    "encoder's patch in the middle of a box, the white point, attends to (figure 3)."
)


class BlockPredictions(NamedTuple):
    """What the decoder blocks of a detector predict for the same images."""

    by_block: list[list[ImageBoxes]]
    """The first block first."""
    boxes: Float[Tensor, "images queries 4"]
    """Of the last block: centre, width and height, normalised."""
    scores: Float[Tensor, "images queries"]
    """The confidence of each of these in its best class."""


def predict_by_block(
    detector: Detector, objective: DetectionObjective, source: BoxSource
) -> BlockPredictions | None:
    """Predict from every decoder block for the first images of a source; None if none can be read."""
    samples = []
    for index in range(min(len(source), MAX_IMAGES)):
        try:
            samples.append(source.load(index, None))
        except DataError:
            continue
    evaluators: list[DetectionEvaluator] = []
    last = []
    for start in range(0, len(samples), BATCH):
        batch = objective.collate(samples[start : start + BATCH], None).to(detector.device)
        images, sizes = objective.inputs(batch)
        with torch.inference_mode():
            outputs = detector.model.by_block(images, sizes)
        evaluators = evaluators or [objective.evaluator() for _ in outputs]
        for evaluator, output in zip(evaluators, outputs, strict=True):
            evaluator.add(batch, output)
        scores = class_scores(outputs[-1].logits, objective.scoring).amax(dim=-1)
        last.append((outputs[-1].boxes.float().cpu(), scores.cpu()))
    if not last:
        return None
    boxes, confidences = (torch.cat(parts) for parts in zip(*last, strict=True))
    return BlockPredictions([each.images_in_order() for each in evaluators], boxes, confidences)


def suppress(image: ImageBoxes, least_iou: float = NMS_IOU) -> ImageBoxes:
    """Remove each box that overlaps a better one of its class by more than ``least_iou`` (NMS)."""
    order = image.found_scores.argsort(descending=True, stable=True)
    boxes, labels = image.found_xyxy[order], image.found_labels[order]
    repeats = (box_iou(boxes, boxes) > least_iou) & (labels[:, None] == labels)
    is_kept: Bool[Tensor, " n"] = torch.ones(len(boxes), dtype=torch.bool)
    for row in range(len(boxes)):
        if is_kept[row]:
            is_kept[row + 1 :] &= ~repeats[row, row + 1 :]
    kept = order[is_kept]
    return image._replace(
        found_xyxy=image.found_xyxy[kept],
        found_labels=image.found_labels[kept],
        found_scores=image.found_scores[kept],
    )


def draw_matching(
    picture: Image.Image,
    output: DetectionOutput,
    targets: BoxTargets,
    objective: DetectionObjective,
    names: Sequence[str],
) -> Image.Image:
    """Draw the matching of one image as lines from each ground-truth box to its query's prediction."""
    costs = matching_costs(output.logits, output.boxes, targets, objective.scoring, objective.settings)
    (assigned,) = assign(costs, targets.counts.tolist())
    size = torch.tensor([picture.width, picture.height] * 2)
    true, found = (cxcywh_to_xyxy(boxes[0].float().cpu()) * size for boxes in (targets.boxes, output.boxes))
    scores, classes = class_scores(output.logits[0], objective.scoring).cpu().max(dim=-1)
    labels = targets.labels[0].tolist()
    queries = (assigned != NO_BOX).nonzero().flatten().tolist()
    left = [DrawnBox(tuple(true[box].tolist()), labels[box], names[labels[box]]) for box in range(len(true))]
    right = []
    for query in queries:
        label = int(classes[query])
        text = f"{query}: {box_text(names[label], label, float(scores[query]))}"
        right.append(DrawnBox(tuple(found[query].tolist()), label, text))
    pictures = [draw_boxes(picture, left), draw_boxes(picture, right)]
    factor, shift = pictures[0].width / picture.width, pictures[0].width + GAP_PX
    sheet = side_by_side(pictures, gap=GAP_PX)
    draw = ImageDraw.Draw(sheet)
    middles = (found[:, :2] + found[:, 2:]) * factor / 2
    for query, (x, y) in enumerate(middles.tolist()):
        box = int(assigned[query])
        if box == NO_BOX:
            mark = (shift + x - POINT_PX, y - POINT_PX, shift + x + POINT_PX, y + POINT_PX)
            draw.ellipse(mark, fill="grey", outline="white")
            continue
        start = ((true[box, :2] + true[box, 2:]) * factor / 2).tolist()
        draw.line([tuple(start), (shift + x, y)], fill=colour_of(labels[box]), width=3)
    return sheet


def set_sections(
    detector: Detector, parts: Parts, examples: Sequence[int], threshold: float
) -> tuple[str, ...]:
    """Return the sections of a run's report that show how its detector predicts a set.

    Args:
        examples: indices of test images for the matching and the attention.
        threshold: confidence threshold of boxes.
    """
    objective, source = parts.final_objective, parts.test
    assert isinstance(objective, DetectionObjective)
    assert isinstance(source, BoxSource)
    predicted = predict_by_block(detector, objective, source)
    if predicted is None:
        return ()
    sections = [_blocks_section(predicted, objective.num_classes)]
    if getattr(detector.config, "queries", "learned") == "learned":  # others differ from image to image
        note = QUERIES_NOTE.format(count=len(predicted.boxes))
        sections.append(section("Object queries", _queries_plot(predicted, threshold), note))
    for index in examples:
        batch = objective.collate([source.load(index, None)], None).to(detector.device)
        with torch.inference_mode():
            output = detector.model(*objective.inputs(batch))
        matching = draw_matching(
            to_picture(batch.images[0]), output, batch.targets, objective, parts.class_names
        )
        name, size = source.split.names[index], batch.original_sizes[0].tolist()
        explained = explain_boxes(
            detector, batch.images[0].cpu(), (size[0], size[1]), name=name, threshold=threshold
        )
        sections.append(section("Matching", _figure(matching, f"matching in {name}"), MATCHING_NOTE))
        sections.append(
            section("Attention", _figure(explained.still(), f"attention in {name}"), ATTENTION_NOTE)
        )
    return tuple(sections)


def _blocks_section(predicted: BlockPredictions, num_classes: int) -> str:
    rows: list[tuple[str, ...]] = []
    curves: dict[str, list[float]] = {name: [] for name in ("AP50", "AP50 with NMS", "AP", "AP with NMS")}
    for images in predicted.by_block:
        plain = coco_scores(images, num_classes, brief=True)
        suppressed = coco_scores([suppress(image) for image in images], num_classes, brief=True)
        scores = [plain.ap50, suppressed.ap50, plain.ap, suppressed.ap]
        for values, score in zip(curves.values(), scores, strict=True):
            values.append(score or 0.0)
        rows.append((str(len(rows) + 1), *(f"{score or 0:.3f}" for score in scores)))
    blocks = range(1, len(rows) + 1)
    series = {name: (blocks, values) for name, values in curves.items()}
    plot = line_plot("scores by decoder block", series, x_label="decoder block", y_label="score")
    numbers = table(("decoder block", *curves), rows, frozenset(range(5)))
    note = BLOCKS_NOTE.format(count=len(predicted.boxes))
    return section("Decoder blocks", plots_in_row([plot]) + numbers, note)


def _queries_plot(predicted: BlockPredictions, threshold: float) -> str:
    """Plot the centres of the boxes of those queries that predict the most objects."""
    from matplotlib.figure import Figure

    share = (predicted.scores >= threshold).float().mean(dim=0)
    shown = share.argsort(descending=True, stable=True)[:MAX_QUERIES].sort().values.tolist()
    rows = -(-len(shown) // COLUMNS)
    figure = Figure(figsize=(1.5 * COLUMNS, 1.7 * rows), layout="constrained", dpi=200)
    figure.patch.set_alpha(0)
    panes = figure.subplots(rows, COLUMNS, squeeze=False).flatten()
    for query, axes in zip(shown, panes, strict=False):
        x, y, width, height = predicted.boxes[:, query].unbind(dim=-1)
        colours = [
            COLOURS[2] if w * h < SMALL_SIDE**2 else COLOURS[1] if w > h else COLOURS[0]
            for w, h in zip(width.tolist(), height.tolist(), strict=True)
        ]
        axes.scatter(x, y, s=3, c=colours, linewidths=0, rasterized=True)
        axes.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[], aspect="equal")
        axes.set_title(f"query {query}: {share[query]:.0%}", fontsize=8, color=INK)
        axes.patch.set_alpha(0)
        for spine in axes.spines.values():
            spine.set_color(SOFT)
    for axes in panes[len(shown) :]:
        axes.set_visible(False)
    return inline_svg(figure, "boxes of each object query")


def _figure(picture: Image.Image, name: str) -> str:
    uri = picture_uri(picture, longest=LONGEST_PX)
    return f'<img src="{uri}" alt="{escape(name)}" style="max-width:100%">'
