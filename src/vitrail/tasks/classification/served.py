"""Serving of classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vitrail.engines.loading import Source
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.tasks import serving
from vitrail.tasks.classification.predictor import ImageClassifier, Prediction, Predictor
from vitrail.tasks.predicting import over_photograph

USUAL_TOP = 5
QUICK_METHOD = "gradient_input"  # of a class, in one backward pass


def classify_works(classifier: ImageClassifier, works: Sequence[serving.Work]) -> Sequence[dict[str, Any]]:
    """Return the most probable classes of prepared images."""
    probabilities = classifier.classify(torch.stack([work.prepared for work in works]))
    return [
        Prediction.most_probable(
            work.name, row, classifier.class_names, work.options.top or USUAL_TOP
        ).to_json()
        for work, row in zip(works, probabilities, strict=True)
    ]


class ServedPredictor(serving.Servable):
    """Classify images."""

    task = "classification"
    option_names: tuple[str, ...] = ("top", "method", "class_name")

    def __init__(self, source: Source, choice: serving.EngineChoice) -> None:
        self.predictor = Predictor(source, **choice._asdict())

    def describe(self) -> dict[str, Any]:
        predictor = self.predictor
        return {
            **serving.common_facts(predictor),
            "classes": list(predictor.class_names),
            "image_size": list(predictor.preprocessing.image_size),
            "can_explain": serving.in_torch(predictor) is not None,
        }

    def warm_up(self, num_inputs: int) -> None:
        size = self.predictor.preprocessing.image_size
        self.predictor.classify(torch.zeros(num_inputs, 3, *size, dtype=torch.uint8))

    def read(self, given: serving.Given, options: serving.Options, max_pixels: int) -> serving.Work:
        return serving.image_work(given, options, max_pixels, self.predictor.preprocessing.read)

    def answer(self, works: Sequence[serving.Work]) -> Sequence[dict[str, Any]]:
        return classify_works(self.predictor, works)

    def explain(self, work: serving.Work) -> Explanation:
        """Classify one image and record the maps; all that runs the model is here."""
        explained = self.predictor.explain_pixels(work.prepared, work.name)
        explained = over_photograph(explained, self.predictor.preprocessing, work.content)
        usual = QUICK_METHOD if not explained.maps else None  # else the slow occlusion
        return explained.showing(work.options.method or usual, class_name=work.options.class_name)


SERVED = ServedPredictor
