"""Claim: a CLIP predicts the word written on an image; three defences need no training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator

from vitrail.core.config import Config
from vitrail.core.errors import ConfigError
from vitrail.lab.harness import COLOURS as LINES
from vitrail.lab.harness import (
    Judgement,
    OnProgress,
    Progress,
    Row,
    Verdict,
    decide,
    label,
    new_panels,
    rows_of,
)
from vitrail.lab.small_clip import COLOURS, SHAPES, TEMPLATE, TEMPLATE_WITH_WORD, draw_shape, to_pixels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from vitrail.lab.typographic_defences import Answers, AttackedImages, Defender
    from vitrail.tasks.contrastive.predictor import ImageTextEncoder

Defence = Literal["none", "prompts", "masking", "silencing"]
DEFENCES: tuple[Defence, ...] = ("none", "prompts", "masking", "silencing")


class DefenceRow(Row):
    """Predictions of one model with one defence, on images as they are and with a word written on each."""

    seed: int
    """Of the model where one is trained, of images and of words."""
    defence: Defence
    """None; prompts that name a written word; hiding what may be words; silencing the heads that read."""
    clean_accuracy: float
    """Accuracy on images without a word."""
    attacked_accuracy: float
    """Accuracy on images with the name of another class."""
    flipped: float
    """Share of images whose prediction becomes the written word, and was not before."""
    looked_for_words: float | None
    """Share of attacked images on which a possible word was detected; only masking looks for words."""
    num_images: int
    """Number of tested images."""
    num_classes: int
    """Number of classes."""


class ImpossibleRow(Row):
    """A defence that cannot be applied to the model."""

    seed: int
    """As in the other table."""
    defence: Defence
    """Which."""
    reason: str
    """Why."""


class HeadRow(Row):
    """One head of the image tower."""

    seed: int
    """As in the other table."""
    layer: str
    """Name of its layer."""
    head: int
    """Its number in the layer."""
    attention_to_words: float
    """Share of the class token's attention to patches that goes to those with a word."""
    is_silenced: bool
    """Whether the defence silences it."""


class ExampleRow(Row):
    """One attacked image and its predictions."""

    seed: int
    """As in the other tables."""
    place: int
    """Index of the image among those of its seed."""
    true_class: str
    """The class shown."""
    word: str
    """The word written."""
    undefended: str
    """The prediction without a defence."""
    defended: str
    """The prediction with prompts that name a written word."""


TypographicRow = DefenceRow | ImpossibleRow | HeadRow | ExampleRow


FOOLED = 0.2  # share of attacked images that make an attack
BETTER = 0.75  # largest ratio of the flips with a defence to those without
LOST = 0.05  # accuracy on clean images that a defence may cost
FEWEST = 50  # images of a seed: each is then 2 %, and the cost of a defence is not one image
ERRORS_ABOVE = 2  # standard errors that a model must be above chance
CRITERION = (
    f"Holds if (1) the answers to at least {FOOLED:.0%} of the images become the written word, and (2) "
    f"each of the three defences brings that to at most {BETTER:.0%} of what it was, at a cost of at "
    f"most {LOST:.0%} of accuracy on clean images, all as means over the seeds. Partly if (1) is so and "
    f"one defence does it. Undecided with fewer than {FEWEST} images of a seed, with a model that is right "
    f"on clean images no more than {ERRORS_ABOVE} standard errors above chance, and if it hangs on a "
    "defence that is not possible for the model."
)


def judge_attack(rows: Sequence[TypographicRow]) -> Judgement:
    """Compare the shares of flipped predictions and the cost of the defences, over all seeds."""
    counted = rows_of(rows, DefenceRow)
    used = [defence for defence in DEFENCES if any(row.defence == defence for row in counted)]
    of_defence = {each: [row for row in counted if row.defence == each] for each in used}
    flips = {each: fmean(row.flipped for row in found) for each, found in of_defence.items()}
    clean = {each: fmean(row.clean_accuracy for row in found) for each, found in of_defence.items()}
    helps = [
        flips[each] <= BETTER * flips["none"] and clean["none"] - clean[each] <= LOST for each in used[1:]
    ]
    missing = list(dict.fromkeys((row.defence, row.reason) for row in rows_of(rows, ImpossibleRow)))
    verdict = _decide(flips["none"] >= FOOLED, helps, num_missing=len(missing))
    doubts = _doubts(of_defence["none"], clean["none"])
    if verdict == "undecided":
        doubts.append(f"it hangs on {' and '.join(defence for defence, _ in missing)}")
    looked = [row.looked_for_words for row in counted if row.looked_for_words is not None]
    parts = [", ".join(f"{each} {flips[each]:.0%} (clean accuracy {clean[each]:.0%})" for each in used)]
    parts += [f"masking finds a word on {fmean(looked):.0%} of them"] if looked else []
    parts += [f"{defence}: not possible for this model, because {reason}" for defence, reason in missing]
    parts += [f"undecided, because {' and '.join(doubts)}"] if doubts else []
    num_images = min(row.num_images for row in counted)
    return Judgement(
        verdict="undecided" if doubts else verdict,
        measured=f"Attacked images ({num_images} with each seed) whose answer becomes the written word: "
        f"{'; '.join(parts)}",
    )


def _decide(is_fooled: bool, helps: Sequence[bool], *, num_missing: int) -> Verdict:
    """Return the verdict; undecided where it depends on the missing defences."""
    verdicts = set[Verdict]()
    for would_help in (False, True):
        supposed = [*helps, *[would_help] * num_missing]
        verdicts.add(decide(holds=is_fooled and all(supposed), partly=is_fooled and any(supposed)))
    return verdicts.pop() if len(verdicts) == 1 else "undecided"


def _doubts(undefended: Sequence[DefenceRow], clean_accuracy: float) -> list[str]:
    """Return why these images and this model decide nothing, if so."""
    doubts = []
    num_images = min(row.num_images for row in undefended)
    if num_images < FEWEST:
        doubts.append(f"{num_images} images are fewer than {FEWEST}")
    chance = 1 / undefended[0].num_classes
    # Of one seed: where a model is given, the seeds share images.
    error = sqrt(chance * (1 - chance) / num_images)
    if clean_accuracy <= chance + ERRORS_ABOVE * error:
        doubts.append(
            f"the clean accuracy of {clean_accuracy:.0%} is not {ERRORS_ABOVE} standard errors above the "
            f"{chance:.0%} of chance"
        )
    return doubts


COLUMNS = 3  # of examples


def draw_shares(axes: Axes, rows: Sequence[DefenceRow], impossible: Sequence[ImpossibleRow]) -> None:
    """Plot how often each defence's predictions are the written word and the true class.

    Args:
        impossible: defences that leave a gap.
    """
    fields = (
        ("flipped", "answered with the word"),
        ("attacked_accuracy", "right, attacked"),
        ("clean_accuracy", "right, clean"),
    )
    used = [defence for defence in DEFENCES if any(row.defence == defence for row in rows)]
    for shift, (colour, (field, meaning)) in enumerate(zip(LINES[1:], fields, strict=False)):
        places = [place + 0.26 * (shift - 1) for place in range(len(used))]
        values = [[getattr(row, field) for row in rows if row.defence == defence] for defence in used]
        axes.bar(
            places, [fmean(each) for each in values], width=0.24, color=colour, label=meaning, alpha=0.75
        )
        for place, each in zip(places, values, strict=True):
            axes.scatter([place] * len(each), each, color="black", s=7, zorder=3, clip_on=False)
    names = [*used, *dict.fromkeys(f"{row.defence}:\nnot possible" for row in impossible)]
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(0, 1)
    num_images = min(row.num_images for row in rows)
    title = f"answers by defence; dots are seeds, of {num_images} images each"
    label(axes, x="", y="share of images", title=title)
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=3)


def draw_heads(axes: Axes, rows: Sequence[HeadRow]) -> None:
    """Plot how much each head attends to words, by layer."""
    layers = list(dict.fromkeys(row.layer for row in rows))
    for is_silenced, colour, meaning in (
        (False, LINES[0], "kept"),
        (True, LINES[1], "silenced"),
    ):
        chosen = [row for row in rows if row.is_silenced == is_silenced]
        axes.scatter(
            [layers.index(row.layer) + 1 for row in chosen],
            [row.attention_to_words for row in chosen],
            color=colour,
            label=meaning,
            s=18,
            alpha=0.8,
        )
    label(axes, x="layer", y="attention to words", title="heads of all seeds")
    axes.set_xticks(range(1, len(layers) + 1))
    axes.legend(frameon=False, fontsize=8)


def draw_examples(axes: Axes, rows: Sequence[ExampleRow], images: Sequence[np.ndarray]) -> None:
    """Show at most six attacked images with their predictions, in two rows."""
    axes.axis("off")
    axes.set_title("shown + written: answered, and with prompts", fontsize=10)
    for place, (row, image) in enumerate(zip(rows, images, strict=True)):
        x, bottom = (place % COLUMNS) / COLUMNS, 0.52 if place < COLUMNS else 0.0
        text = f"{row.true_class} + {row.word}:\n{row.undefended}, {row.defended}"
        axes.text(
            x + 0.5 / COLUMNS, bottom, text, ha="center", va="bottom", fontsize=7, transform=axes.transAxes
        )
        inset = axes.inset_axes((x + 0.03, bottom + 0.12, 0.27, 0.35))
        inset.imshow(image, interpolation="nearest")
        inset.axis("off")


SHOWN = 6  # attacked images in the picture


class Typographic(Config):
    """Attack a CLIP with written words, and defend it; a small one is trained unless weights are given."""

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
    """A CLIP, such as hf:openai/clip-vit-base-patch32 or a run; null trains a small one for each seed."""
    images: str | None = None
    """Images of classes that vitrail train takes; the test images are used, or part of an undivided folder.
    Needed with weights, and only then."""
    max_classes: int = Field(default=100, ge=2)
    """Most classes of the given images; more are subsampled, as prompts name every pair of classes."""
    template: str = TEMPLATE
    """Prompt with {} for the class name."""
    template_with_word: str = TEMPLATE_WITH_WORD
    """Prompt with {word} for a written word as well."""
    num_seeds: int = Field(default=3, ge=1)
    num_tested: int = Field(default=300, ge=1)
    """Most test images."""
    num_calibration: int = Field(default=200, ge=1)
    """Most further images to choose heads on; half of the given images where those are few."""
    size: int = Field(default=48, ge=16)
    """Side of composed images in pixels."""
    width: int = Field(default=48, ge=8, multiple_of=8)
    """Token width of the small CLIP."""
    num_scenes: int = Field(default=3000, ge=2)
    """Training images composed."""
    num_steps: int = Field(default=400, ge=1)
    batch_size: int = Field(default=96, ge=2)
    learning_rate: float = Field(default=3e-3, gt=0)
    """Peak rate of AdamW, for what Muon does not train."""

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
        return judge_attack(rows)

    def draw(self, rows: Sequence[TypographicRow]) -> Figure:
        heads, examples = rows_of(rows, HeadRow), rows_of(rows, ExampleRow)
        shown = [row for row in examples if row.seed == examples[0].seed]
        figure, (shares, *of_heads, last) = new_panels(3 if heads else 2)
        draw_shares(shares, rows_of(rows, DefenceRow), rows_of(rows, ImpossibleRow))
        for axes in of_heads:
            draw_heads(axes, heads)
        draw_examples(last, shown, self._attack_again(shown))
        return figure

    def _prepare(self, seed: int) -> tuple[Defender, AttackedImages, AttackedImages]:
        """Return a model with its defences, and attacked images for the test and for choosing heads."""
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
        """Return attacked images of a seed and their class names; given images need the encoder."""
        from vitrail.lab.typographic_defences import attack, read_images

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
        """Redraw the images of examples of one seed."""
        from vitrail.tasks.contrastive.predictor import ImageTextEncoder

        encoder = None if self.weights is None else ImageTextEncoder(self.weights)
        attacked = self._attack(encoder, rows[0].seed)[0].attacked
        return [attacked[row.place].permute(1, 2, 0).numpy() for row in rows]


CLAIM = Typographic()


def _answer(
    defender: Defender, defence: Defence, tested: AttackedImages, calibration: AttackedImages, seed: int
) -> tuple[Answers | None, Sequence[HeadRow | ImpossibleRow]]:
    """Return the predictions and heads of a defence, or None and why it does not apply."""
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
