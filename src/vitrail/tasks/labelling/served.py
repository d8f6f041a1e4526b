"""Serving of models that label texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from vitrail.engines.loading import Source
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.tasks.labelling.explanation import explain_text
from vitrail.tasks.labelling.predictor import Labeller
from vitrail.tasks.serving import (
    EngineChoice,
    Given,
    Options,
    RefusalError,
    Servable,
    common_facts,
    given_text,
    open_without_engine,
)

USUAL_TOP = 5


class TextWork(NamedTuple):
    """One text."""

    text: str
    top: int


class ServedLabeller(Servable):
    """Label texts."""

    task = "labelling"
    option_names: tuple[str, ...] = ("top",)

    def __init__(self, source: Source, choice: EngineChoice) -> None:
        loaded = open_without_engine(source, choice, "model of texts")
        self.labeller = Labeller(loaded, batch_size=choice.batch_size)

    def describe(self) -> dict[str, Any]:
        labeller = self.labeller
        facts = {"classes": list(labeller.class_names), "labels": labeller.preprocessing.labels}
        return {**common_facts(labeller), **facts, "reads_text": True, "can_explain": True}

    def warm_up(self, num_inputs: int) -> None:
        self.labeller.label(["a"] * num_inputs)

    def read(self, given: Given, options: Options, max_pixels: int) -> TextWork:
        text = given_text(given)
        self.labeller.encode(text)  # raises for a text without words
        return TextWork(text, options.top or USUAL_TOP)

    def answer(self, works: Sequence[TextWork]) -> Sequence[dict[str, Any] | RefusalError]:
        most = max(work.top for work in works)
        found = self.labeller.label([work.text for work in works], top=most)
        return [each.keep(work.top).to_json() for each, work in zip(found, works, strict=True)]

    def explain(self, work: TextWork) -> Explanation:
        """Label one text and record its maps."""
        return explain_text(self.labeller, work.text)


SERVED = ServedLabeller
