"""Serving of translators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitrail.engines.loading import Source
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.tasks import serving
from vitrail.tasks.translation.explanation import explain_text
from vitrail.tasks.translation.predictor import Translator


class ServedTranslator(serving.Servable):
    """Translate texts of one sentence each."""

    task = "translation"
    shared_options = ("beam_size", "length_penalty", "penalty_form", "num_best")
    option_names: tuple[str, ...] = (*shared_options, "target")

    def __init__(self, source: Source, choice: serving.EngineChoice) -> None:
        self.translator = Translator(serving.open_without_engine(source, choice, "translator"))

    def describe(self) -> dict[str, Any]:
        translator = self.translator
        return {
            **serving.common_facts(translator),
            "languages": list(translator.languages),
            "reads_text": True,
            "max_source_length": translator.max_source_length,
            "beam_size": translator.search.beam_size,
        }

    def warm_up(self, num_inputs: int) -> None:
        list(self.translator.translate(["a"] * num_inputs))

    def read(self, given: serving.Given, options: serving.Options, max_pixels: int) -> serving.Work:
        return serving.Work(given.name, serving.given_text(given), options)

    def answer(self, works: Sequence[serving.Work]) -> Sequence[dict[str, Any] | serving.RefusalError]:
        asked = works[0].options.model_dump(include={*self.shared_options}, exclude_none=True)
        translations = self.translator.translate([work.prepared for work in works], **asked)
        return [each.to_json() if each.error is None else _refused(each.error) for each in translations]

    def explain(self, work: serving.Work) -> Explanation:
        """Translate one text, or force a given translation, and record its alignment."""
        return explain_text(self.translator, work.prepared, target=work.options.target)


SERVED = ServedTranslator


def _refused(error: str) -> serving.RefusalError:
    given = error.split(" Expected ", maxsplit=1)[0].rstrip(".")
    return serving.RefusalError(
        422, given, expected="one sentence that the model can hold", remedy="Divide the text into sentences"
    )
