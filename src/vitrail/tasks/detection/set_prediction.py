"""Pictures of a set predictor: its object queries, its decoder blocks, its matching and its attention."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool
from PIL import Image, ImageDraw
from torch import Tensor

from vitrail.core.boxes import box_iou, cxcywh_to_xyxy
from vitrail.core.durable import atomic_write
from vitrail.data.findings import number_of
from vitrail.data.stream import SampleSource
from vitrail.interpret.draw import DrawnBox, box_text, colour_of, draw_boxes, in_rows, to_picture
from vitrail.models.contract import BoxTargets, DetectionOutput, class_scores
from vitrail.report.page import conclusions, picture_uri, section, table, write_page
from vitrail.report.plots import COLOURS, frame, inline_svg, is_picture, new_figure, white_figure
from vitrail.report.plots import to_picture as to_file
from vitrail.report.sections import plots_in_row
from vitrail.report.tiles import ON_PAGE, ON_WHITE, Inks
from vitrail.tasks.detection.detections import ImageBoxes
from vitrail.tasks.detection.explanation import explain_boxes
from vitrail.tasks.detection.losses import NO_BOX, assign, matching_costs
from vitrail.tasks.detection.objective import DetectionEvaluator, DetectionObjective
from vitrail.tasks.detection.predictor import Detector
from vitrail.tasks.detection.report import best_images, typical_images
from vitrail.tasks.detection.samples import BoxSource
from vitrail.tasks.detection.scores import DetectionTables, coco_scores
from vitrail.tasks.predicting import chunks_of
from vitrail.train.objective import Objective

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

MAX_IMAGES, BATCH = 100, 16  # of the test split
MAX_QUERIES = 20  # Carion et al. 2020, figure 7
FAINT = 0.2  # opacity of boxes below the confidence threshold
SMALL_SIDE = 0.25  # of the image: boxes of less area than its square are small
NMS_IOU = 0.5
STYLES = {
    "AP50": (COLOURS[0], "o-"),
    "AP50 with NMS": (COLOURS[0], "o:"),
    "AP": (COLOURS[1], "o-"),
    "AP with NMS": (COLOURS[1], "o:"),
}
"""Colour and line of each curve."""
GAP_PX, POINT_PX = 60, 4
LONGEST_PX = 1400  # of a picture on the page
QUERIES_NOTE = (
    "Centres of the boxes that each query predicts in {count} images (Carion et al. 2020, figure 7). Green: "
    "small; orange: wide; blue: tall; faint: below the confidence threshold. Percent of the images in which "
    "it finds an object."
)
BLOCKS_NOTE = (
    "Scores of {count} images by decoder block (Carion et al. 2020, figure 4). Early blocks predict "
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


def suppress(image: ImageBoxes, least_iou: float = NMS_IOU) -> ImageBoxes:
    """Remove each box that overlaps a better one of its class by more than ``least_iou`` (NMS)."""
    image = image.pick(image.found_scores.argsort(descending=True, stable=True))
    boxes, labels = image.found_xyxy, image.found_labels
    repeats = (box_iou(boxes, boxes) > least_iou) & (labels[:, None] == labels)
    is_kept: Bool[Tensor, " n"] = torch.ones(len(boxes), dtype=torch.bool)
    for row in range(len(boxes)):
        if is_kept[row]:
            is_kept[row + 1 :] &= ~repeats[row, row + 1 :]
    return image.pick(is_kept)


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
    sheet = in_rows(pictures, 2, gap=GAP_PX)
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


class SetFigures:
    """Figures of a detector's predictions for the first images that it was scored on."""

    def __init__(
        self, detector: Detector, objective: Objective, source: SampleSource, tables: DetectionTables
    ) -> None:
        assert isinstance(objective, DetectionObjective)
        assert isinstance(source, BoxSource)
        self.detector, self.objective, self.source, self.tables = detector, objective, source, tables
        self.has_learned_queries = getattr(detector.config, "queries", "learned") == "learned"
        """Queries that start from proposals differ from image to image, and are not drawn."""
        self.count = min(len(source), MAX_IMAGES)
        by_block: list[DetectionEvaluator] = []
        last = []
        for indices in chunks_of(range(self.count), BATCH):
            samples = [source.load(index, None) for index in indices]
            batch = objective.collate(samples, None).to(detector.device)
            with torch.inference_mode():
                outputs = detector.model.by_block(*objective.inputs(batch))
            by_block = by_block or [objective.evaluator() for _ in outputs]
            for evaluator, output in zip(by_block, outputs, strict=True):
                evaluator.add(batch, output)
            scores = class_scores(outputs[-1].logits, objective.scoring).amax(dim=-1)
            last.append((outputs[-1].boxes.float().cpu(), scores.cpu()))
        self.boxes, self.scores = (torch.cat(parts) for parts in zip(*last, strict=True))
        """Of each image and query, as the last block predicts: cxcywh, and the score of the best class."""
        self.curves: dict[str, list[float]] = {name: [] for name in STYLES}
        """AP50 and AP of each block, as predicted and after NMS."""
        for images in (evaluator.images_in_order() for evaluator in by_block):
            suppressed = [suppress(image) for image in images]
            plain, after = (
                coco_scores(each, objective.num_classes, brief=True) for each in (images, suppressed)
            )
            of_block = (plain.ap50, after.ap50, plain.ap, after.ap)
            for values, score in zip(self.curves.values(), of_block, strict=True):
                values.append(score or 0.0)

    def write(self, path: Path) -> None:
        """Write all of them as a page, or figures 4 and 7 as .png, .svg or .pdf."""
        title = f"How {self.detector.config.name} predicts a set of boxes"
        if not is_picture(path):
            values, ap50 = self.curves["AP50"], self.curves["AP50 with NMS"][-1]
            says = (
                f"AP50 is {values[0]:.3f} after the first decoder block, {values[-1]:.3f} after the last, "
                f"and {ap50:.3f} with non-maximum suppression (NMS), on {number_of(self.count, 'image')}.",
            )
            parts = [f"<h1>{escape(title)}</h1>", conclusions(says), *self.sections()]
            write_page(path, title=title, body="\n".join(parts))
            return
        if self.has_learned_queries:
            figure = white_figure(11, 5.4, title)
            left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(2, 3))[0]
            self._draw_queries(right, ON_WHITE)
        else:
            figure = left = white_figure(4.8, 3.6, title)
        axes = left.add_subplot()
        frame(axes, "decoder block", "score")
        self._draw_blocks(axes, ON_WHITE)
        atomic_write(path, to_file(figure, path.suffix))

    def sections(self) -> tuple[str, ...]:
        """Return them as the sections of a page."""
        from matplotlib.figure import Figure

        figure, axes = new_figure("decoder block", "score")
        self._draw_blocks(axes, ON_PAGE)
        rows = [
            (str(block), *(f"{score:.3f}" for score in scores))
            for block, scores in enumerate(zip(*self.curves.values(), strict=True), start=1)
        ]
        numbers = table(("decoder block", *self.curves), rows, frozenset(range(5)))
        plot = plots_in_row([inline_svg(figure, "scores by decoder block")])
        sections = [section("Decoder blocks", plot + numbers, BLOCKS_NOTE.format(count=self.count))]
        if self.has_learned_queries:
            figure = Figure(figsize=(7.5, 6.5), layout="constrained", dpi=200)
            figure.patch.set_alpha(0)
            self._draw_queries(figure, ON_PAGE)
            plot = inline_svg(figure, "boxes of each object query")
            sections.append(section("Object queries", plot, QUERIES_NOTE.format(count=self.count)))
        for index in (best_images(self.tables, 1) or typical_images(self.tables, 1))[:1]:
            sections += self._sections_of(index)
        return tuple(sections)

    def _sections_of(self, index: int) -> Iterator[str]:
        """Yield the matching and the attention of one image."""
        batch = self.objective.collate([self.source.load(index, None)], None).to(self.detector.device)
        with torch.inference_mode():
            output = self.detector.model(*self.objective.inputs(batch))
        picture, name = to_picture(batch.images[0]), self.source.split.names[index]
        size, threshold = batch.samples[0].original_size, self.tables.threshold
        explained = explain_boxes(self.detector, batch.images[0].cpu(), size, name=name, threshold=threshold)
        matching = draw_matching(picture, output, batch.targets, self.objective, self.detector.class_names)
        for heading, drawn, note in (
            ("Matching", matching, MATCHING_NOTE),
            ("Attention", explained.still(), ATTENTION_NOTE),
        ):
            uri, text = picture_uri(drawn, longest=LONGEST_PX), escape(f"{heading} in {name}".lower())
            yield section(heading, f'<img src="{uri}" alt="{text}" style="max-width:100%">', note)

    def _draw_blocks(self, axes: Axes, inks: Inks) -> None:
        from matplotlib.ticker import MaxNLocator

        for (name, values), (colour, line) in zip(self.curves.items(), STYLES.values(), strict=True):
            axes.plot(range(1, len(values) + 1), values, line, color=colour, label=name, markersize=4)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.legend(frameon=False, labelcolor=inks.ink, fontsize=9)

    def _draw_queries(self, figure: FigureBase, inks: Inks) -> None:
        """Draw the centres of the boxes of those queries that predict the most objects."""
        threshold = self.tables.threshold
        share = (self.scores >= threshold).float().mean(dim=0)
        shown = share.argsort(descending=True, stable=True)[:MAX_QUERIES].sort().values.tolist()
        columns = math.ceil(len(shown) ** 0.5)
        panes = figure.subplots(-(-len(shown) // columns), columns, squeeze=False).flatten()
        for query, axes in zip(shown, panes, strict=False):
            x, y, width, height = self.boxes[:, query].unbind(dim=-1)
            colours = [
                COLOURS[2] if w * h < SMALL_SIDE**2 else COLOURS[1] if w > h else COLOURS[0]
                for w, h in zip(width.tolist(), height.tolist(), strict=True)
            ]
            opacity = torch.where(self.scores[:, query] < threshold, FAINT, 1.0)
            axes.scatter(x, y, s=6, c=colours, alpha=opacity.numpy(), linewidths=0, rasterized=True)
            axes.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[], aspect="equal")
            axes.set_title(f"query {query}: {share[query]:.0%}", fontsize=8, color=inks.ink)
            axes.patch.set_alpha(0)
            for spine in axes.spines.values():
                spine.set_color(inks.soft)
        for axes in panes[len(shown) :]:
            axes.set_visible(False)
