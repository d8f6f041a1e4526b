"""Detectors behind the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import UInt8
from torch import Tensor

from vitrail.engines.loading import Source
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.tasks.detection.explanation import explain_boxes
from vitrail.tasks.detection.predictor import Detector
from vitrail.tasks.predicting import over_photograph
from vitrail.tasks.serving import EngineChoice, Given, Options, Servable, common_facts, image_content

USUAL_SIZES = ((300, 400), (400, 300))  # height and width of images that models are warmed up with


class BoxWork(NamedTuple):
    """One prepared image."""

    name: str
    pixels: UInt8[Tensor, "3 height width"]
    size: tuple[int, int]
    threshold: float
    content: bytes
    """The image file."""


class ServedDetector(Servable):
    """Find the objects in images."""

    task = "detection"
    option_names: tuple[str, ...] = ("threshold",)

    def __init__(self, source: Source, choice: EngineChoice) -> None:
        self.detector = Detector(
            source,
            engine=choice.engine,
            precision=choice.precision,
            batch_size=choice.batch_size,
            trust=choice.trust,
        )

    def describe(self) -> dict[str, Any]:
        detector = self.detector
        return {
            **common_facts(detector),
            "classes": list(detector.class_names),
            "image_size": list(detector.preprocessing.image_size),
            "threshold": detector.threshold,
        }

    def warm_up(self, num_inputs: int) -> None:
        """Run on black images: upright ones, landscape ones, and both, padded, together."""
        shapes = {self.detector.preprocessing.input_size(size) for size in USUAL_SIZES}
        black = [torch.zeros(3, *shape, dtype=torch.uint8) for shape in sorted(shapes)]
        for each in black:
            self.detector.find([each] * num_inputs)
        if len(black) > 1 < num_inputs:
            self.detector.find((black * num_inputs)[:num_inputs])

    def read(self, given: Given, options: Options, max_pixels: int) -> BoxWork:
        content = image_content(given, max_pixels)
        pixels, size = self.detector.read(content, given.name)
        return BoxWork(given.name, pixels, size, self.detector.threshold_of(options.threshold), content)

    def answer(self, works: Sequence[BoxWork]) -> Sequence[dict[str, Any]]:
        found = self.detector.find([work.pixels for work in works])
        return [
            self.detector.in_pixels(selected.above(work.threshold), work.size, work.name).to_json()
            for work, selected in zip(works, found, strict=True)
        ]

    def explain(self, work: BoxWork) -> Explanation:
        detector = self.detector
        explained = explain_boxes(detector, work.pixels, work.size, name=work.name, threshold=work.threshold)
        return over_photograph(explained, detector.preprocessing, work.content)


SERVED = ServedDetector
