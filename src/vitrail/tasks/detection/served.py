"""Detectors behind the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vitrail.engines.loading import Source
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.tasks.detection.explanation import explain_boxes
from vitrail.tasks.detection.predictor import Detector
from vitrail.tasks.predicting import over_photograph
from vitrail.tasks.serving import EngineChoice, Given, Options, Servable, Work, common_facts, image_work

USUAL_SIZES = ((300, 400), (400, 300))  # height and width of images that models are warmed up with


class ServedDetector(Servable):
    """Find the objects in images."""

    task = "detection"
    option_names: tuple[str, ...] = ("threshold",)

    def __init__(self, source: Source, choice: EngineChoice) -> None:
        self.detector = Detector(source, **choice._asdict())

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

    def read(self, given: Given, options: Options, max_pixels: int) -> Work:
        return image_work(given, options, max_pixels, self.detector.read)

    def answer(self, works: Sequence[Work]) -> Sequence[dict[str, Any]]:
        detector, answers = self.detector, []
        for work, selected in zip(works, detector.find([work.prepared[0] for work in works]), strict=True):
            above = selected.above(detector.threshold_of(work.options.threshold))
            answers.append(detector.in_pixels(above, work.prepared[1], work.name).to_json())
        return answers

    def explain(self, work: Work) -> Explanation:
        detector, threshold = self.detector, self.detector.threshold_of(work.options.threshold)
        explained = explain_boxes(detector, *work.prepared, name=work.name, threshold=threshold)
        return over_photograph(explained, detector.preprocessing, work.content)


SERVED = ServedDetector
