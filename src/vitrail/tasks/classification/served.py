"""Serving of classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import UInt8
from torch import Tensor

from vitrail.engines.loading import Source
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.tasks.classification.predictor import ImageClassifier, Prediction, Predictor
from vitrail.tasks.predicting import over_photograph
from vitrail.tasks.serving import (
    EngineChoice,
    Given,
    Options,
    Servable,
    common_facts,
    image_content,
    in_torch,
)

USUAL_TOP = 5
QUICK_METHOD = "gradient_input"  # of a class, in one backward pass


class ImageWork(NamedTuple):
    """One prepared image."""

    name: str
    pixels: UInt8[Tensor, "3 height width"]
    top: int
    method: str | None = None
    class_name: str | None = None
    labels: tuple[str, ...] = ()
    """CLIP only: the candidate names."""
    content: bytes = b""
    """The image file."""


def classify_works(classifier: ImageClassifier, works: Sequence[ImageWork]) -> Sequence[dict[str, Any]]:
    """Return the most probable classes of prepared images."""
    probabilities = classifier.classify(torch.stack([work.pixels for work in works]))
    return [
        Prediction.most_probable(work.name, row, classifier.class_names, work.top).to_json()
        for work, row in zip(works, probabilities, strict=True)
    ]


class ServedPredictor(Servable):
    """Classify images."""

    task = "classification"
    option_names: tuple[str, ...] = ("top", "method", "class_name")

    def __init__(self, source: Source, choice: EngineChoice) -> None:
        self.predictor = Predictor(
            source,
            engine=choice.engine,
            precision=choice.precision,
            batch_size=choice.batch_size,
            trust=choice.trust,
        )

    def describe(self) -> dict[str, Any]:
        predictor = self.predictor
        return {
            **common_facts(predictor),
            "classes": list(predictor.class_names),
            "image_size": list(predictor.preprocessing.image_size),
            "can_explain": in_torch(predictor) is not None,
        }

    def warm_up(self, num_inputs: int) -> None:
        size = self.predictor.preprocessing.image_size
        self.predictor.classify(torch.zeros(num_inputs, 3, *size, dtype=torch.uint8))

    def read(self, given: Given, options: Options, max_pixels: int) -> ImageWork:
        content = image_content(given, max_pixels)
        pixels = self.predictor.preprocessing.read(content, name=given.name)
        top = options.top or USUAL_TOP
        return ImageWork(given.name, pixels, top, options.method, options.class_name, content=content)

    def answer(self, works: Sequence[ImageWork]) -> Sequence[dict[str, Any]]:
        return classify_works(self.predictor, works)

    def explain(self, work: ImageWork) -> Explanation:
        """Classify one image and record the maps; all that runs the model is here."""
        explained = over_photograph(
            self.predictor.explain_pixels(work.pixels, work.name), self.predictor.preprocessing, work.content
        )
        usual = QUICK_METHOD if not explained.maps else None  # else the slow occlusion
        return explained.showing(work.method or usual, class_name=work.class_name)


SERVED = ServedPredictor
