"""Claim: a CLIP answers with the word that is written on an image; three defences need no training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import torch
from pydantic import Field, model_validator

from vitrail.core.config import Config
from vitrail.core.errors import ConfigError
from vitrail.lab.contract import Judgement, OnProgress, Progress, rows_of
from vitrail.lab.figures import new_panels
from vitrail.lab.scenes import COLOURS, SHAPES, TEMPLATE, TEMPLATE_WITH_WORD, draw_shape, to_pixels
from vitrail.lab.typographic_judging import CRITERION, judge_attack
from vitrail.lab.typographic_picture import draw_examples, draw_heads, draw_shares
from vitrail.lab.typographic_rows import (
    DEFENCES,
    Defence,
    DefenceRow,
    ExampleRow,
    HeadRow,
    ImpossibleRow,
    TypographicRow,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitrail.lab.typographic_defences import Answers, AttackedImages, Defender
    from vitrail.tasks.contrastive.predictor import ImageTextEncoder

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
    criterion: ClassVar[str] = CRITERION

    weights: str | None = None
    """A CLIP, such as hf:openai/clip-vit-base-patch32 or a run; null trains a small one of each seed."""
    images: str | None = None
    """Images of classes, any data that vitrail train takes as such, of which the test images are used: a part
    of a folder that is not divided. Needed with weights, and only then."""
    max_classes: int = Field(default=100, ge=2)
    """Classes of given images that are used, drawn where there are more: prompts name every pair of them."""
    template: str = TEMPLATE
    """A sentence with {} for the name of a class."""
    template_with_word: str = TEMPLATE_WITH_WORD
    """One with {word} for a written word as well."""
    num_seeds: int = Field(default=3, ge=1)
    """How often all is repeated."""
    num_tested: int = Field(default=300, ge=1)
    """Most images that the answers are counted on."""
    num_calibration: int = Field(default=200, ge=1)
    """Most further images that heads are chosen on; half of given images where those are few."""
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
                found, further = _answer(defender, defence, tested, calibration, each)
                rows += further
                if found is not None:
                    answers[defence] = found
                    rows.append(_count(found, defence, tested, each, num_classes=len(defender.names)))
            rows += _examples(answers, tested, defender.names, each)
        progress(Progress(total, total, "done"))
        return rows

    def judge(self, rows: Sequence[TypographicRow]) -> Judgement:
        """Compare shares of flipped answers and what the defences cost, where that can be told."""
        return judge_attack(rows)

    def draw(self, rows: Sequence[TypographicRow]) -> Figure:
        """Show the shares, the heads where there are any to silence, and some attacked images."""
        heads, examples = rows_of(rows, HeadRow), rows_of(rows, ExampleRow)
        shown = [row for row in examples if row.seed == examples[0].seed]
        figure, (shares, *of_heads, last) = new_panels(3 if heads else 2)
        draw_shares(shares, rows_of(rows, DefenceRow), rows_of(rows, ImpossibleRow))
        for axes in of_heads:
            draw_heads(axes, heads)
        draw_examples(last, shown, self._attack_again(shown))
        return figure

    def _prepare(self, seed: int) -> tuple[Defender, AttackedImages, AttackedImages]:
        """Return a model with its defences, and attacked images to test and to choose heads on."""
        from vitrail.lab.small_clip import train_small_clip
        from vitrail.lab.typographic_defences import Defender
        from vitrail.tasks.contrastive.predictor import ImageTextEncoder

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
        else:
            encoder = ImageTextEncoder(self.weights)
        attacked, names = self._attack(encoder, seed)
        defender = Defender(
            encoder, names, template=self.template, template_with_word=self.template_with_word
        )
        count = len(attacked.labels)
        left = count - min(self.num_calibration, count // 2)  # given images may be few
        tested, calibration = slice(0, min(self.num_tested, left)), slice(left, None)
        return defender, attacked.part(tested), attacked.part(calibration)

    def _attack(self, encoder: ImageTextEncoder | None, seed: int) -> tuple[AttackedImages, Sequence[str]]:
        """Return attacked images of a seed and the names of their classes; given ones need the encoder."""
        from vitrail.lab.typographic_defences import attack
        from vitrail.lab.typographic_images import read_images

        count = self.num_tested + self.num_calibration
        names: Sequence[str] = SHAPES
        if self.images is None:
            pixels, labels = self._draw_tested(seed, count)
        else:
            assert encoder is not None
            pixels, labels, names = read_images(
                self.images, encoder, count=count, max_classes=self.max_classes, seed=seed
            )
        return attack(pixels, labels, names, Random(seed)), names

    def _draw_tested(self, seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        random = Random(f"tested {seed}")
        labels = [random.randrange(len(SHAPES)) for _ in range(count)]
        images = [
            draw_shape(SHAPES[each], random.choice(tuple(COLOURS)), random, size=self.size) for each in labels
        ]
        return to_pixels(images), torch.tensor(labels)

    def _attack_again(self, rows: Sequence[ExampleRow]) -> list[np.ndarray]:
        """Return the images of examples of one seed."""
        from vitrail.tasks.contrastive.predictor import ImageTextEncoder

        encoder = None if self.weights is None else ImageTextEncoder(self.weights)
        attacked = self._attack(encoder, rows[0].seed)[0].attacked
        return [attacked[row.place].permute(1, 2, 0).numpy() for row in rows]


CLAIM = Typographic()


def _answer(
    defender: Defender, defence: Defence, tested: AttackedImages, calibration: AttackedImages, seed: int
) -> tuple[Answers | None, Sequence[HeadRow | ImpossibleRow]]:
    """Return the answers with a defence and its heads, or none and why the model has nothing to silence."""
    if defence == "none":
        return defender.undefended(tested), []
    if defence == "prompts":
        return defender.by_prompts(tested), []
    if defence == "masking":
        return defender.by_masking(tested), []
    try:
        scores = defender.attention_to_words(calibration)
    except ConfigError as error:  # an image tower without a class token
        return None, [ImpossibleRow(seed=seed, defence=defence, reason=error.given)]
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


def _count(
    answers: Answers, defence: Defence, images: AttackedImages, seed: int, *, num_classes: int
) -> DefenceRow:
    return DefenceRow(
        seed=seed,
        defence=defence,
        clean_accuracy=float((answers.clean == images.labels).double().mean()),
        attacked_accuracy=float((answers.attacked == images.labels).double().mean()),
        flipped=float(((answers.attacked == images.words) & (answers.clean != images.words)).double().mean()),
        looked_for_words=answers.found_words,
        num_images=len(images.labels),
        num_classes=num_classes,
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
