"""Predictions for one image: boxes with classes and scores, as numbers, as JSON and drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor

from vitrail.interpret.draw import Corners, DrawnBox, box_text, draw_boxes
from vitrail.models.contract import DetectionOutput, Scoring, class_scores

MAX_BOXES = 100  # per image and class, the best of them; the largest number that COCO counts
DEFAULT_THRESHOLD = 0.5

TABLE_HEADER = ("image", "class", "score", "left", "top", "right", "bottom", "error")


class ConfidenceThreshold(NamedTuple):
    """The confidence threshold above which boxes count as predicted."""

    value: float
    origin: str
    """Where it comes from, in a few words."""


UNCHOSEN_THRESHOLD = ConfidenceThreshold(DEFAULT_THRESHOLD, "nothing to choose it by")


class ImageBoxes(NamedTuple):
    """Ground truth and predictions of one image."""

    index: int  # type: ignore[assignment]
    """Index of the image in its source."""
    boxes_xyxy: Float[Tensor, "n 4"]
    """Ground truth, in pixels of the original image."""
    labels: Int[Tensor, " n"]
    is_crowd: Bool[Tensor, " n"]
    """Crowds: groups of objects that need not be found, and in which no prediction is wrong."""
    found_xyxy: Float[Tensor, "m 4"]
    """Predictions, in pixels of the original image."""
    found_labels: Int[Tensor, " m"]
    found_scores: Float[Tensor, " m"]
    areas: Float[Tensor, " n"] | None = None
    """Of the ground truth as annotated; 0 where there is none, None if nowhere."""

    def pick(self, rows: Tensor) -> ImageBoxes:
        """Keep these predictions, in this order."""
        return self._replace(
            found_xyxy=self.found_xyxy[rows],
            found_labels=self.found_labels[rows],
            found_scores=self.found_scores[rows],
        )


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


def select_boxes(
    output: DetectionOutput, scoring: Scoring, *, max_boxes: int = MAX_BOXES
) -> list[SelectedBoxes]:
    """Select the boxes of each image with the best scores.

    With a softmax a query predicts its best class alone (Carion et al. 2020); with sigmoids it may predict
    several, and the best are chosen among all pairs of a query and a class (Zhu et al. 2021). Of equal
    scores, those of earlier queries come first.
    """
    scores = class_scores(output.logits, scoring)
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


class Detections(NamedTuple):
    """Predictions for one image, or the error that prevented them."""

    name: str
    """Path of the file, or ``image N`` for the Nth image that came without one."""
    size: tuple[int, int]
    """Height and width of the upright image in pixels; 0, 0 on an error."""
    boxes_xyxy: Float[Tensor, "boxes 4"]
    """Corners in pixels of the upright image, within it; the box with the highest score first."""
    scores: Float[Tensor, " boxes"]
    """Confidence of each box, 0..1."""
    labels: Int[Tensor, " boxes"]
    class_names: tuple[str, ...]
    """In label order."""
    error: str | None = None
    """Why the image could not be used."""

    @classmethod
    def failed(cls, name: str, class_names: tuple[str, ...], error: str) -> Self:
        none = torch.zeros(0)
        return cls(name, (0, 0), torch.zeros(0, 4), none, none.long(), class_names, error)

    def rows(self) -> Iterator[tuple[int, float, Corners]]:
        """Yield class, score and corners of each box."""
        for label, score, box in zip(
            self.labels.tolist(), self.scores.tolist(), self.boxes_xyxy.tolist(), strict=True
        ):
            yield label, score, (box[0], box[1], box[2], box[3])

    def to_json(self) -> dict[str, Any]:
        if self.error is not None:
            return {"source": self.name, "error": self.error}
        boxes = [
            {
                "class": self.class_names[label],
                "score": round(score, 4),
                "box_xyxy": [round(value, 2) for value in box],
            }
            for label, score, box in self.rows()
        ]
        return {"source": self.name, "height": self.size[0], "width": self.size[1], "boxes": boxes}

    def to_rows(self) -> list[dict[str, Any]]:
        """Return a row for each box, or one without any; see ``tasks.predicting.Results``."""
        boxes: list[tuple[Any, ...]] = [
            (self.class_names[label], score, *box) for label, score, box in self.rows()
        ]
        return [
            dict(zip(TABLE_HEADER, (self.name, *box, self.error), strict=True))
            for box in boxes or [(None,) * 6]
        ]

    def draw(self, picture: Image.Image) -> Image.Image:
        """Draw the boxes, with classes and scores, over the upright image; a small one is enlarged."""
        return draw_boxes(picture, self.drawn_boxes())

    def drawn_boxes(self) -> list[DrawnBox]:
        return [
            DrawnBox(box, label, box_text(self.class_names[label], label, score))
            for label, score, box in self.rows()
        ]


def own_threshold(about: Mapping[str, Any]) -> float:
    """Return a detector's confidence threshold, chosen on validation images, else ``DEFAULT_THRESHOLD``."""
    return float(about.get("scores", {}).get("threshold", DEFAULT_THRESHOLD))
