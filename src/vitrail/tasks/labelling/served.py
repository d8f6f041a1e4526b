"""Serving of models that label texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitrail.engines.loading import Source
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.tasks import serving
from vitrail.tasks.classification.served import USUAL_TOP
from vitrail.tasks.labelling.explanation import explain_text
from vitrail.tasks.labelling.predictor import Labeller


class ServedLabeller(serving.Servable):
    """Label texts."""

    task = "labelling"
    shared_options = option_names = ("top",)

    def __init__(self, source: Source, choice: serving.EngineChoice) -> None:
        loaded = serving.open_without_engine(source, choice, "model of texts")
        self.labeller = Labeller(loaded, batch_size=choice.batch_size)

    def describe(self) -> dict[str, Any]:
        labeller = self.labeller
        facts = {"classes": list(labeller.class_names), "labels": labeller.preprocessing.labels}
        return {**serving.common_facts(labeller), **facts, "reads_text": True, "can_explain": True}

    def warm_up(self, num_inputs: int) -> None:
        self.labeller.label(["a"] * num_inputs)

    def read(self, given: serving.Given, options: serving.Options, max_pixels: int) -> serving.Work:
        text = serving.given_text(given)
        self.labeller.encode(text)  # raises for a text without words
        return serving.Work(given.name, text, options)

    def answer(self, works: Sequence[serving.Work]) -> Sequence[dict[str, Any]]:
        top = works[0].options.top or USUAL_TOP
        return [found.to_json() for found in self.labeller.label([work.prepared for work in works], top=top)]

    def explain(self, work: serving.Work) -> Explanation:
        """Label one text and record its maps."""
        return explain_text(self.labeller, work.prepared)


SERVED = ServedLabeller
