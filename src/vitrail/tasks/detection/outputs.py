"""Turn a detector's output into boxes with scores and classes; the only place that does it.

There is no non-maximum suppression: the matching in training teaches one box per object.
"""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from vitrail.models.contract import DetectionOutput
from vitrail.tasks.detection.coco_protocol import MAX_BOXES
from vitrail.tasks.detection.matching import Scoring


class SelectedBoxes(NamedTuple):
    """The boxes of one image, the best first."""

    scores: Float[Tensor, " n"]
    """In 0..1."""
    labels: Int[Tensor, " n"]
    boxes: Float[Tensor, "n 4"]
    """Centre, width and height (cxcywh), normalised by the image without padding, as predicted;
    they may reach a little over its edge."""
    queries: Int[Tensor, " n"]
    """The query of each box."""

    def above(self, threshold: float) -> SelectedBoxes:
        kept = self.scores >= threshold
        return SelectedBoxes(*(part[kept] for part in self))


def scores_of(
    logits: Float[Tensor, "*batch queries logits"], scoring: Scoring
) -> Float[Tensor, "*batch queries classes"]:
    """Turn logits into the score of each class, in float32, without "no object"."""
    if scoring == "softmax":
        return logits.float().softmax(dim=-1)[..., :-1]
    return logits.float().sigmoid()


def select_boxes(
    output: DetectionOutput, scoring: Scoring, *, max_boxes: int = MAX_BOXES
) -> list[SelectedBoxes]:
    """Select the boxes of each image with the best scores.

    With a softmax a query predicts its best class alone (Carion et al. 2020); with sigmoids it may predict
    several, and the best are chosen among all pairs of a query and a class (Zhu et al. 2021). Of equal
    scores, those of earlier queries come first.
    """
    scores = scores_of(output.logits, scoring)
    num_classes = scores.shape[-1]
    if scoring == "softmax":
        scores, classes = scores.max(dim=-1)
        ranked = scores.sort(dim=-1, descending=True, stable=True)
        queries = ranked.indices[:, :max_boxes]
        labels = classes.gather(1, queries)
    else:
        ranked = scores.flatten(1).sort(dim=-1, descending=True, stable=True)
        chosen = ranked.indices[:, :max_boxes]
        queries, labels = chosen // num_classes, chosen % num_classes
    boxes = output.boxes.float().gather(1, queries[..., None].expand(-1, -1, 4))
    return [
        SelectedBoxes(*of_image)
        for of_image in zip(ranked.values[:, :max_boxes], labels, boxes, queries, strict=True)
    ]
