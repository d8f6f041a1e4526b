"""Predictions for one image: boxes with classes and scores, as numbers, as JSON and drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from vitrail.interpret.draw import DrawnBox, box_text, draw_boxes
from vitrail.tasks.detection.errors import DEFAULT_THRESHOLD


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

    def to_json(self) -> dict[str, Any]:
        if self.error is not None:
            return {"source": self.name, "error": self.error}
        boxes = [
            {
                "class": self.class_names[label],
                "score": round(score, 4),
                "box_xyxy": [round(value, 2) for value in box],
            }
            for box, score, label in zip(
                self.boxes_xyxy.tolist(), self.scores.tolist(), self.labels.tolist(), strict=True
            )
        ]
        return {"source": self.name, "height": self.size[0], "width": self.size[1], "boxes": boxes}

    def draw(self, picture: Image.Image) -> Image.Image:
        """Draw the boxes, with classes and scores, over the upright image; a small one is enlarged."""
        return draw_boxes(picture, self.drawn_boxes())

    def drawn_boxes(self) -> list[DrawnBox]:
        rows = zip(self.boxes_xyxy.tolist(), self.scores.tolist(), self.labels.tolist(), strict=True)
        return [
            DrawnBox((left, top, right, bottom), label, box_text(self.class_names[label], label, score))
            for (left, top, right, bottom), score, label in rows
        ]


def own_threshold(about: Mapping[str, Any]) -> float:
    """Return a detector's confidence threshold, chosen on validation images, else ``DEFAULT_THRESHOLD``."""
    return float(about.get("scores", {}).get("threshold", DEFAULT_THRESHOLD))
