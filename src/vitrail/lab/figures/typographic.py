"""A typographic attack on one photograph: the answers of a CLIP before and after a word is written on it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import torch
from pydantic import Field

from vitrail.core.errors import ConfigError
from vitrail.data.images import read_image
from vitrail.lab.figures.drawing import Drawing, Drawn
from vitrail.lab.small_clip import SHAPES, TEMPLATE, SmallClip, draw_shape, write_word
from vitrail.report.plots import COLOURS, frame, white_figure
from vitrail.report.tiles import Matrix
from vitrail.tasks.contrastive.predictor import ImageTextEncoder
from vitrail.tasks.contrastive.zero_shot import ZeroShotClassifier, read_templates

APPLE = ("Granny Smith", "iPod", "library", "pizza", "toaster", "dough")  # Goh et al. 2021, first figure
SHOWN = 10  # classes, the most probable ones


class TypographicAttack(Drawing):
    """An apple with the word iPod is an iPod."""

    name = "typographic"
    shows = "Typographic attack: a CLIP's answers for a photograph, and after a word was written on it"
    source = "Goh et al. 2021, section on typographic attacks"
    prints = True

    image: Path | None = None
    """A photograph; without one, a drawn shape."""
    model: str | None = None
    """A CLIP: a run, a folder or a published model such as hf:openai/clip-vit-base-patch32; without one, a
    small CLIP is trained on drawn shapes."""
    word: str | None = Field(default=None, min_length=1)
    """What is written; by default the second of ``names``."""
    names: tuple[str, ...] = ()
    """Classes to choose among; by default those of the paper's apple, or the drawn shapes."""
    template: str = TEMPLATE
    """Prompt with {} for a class."""
    seed: int = 0
    """Of the word's place, size, font and colour, and of the small CLIP."""

    def wait(self) -> str:
        return (
            "" if self.model else "training a small CLIP for about a minute; --model takes a trained one ..."
        )

    def draw(self) -> Drawn:
        if self.image is not None and self.model is None:
            raise ConfigError(
                f"{self.image} was given without a CLIP",
                expected="a model that knows photographs",
                remedy="Name one, as in --model hf:openai/clip-vit-base-patch32",
            )
        templates = read_templates([self.template])
        names = list(self.names or (SHAPES if self.model is None else APPLE))
        word = self.word or names[min(1, len(names) - 1)]
        if word.lower() not in map(str.lower, names):
            names.append(word)
        random = Random(self.seed)
        clean = (
            draw_shape(SHAPES[0], "red", random, size=SmallClip().size)
            if self.image is None
            else read_image(self.image)
        )
        encoder = SmallClip().train_clip(self.seed) if self.model is None else ImageTextEncoder(self.model)
        classifier = ZeroShotClassifier(encoder, names, templates=templates)
        images = (clean, write_word(clean, word, random).image)
        pixels = torch.stack([classifier.read(np.asarray(each)) for each in images])
        probabilities = classifier.classify(pixels).numpy()
        best = probabilities.max(axis=0).argsort()[::-1][:SHOWN]
        shown, values = [names[index] for index in best], probabilities[:, best]
        figure = white_figure(10.5, 3.6, "")
        panes = figure.subplots(1, 4, width_ratios=(3, 2, 3, 2))
        titles = ("as it is", f"with the word {word!r}")
        for (photo, bars), image, row, title in zip(panes.reshape(2, 2), images, values, titles, strict=True):
            photo.imshow(image)
            photo.set_axis_off()
            photo.set_title(title, fontsize=10, parse_math=False)
            frame(bars, "probability", "")
            colours = [COLOURS[int(index == row.argmax())] for index in range(len(row))]
            drawn = bars.barh(range(len(row)), row, color=colours)
            bars.bar_label(drawn, [f"{value:.1%}" for value in row], padding=3, fontsize=8)
            bars.set_yticks(range(len(row)), shown, parse_math=False)
            bars.set_xlim(0, 1.35)
            bars.set_xticks([0, 0.5, 1])
            bars.invert_yaxis()
        return Drawn(figure, (Matrix("class", values.T, shown, ("before", "after")),))


DRAWINGS = (TypographicAttack(),)
