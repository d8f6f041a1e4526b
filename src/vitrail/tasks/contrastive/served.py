"""Serving of CLIPs: zero-shot classification by the names in a request."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import torch

from vitrail.core.errors import ConfigError
from vitrail.engines.loading import Source
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.tasks import serving
from vitrail.tasks.classification.served import classify_works
from vitrail.tasks.contrastive.explanation import explain_pixels
from vitrail.tasks.contrastive.predictor import ImageTextEncoder
from vitrail.tasks.contrastive.zero_shot import ZeroShotClassifier, check_names
from vitrail.tasks.predicting import over_photograph

MOST_LABELS = 1000
LISTS_KEPT = 32  # label lists whose embeddings are cached


class ServedCLIP(serving.Servable):
    """Zero-shot classification of images."""

    task = "contrastive"
    shared_options = ("labels",)
    option_names: tuple[str, ...] = ("labels", "top")

    def __init__(self, source: Source, choice: serving.EngineChoice) -> None:
        self.encoder = ImageTextEncoder(serving.open_without_engine(source, choice, "CLIP"))
        self._classifier = lru_cache(LISTS_KEPT)(partial(ZeroShotClassifier, self.encoder))

    def describe(self) -> dict[str, Any]:
        return {
            **serving.common_facts(self.encoder),
            "image_size": list(self.encoder.preprocessing.image_size),
            "max_length": self.encoder.config.max_length,
            "can_explain": True,
        }

    def warm_up(self, num_inputs: int) -> None:
        size = self.encoder.preprocessing.image_size
        self.encoder.embed_pixels(torch.zeros(num_inputs, 3, *size, dtype=torch.uint8))

    def read(self, given: serving.Given, options: serving.Options, max_pixels: int) -> serving.Work:
        read_labels(options.labels)  # before anything is decoded
        return serving.image_work(given, options, max_pixels, self.encoder.preprocessing.read)

    def answer(self, works: Sequence[serving.Work]) -> Sequence[dict[str, Any]]:
        return classify_works(self._classifier(read_labels(works[0].options.labels)), works)

    def explain(self, work: serving.Work) -> Explanation:
        """Compare one image with the names, and record the image regions behind each."""
        labels = read_labels(work.options.labels)
        vectors = self._classifier(labels).class_embeddings
        explained = explain_pixels(self.encoder, work.prepared, work.name, labels, vectors)
        explained = over_photograph(explained, self.encoder.preprocessing, work.content)
        return explained.showing(None if explained.maps else "gradient_input")  # not the slower occlusion


SERVED = ServedCLIP


def read_labels(text: str | None) -> tuple[str, ...]:
    """Return the names of a request.

    Raises:
        RefusalError: there is none, one is empty or repeated, or there are too many.
    """
    try:
        labels = check_names(text.split(",") if text and text.strip() else ())
    except ConfigError as error:
        raise serving.RefusalError(
            422, error.given, expected=error.expected, remedy="Name them, as in labels=apple,pear"
        ) from None
    if len(labels) > MOST_LABELS:
        raise serving.RefusalError(
            413,
            f"{len(labels)} labels were given",
            expected=f"at most {MOST_LABELS}",
            remedy="Choose among fewer",
        )
    return labels
