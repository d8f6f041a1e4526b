"""Claim: a CLIP answers with the word that is written on an image; three defences need no training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import torch
from pydantic import Field, model_validator

from vitrail.config import Config
from vitrail.errors import ConfigError
from vitrail.lab.contract import Judgement, OnProgress, Progress, decide, rows_of
from vitrail.lab.figures import new_panels
from vitrail.lab.scenes import COLOURS, SHAPES, TEMPLATE, TEMPLATE_WITH_WORD, draw_shape, to_pixels
from vitrail.lab.typographic_picture import draw_examples, draw_heads, draw_shares
from vitrail.lab.typographic_rows import (
    DEFENCES,
    Defence,
    DefenceRow,
    ExampleRow,
    HeadRow,
    TypographicRow,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitrail.lab.typographic_defences import Answers, AttackedImages, Defender

FOOLED = 0.2  # share of attacked images that make an attack
BETTER = 0.75  # of the flips without a defence, that one with a defence has at most
LOST = 0.05  # accuracy on clean images that a defence may cost
SHOWN = 6  # attacked images in the picture


class Typographic(Config):
    """Attack a CLIP by written words, and defend it; a small one is trained unless weights are given."""

    name: ClassVar[str] = "typographic"
    statement: ClassVar[str] = (
        "A CLIP whose captions mention written words takes a word on an image for what it shows; prompts "
        "that name the word, hiding it, and silencing the heads that read it help without any training."
    )
    source: ClassVar[str] = (
        "Goh et al. 2021, section on typographic attacks; Azuma and Matsui 2023; Hufe et al. 2025 (Dyslexify)"
    )
    published: ClassVar[str] = (
        "\"By exploiting the model's ability to read text robustly, we find that even photographs of "
        'hand-written text can often fool the model." An apple with the word iPod is an iPod (Goh et al.). '
        "Silencing heads that attend to text raises accuracy on attacked ImageNet-100 by up to 22.06 % and "
        "costs less than 1 % on clean images (Hufe et al.)."
    )
    criterion: ClassVar[str] = (
        f"Holds if (1) the answers to at least {FOOLED:.0%} of the images become the written word, and (2) "
        f"each of the three defences brings that to at most {BETTER:.0%} of what it was, at a cost of at "
        f"most {LOST:.0%} of accuracy on clean images, all as means over the seeds. Partly if (1) is so and "
        "one defence does it."
    )

    weights: str | None = None
    """A CLIP, such as hf:openai/clip-vit-base-patch32 or a run; null trains a small one of each seed."""
    images: str | None = None
    """Images of classes, any data that vitrail train takes as such; needed with weights, and only then."""
    max_classes: int = Field(default=100, ge=2)
    """Classes of given images that are used, drawn where there are more: prompts name every pair of them."""
    template: str = TEMPLATE
    """A sentence with {} for the name of a class."""
    template_with_word: str = TEMPLATE_WITH_WORD
    """One with {word} for a written word as well."""
    num_seeds: int = Field(default=3, ge=1)
    """How often all is repeated."""
    num_tested: int = Field(default=300, ge=1)
    """Images that the answers are counted on."""
    num_calibration: int = Field(default=200, ge=1)
    """Further images that heads are chosen on."""
    size: int = Field(default=48, ge=16)
    """Pixels of a side of composed images."""
    width: int = Field(default=48, ge=8, multiple_of=8)
    """Width of a token of the small CLIP."""
    num_scenes: int = Field(default=3000, ge=2)
    """Images that are composed for its training."""
    num_steps: int = Field(default=400, ge=1)
    """Of its training."""
    batch_size: int = Field(default=96, ge=2)
    """Images of a step."""
    learning_rate: float = Field(default=3e-3, gt=0)
    """The highest of AdamW, for what Muon does not train."""

    @model_validator(mode="after")
    def _check_templates(self) -> Self:
        if (self.weights is None) != (self.images is None):
            raise ValueError("weights and images belong together: give both, or none")
        for template in (self.template, self.template_with_word):
            if template.count("{}") != 1:
                raise ValueError(f"the template {template!r} needs one {{}} for the name of a class")
        if "{word}" not in self.template_with_word:
            raise ValueError(f"the template {self.template_with_word!r} needs {{word}} for the written word")
        return self

    def run(self, progress: OnProgress, *, seed: int) -> list[TypographicRow]:
        """Train or load, attack, and answer with each defence."""
        seeds = range(seed, seed + self.num_seeds)
        total = self.num_seeds * (1 + len(DEFENCES))
        rows: list[TypographicRow] = []
        for number, each in enumerate(seeds):
            done = number * (1 + len(DEFENCES))
            what = "a small CLIP is trained" if self.weights is None else "the CLIP is loaded"
            progress(Progress(done, total, f"seed {each}: {what}"))
            defender, tested, calibration = self._prepare(each)
            answers: dict[Defence, Answers] = {}
            for place, defence in enumerate(DEFENCES, start=done + 1):
                progress(Progress(place, total, f"seed {each}: defence {defence}"))
                found, heads = _answer(defender, defence, tested, calibration, each)
                rows += heads
                if found is not None:
                    answers[defence] = found
                    rows.append(_count(found, defence, tested, each))
            rows += _examples(answers, tested, defender.names, each)
        progress(Progress(total, total, "done"))
        return rows

    def judge(self, rows: Sequence[TypographicRow]) -> Judgement:
        """Compare shares of flipped answers, and what the defences cost."""
        counted = rows_of(rows, DefenceRow)

        def mean(defence: Defence, field: str) -> float:
            return fmean(getattr(row, field) for row in counted if row.defence == defence)

        used = [defence for defence in DEFENCES if any(row.defence == defence for row in counted)]
        flips = {defence: mean(defence, "flipped") for defence in used}
        clean = {defence: mean(defence, "clean_accuracy") for defence in used}
        is_fooled = flips["none"] >= FOOLED
        helps = [
            flips[defence] <= BETTER * flips["none"] and clean["none"] - clean[defence] <= LOST
            for defence in used[1:]
        ]
        shown = ", ".join(
            f"{defence} {flips[defence]:.0%} (clean accuracy {clean[defence]:.0%})" for defence in used
        )
        looked = [row.looked_for_words for row in counted if row.looked_for_words is not None]
        found = f"; masking finds a word on {fmean(looked):.0%} of them" if looked else ""
        return Judgement(
            verdict=decide(
                holds=is_fooled and len(used) == len(DEFENCES) and all(helps), partly=is_fooled and any(helps)
            ),
            measured=f"Attacked images whose answer becomes the written word: {shown}{found}",
        )

    def draw(self, rows: Sequence[TypographicRow]) -> Figure:
        """Show the shares, the heads and, of composed images, some that were attacked."""
        figure, (shares, heads, examples) = new_panels(3)
        draw_shares(shares, rows_of(rows, DefenceRow))
        draw_heads(heads, rows_of(rows, HeadRow))
        shown = rows_of(rows, ExampleRow)[:SHOWN]
        draw_examples(examples, shown, self._compose_again(shown))
        return figure

    def _prepare(self, seed: int) -> tuple[Defender, AttackedImages, AttackedImages]:
        """Return a model with its defences, and attacked images to test and to choose heads on."""
        from vitrail.lab.small_clip import train_small_clip
        from vitrail.lab.typographic_defences import Defender, attack
        from vitrail.lab.typographic_images import read_images

        if self.weights is None:
            encoder = train_small_clip(
                seed=seed,
                size=self.size,
                width=self.width,
                num_scenes=self.num_scenes,
                num_steps=self.num_steps,
                batch_size=self.batch_size,
                learning_rate=self.learning_rate,
            )
            names: Sequence[str] = SHAPES
            pixels, labels = self._draw_tested(seed, self.num_tested + self.num_calibration)
        else:
            from vitrail.deploy.image_text import ImageTextEncoder

            assert self.images is not None
            encoder = ImageTextEncoder(self.weights)
            count = self.num_tested + self.num_calibration
            pixels, labels, names = read_images(
                self.images, encoder, count=count, max_classes=self.max_classes, seed=seed
            )
        defender = Defender(
            encoder, names, template=self.template, template_with_word=self.template_with_word
        )
        attacked = attack(pixels, labels, names, Random(seed))
        left = len(labels) - min(self.num_calibration, len(labels) // 2)  # given images may be few
        tested, calibration = slice(0, min(self.num_tested, left)), slice(left, None)
        return defender, attacked.part(tested), attacked.part(calibration)

    def _draw_tested(self, seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        random = Random(f"tested {seed}")
        labels = [random.randrange(len(SHAPES)) for _ in range(count)]
        images = [
            draw_shape(SHAPES[each], random.choice(tuple(COLOURS)), random, size=self.size) for each in labels
        ]
        return to_pixels(images), torch.tensor(labels)

    def _compose_again(self, rows: Sequence[ExampleRow]) -> list[np.ndarray]:
        """Return the images of examples, none where they were given."""
        if self.weights is not None or not rows:
            return []
        from vitrail.lab.typographic_defences import attack

        seed = rows[0].seed
        pixels, labels = self._draw_tested(seed, self.num_tested + self.num_calibration)
        attacked = attack(pixels, labels, SHAPES, Random(seed)).attacked
        return [attacked[row.place].permute(1, 2, 0).numpy() for row in rows]


CLAIM = Typographic()


def _answer(
    defender: Defender, defence: Defence, tested: AttackedImages, calibration: AttackedImages, seed: int
) -> tuple[Answers | None, list[HeadRow]]:
    """Return the answers with a defence, none where the model has nothing to silence, and its heads."""
    if defence == "none":
        return defender.undefended(tested), []
    if defence == "prompts":
        return defender.by_prompts(tested), []
    if defence == "masking":
        return defender.by_masking(tested), []
    try:
        scores = defender.attention_to_words(calibration)
    except ConfigError:  # an image tower without a class token
        return None, []
    chosen = defender.choose_heads(calibration, scores)
    rows = [
        HeadRow(
            seed=seed,
            layer=layer,
            head=head,
            attention_to_words=score,
            is_silenced=(layer, head) in chosen,
        )
        for (layer, head), score in scores.items()
    ]
    return defender.by_silencing(tested, chosen), rows


def _count(answers: Answers, defence: Defence, images: AttackedImages, seed: int) -> DefenceRow:
    return DefenceRow(
        seed=seed,
        defence=defence,
        clean_accuracy=float((answers.clean == images.labels).double().mean()),
        attacked_accuracy=float((answers.attacked == images.labels).double().mean()),
        flipped=float(((answers.attacked == images.words) & (answers.clean != images.words)).double().mean()),
        looked_for_words=answers.found_words,
        num_images=len(images.labels),
    )


def _examples(
    answers: dict[Defence, Answers], images: AttackedImages, names: Sequence[str], seed: int
) -> Iterator[ExampleRow]:
    for place in range(min(SHOWN, len(images.labels))):
        yield ExampleRow(
            seed=seed,
            place=place,
            true_class=names[int(images.labels[place])],
            word=names[int(images.words[place])],
            undefended=names[int(answers["none"].attacked[place])],
            defended=names[int(answers["prompts"].attacked[place])],
        )
