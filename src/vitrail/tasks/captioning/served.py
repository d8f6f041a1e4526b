"""Serving of captioners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vitrail.engines.loading import Source
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.tasks import serving
from vitrail.tasks.captioning.explanation import explain_pixels
from vitrail.tasks.captioning.predictor import Captioner
from vitrail.tasks.predicting import over_photograph


class ServedCaptioner(serving.Servable):
    """Caption images."""

    task = "captioning"
    shared_options = ("beam_size", "num_best")
    option_names: tuple[str, ...] = (*shared_options, "target")

    def __init__(self, source: Source, choice: serving.EngineChoice) -> None:
        self.captioner = Captioner(serving.open_without_engine(source, choice, "captioner"))

    def describe(self) -> dict[str, Any]:
        captioner = self.captioner
        return {
            **serving.common_facts(captioner),
            "image_size": list(captioner.preprocessing.images.image_size),
            "vocabulary_size": captioner.config.vocabulary_size,
            "beam_size": captioner.settings.beam_size,
        }

    def warm_up(self, num_inputs: int) -> None:
        height, width = self.captioner.preprocessing.images.image_size
        black = torch.zeros(3, height, width, dtype=torch.uint8)
        self.captioner.caption([black] * num_inputs, ["warm-up"] * num_inputs)

    def read(self, given: serving.Given, options: serving.Options, max_pixels: int) -> serving.Work:
        if options.num_best is not None and options.num_best > (options.beam_size or options.num_best):
            raise serving.RefusalError(
                422,
                f"num_best is {options.num_best}, and the beam keeps {options.beam_size}",
                expected="a beam of as many hypotheses as captions are wanted",
                remedy=f"Ask with beam_size={options.num_best}",
            )
        return serving.image_work(given, options, max_pixels, self.captioner.preprocessing.images.read)

    def answer(self, works: Sequence[serving.Work]) -> Sequence[dict[str, Any]]:
        options = works[0].options
        captions = self.captioner.caption(
            [work.prepared for work in works],
            [work.name for work in works],
            beam_size=options.beam_size,
            num_best=options.num_best or 1,
        )
        return [caption.to_json() for caption in captions]

    def explain(self, work: serving.Work) -> Explanation:
        """Caption one image, or force a given caption, and record the attention behind each word."""
        explained = explain_pixels(self.captioner, work.prepared, work.name, caption=work.options.target)
        return over_photograph(explained, self.captioner.preprocessing.images, work.content)


SERVED = ServedCaptioner
