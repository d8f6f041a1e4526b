"""Claim: a CLIP predicts the word written on an image; three defences need no training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import sqrt
from random import Random
from statistics import fmean
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int, UInt8
from PIL import Image
from pydantic import Field, model_validator
from torch import Tensor

from vitrail.core.errors import ConfigError, DataError
from vitrail.data.source import ImageSource
from vitrail.interpret import record_attention
from vitrail.interpret.heads import CLASS_TOKEN, silence_heads
from vitrail.interpret.record import tapped_layers
from vitrail.lab import harness as lab
from vitrail.lab.small_clip import (
    COLOURS,
    SHAPES,
    TEMPLATE,
    TEMPLATE_WITH_WORD,
    SmallClip,
    draw_shape,
    hide_words,
    to_pixels,
    write_word,
)
from vitrail.tasks.classification.opening import open_dataset
from vitrail.tasks.classification.settings import ImageDataSettings
from vitrail.tasks.contrastive.predictor import ImageTextEncoder
from vitrail.tasks.contrastive.zero_shot import SLOT, embed_classes

Defence = Literal["none", "prompts", "masking", "silencing"]
DEFENCES: tuple[Defence, ...] = get_args(Defence)

TOWER = "image."  # name prefix of its layers
LOST_AT_MOST = 0.01  # of the accuracy on clean images; Hufe et al. 2025
GAINED_AT_LEAST = 0.001  # by each head; their published code
USELESS_AT_MOST = 10  # heads in a row that gain less; likewise

Head = tuple[str, int]


def read_images(
    source: str, encoder: ImageTextEncoder, *, count: int, max_classes: int, seed: int
) -> tuple[UInt8[Tensor, "images 3 height width"], Int[Tensor, " images"], Sequence[str]]:
    """Return at most ``count`` sampled test images at the model's size, their classes, and all class names.

    Raises:
        DataError: the data cannot be opened, or has less than two images or classes.
    """
    size = encoder.preprocessing.image_size
    dataset = open_dataset(source, settings=ImageDataSettings(source=source, image_size=size))
    names = [name.replace("_", " ") for name in dataset.class_names]
    if len(names) < 2 or len(dataset.test) < 2:
        raise DataError(
            f"{source} has {len(names)} classes and {len(dataset.test)} test images",
            expected="at least two of each",
            remedy="Name a folder with one folder of images for each class",
        )
    random = np.random.default_rng(seed)
    classes = np.sort(random.permutation(len(names))[:max_classes])
    indices = np.flatnonzero(np.isin(dataset.test.labels, classes))
    samples = ImageSource(dataset.test.take(random.permutation(indices)[:count]), encoder.preprocessing)
    loaded = [samples.load(index, None) for index in range(len(samples))]
    labels = torch.from_numpy(np.searchsorted(classes, [sample.label for sample in loaded]))
    return torch.stack([sample.image for sample in loaded]), labels, [names[each] for each in classes]


class AttackedImages(NamedTuple):
    """Images as they were, and with the name of another class written on each."""

    clean: UInt8[Tensor, "images 3 height width"]
    """At the model's size."""
    attacked: UInt8[Tensor, "images 3 height width"]
    has_word: Bool[Tensor, "images height width"]
    """Pixels of the word."""
    labels: Int[Tensor, " images"]
    words: Int[Tensor, " images"]
    """The class whose name is written on each; never its own."""


def attack(
    clean: UInt8[Tensor, "images 3 height width"],
    labels: Int[Tensor, " images"],
    names: Sequence[str],
    random: Random,
) -> AttackedImages:
    """Write the name of another class on each image, chosen at random like its style.

    Raises:
        ConfigError: there are less than two classes.
    """
    if len(names) < 2:
        raise ConfigError(
            f"an attack with {len(names)} classes",
            expected="two or more: the word on an image is the name of another class",
            remedy="Give images of several classes",
        )
    words, images, masks = [], [], []
    for pixels, label in zip(clean, labels.tolist(), strict=True):
        word = random.choice([other for other in range(len(names)) if other != label])
        picture = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
        written = write_word(picture, names[word], random)
        left, top, right, bottom = written.box
        mask = torch.zeros(pixels.shape[-2:], dtype=torch.bool)
        mask[top:bottom, left:right] = True
        words.append(word)
        images.append(written.image)
        masks.append(mask)
    return AttackedImages(clean, to_pixels(images), torch.stack(masks), labels, torch.tensor(words))


class Predictions(NamedTuple):
    """Predicted classes of clean and attacked images."""

    clean: Int[Tensor, " images"]
    attacked: Int[Tensor, " images"]
    found_words: float | None = None
    """Share of attacked images on which a word was detected, for defences that look for it."""


class Defender:
    """Zero-shot classification, undefended and with each defence.

    Args:
        template: prompt with ``{}`` for a name.
        template_with_word: prompt with ``{word}`` for a written word as well.
    """

    def __init__(
        self, encoder: ImageTextEncoder, names: Sequence[str], *, template: str, template_with_word: str
    ) -> None:
        self.encoder, self.names = encoder, names
        self.classes = embed_classes(encoder, names, [template])
        sentences = [
            template_with_word.replace(SLOT, name).replace("{word}", word)
            for name in names
            for word in names
            if word != name
        ]
        named = encoder.embed_texts(sentences).unflatten(0, (len(names), len(names) - 1))
        self.aware = torch.cat((self.classes[:, None], named), dim=1)  # classes sentences dim

    def predict(
        self, images: AttackedImages, defence: Defence = "none", heads: Sequence[Head] = ()
    ) -> Predictions:
        """Predict the classes of clean and attacked images: those of the nearest prompts.

        With ``prompts``, a class has one for each other class name as well, written on its images, since a
        defender does not know what is written. ``masking`` hides every patch that may hold a word, and
        ``silencing`` the output of ``heads`` for the class token.
        """
        pixels, found = (images.clean, images.attacked), None
        classes = self.aware if defence == "prompts" else self.classes[:, None]
        if defence == "masking":
            clean, attacked = (
                torch.stack([hide_words(each, self.patch_size) for each in part]) for part in pixels
            )
            pixels, found = (clean, attacked), _mean((attacked != images.attacked).flatten(1).any(dim=1))
        by_layer: dict[str, list[int]] = defaultdict(list)
        for layer, head in heads:
            by_layer[layer].append(head)
        with silence_heads(self.encoder.model, by_layer):
            embedded = [self.encoder.embed_pixels(part) for part in pixels]
        cosines = (torch.einsum("id,csd->ics", each, classes) for each in embedded)
        clean, attacked = (each.amax(dim=-1).argmax(dim=-1) for each in cosines)
        return Predictions(clean, attacked, found)

    @property
    def patch_size(self) -> int:
        """Pixels between the tokens of the image tower, or a sixteenth of the image if it has none."""
        found = getattr(self.encoder.model.get_submodule("image").config, "patch_size", None)
        return int(found) if found else max(1, self.encoder.preprocessing.image_size[0] // 16)

    @torch.inference_mode()
    def attention_to_words(self, images: AttackedImages) -> dict[Head, float]:
        """Return the share of each head's attention from the class token to patches with a word.

        The class token itself is left out of the total; the result is the mean over the images.

        Raises:
            ConfigError: the image tower has no class token that attends to patches.

        Paper: Hufe et al. 2025 (Dyslexify), the typographic attention score. Departs from the paper: words
        stand anywhere, so the share is computed per image.
        """
        encoder, totals = self.encoder, defaultdict[Head, float](float)
        if not any(name.startswith(TOWER) for name in tapped_layers(encoder.model)):
            raise _nothing_to_silence("the image tower mixes without attention")
        parts = zip(
            images.attacked.split(encoder.batch_size), images.has_word.split(encoder.batch_size), strict=True
        )
        for pixels, has_word in parts:
            batch = encoder.preprocessing.normalise(pixels.to(encoder.device))
            with record_attention(encoder.model, layers=TOWER, queries=[CLASS_TOKEN]) as maps:
                encoder.model.embed_images(batch)
            for each in maps:
                if each.grid is None or each.num_prefix < 1 or each.kind != "self":
                    raise _nothing_to_silence("the image tower has no class token that attends to patches")
                to_patches = each.weights[:, :, 0, each.num_prefix :].cpu()  # b h n
                share = F.adaptive_max_pool2d(has_word[:, None].float(), each.grid).flatten(1)  # b n
                on_words = (to_patches * share[:, None]).sum(dim=-1) / to_patches.sum(dim=-1)
                for head, value in enumerate(on_words.sum(dim=0).tolist()):
                    totals[each.layer, head] += value
        return {head: total / len(images.labels) for head, total in totals.items()}


def choose_heads(
    predict: Callable[[Sequence[Head]], Predictions], labels: Tensor, scores: Mapping[Head, float]
) -> list[Head]:
    """Return the heads to silence: those that attend to words most, at little cost on clean images.

    Args:
        predict: predicts while some heads are silenced, images that the defence is not tested on.
        scores: as ``Defender.attention_to_words`` returns them.

    Paper: Hufe et al. 2025 (Dyslexify), the greedy selection, with the limits of its published code. Departs
    from the paper: a head that costs too much clean accuracy is skipped, and the search goes on.
    """

    def accuracies(heads: Sequence[Head]) -> tuple[float, float]:
        predicted = predict(heads)
        return _mean(predicted.clean == labels), _mean(predicted.attacked == labels)

    first, attacked = accuracies(())
    chosen, useless = list[Head](), 0
    for head in sorted(scores, key=lambda head: -scores[head]):
        clean, reached = accuracies((*chosen, head))
        if first - clean <= LOST_AT_MOST and reached - attacked >= GAINED_AT_LEAST:
            chosen.append(head)
            attacked, useless = reached, 0
        else:
            useless += 1
            if useless > USELESS_AT_MOST:
                break
    return chosen


def _nothing_to_silence(given: str) -> ConfigError:
    return ConfigError(
        given,
        expected="an image tower with a class token, such as CLIP's own",
        remedy="Choose another model, or the other defences",
    )


def _mean(is_so: Tensor) -> float:
    return float(is_so.double().mean())


class DefenceRow(lab.SeededRow):
    """Predictions of one model with one defence, on images as they are and with a word written on each."""

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


class ImpossibleRow(lab.SeededRow):
    """A defence that cannot be applied to the model."""

    defence: Defence
    """Which."""
    reason: str
    """Why."""


class HeadRow(lab.SeededRow):
    """One head of the image tower."""

    layer: str
    """Name of its layer."""
    head: int
    """Its number in the layer."""
    attention_to_words: float
    """Share of the class token's attention to patches that goes to those with a word."""
    is_silenced: bool
    """Whether the defence silences it."""


class ExampleRow(lab.SeededRow):
    """One attacked image and its predictions."""

    index: int
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
    f"Holds if (1) at least {FOOLED:.0%} of the predictions become the written word, and (2) "
    f"each of the three defences brings that to at most {BETTER:.0%} of what it was, at a cost of at "
    f"most {LOST:.0%} of accuracy on clean images, all as means over the seeds. Partly if (1) is so and "
    f"one defence does it. Undecided with fewer than {FEWEST} images of a seed, with a model that is right "
    f"on clean images no more than {ERRORS_ABOVE} standard errors above chance, and if it hangs on a "
    "defence that is not possible for the model."
)


def _decide(is_fooled: bool, helps: Sequence[bool], *, num_missing: int) -> lab.Verdict:
    """Return the verdict; undecided where it depends on the missing defences."""
    verdicts = set[lab.Verdict]()
    for would_help in (False, True):
        supposed = [*helps, *[would_help] * num_missing]
        verdicts.add(lab.decide(holds=is_fooled and all(supposed), partly=is_fooled and any(supposed)))
    return verdicts.pop() if len(verdicts) == 1 else "undecided"


def _doubts(rows: Sequence[DefenceRow], clean_accuracy: float) -> list[str]:
    """Return why these images and this model decide nothing, if so."""
    doubts = []
    num_images = min(lab.column(rows, "num_images", defence="none"))
    if num_images < FEWEST:
        doubts.append(f"{num_images} images are fewer than {FEWEST}")
    chance = 1 / rows[0].num_classes
    # Of one seed: where a model is given, the seeds share images.
    if clean_accuracy <= chance + ERRORS_ABOVE * sqrt(chance * (1 - chance) / num_images):
        doubts.append(
            f"the clean accuracy of {clean_accuracy:.0%} is not {ERRORS_ABOVE} standard errors above the "
            f"{chance:.0%} of chance"
        )
    return doubts


SHOWN, COLUMNS = 6, 3  # attacked images in the picture
FIELDS = {
    "flipped": "predicted as the word",
    "attacked_accuracy": "right, attacked",
    "clean_accuracy": "right, clean",
}


def _draw_shares(axes: lab.Axes, rows: Sequence[DefenceRow], impossible: Sequence[ImpossibleRow]) -> None:
    """Plot how often each defence's predictions are the written word and the true class."""
    used = [defence for defence in DEFENCES if defence in lab.column(rows, "defence")]
    for shift, (colour, (field, meaning)) in enumerate(zip(lab.COLOURS[1:], FIELDS.items(), strict=False)):
        positions = [index + 0.26 * (shift - 1) for index in range(len(used))]
        values = [lab.column(rows, field, defence=defence) for defence in used]
        axes.bar(positions, list(map(fmean, values)), width=0.24, color=colour, label=meaning, alpha=0.75)
        for position, each in zip(positions, values, strict=True):
            axes.scatter([position] * len(each), each, color="black", s=7, zorder=3, clip_on=False)
    names = [*used, *dict.fromkeys(f"{row.defence}:\nnot possible" for row in impossible)]
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(0, 1)
    num_images = min(lab.column(rows, "num_images"))
    title = f"predictions by defence; dots are seeds, of {num_images} images each"
    lab.label(axes, x="", y="share of images", title=title)
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=3)


def _draw_heads(axes: lab.Axes, rows: Sequence[HeadRow]) -> None:
    """Plot how much each head attends to words, by layer."""
    layers = list(dict.fromkeys(row.layer for row in rows))
    for is_silenced, colour, meaning in ((False, lab.COLOURS[0], "kept"), (True, lab.COLOURS[1], "silenced")):
        chosen = lab.rows_of(rows, HeadRow, is_silenced=is_silenced)
        numbers = [layers.index(row.layer) + 1 for row in chosen]
        axes.scatter(numbers, lab.column(chosen, "attention_to_words"), color=colour, label=meaning, s=18)
    lab.label(axes, x="layer", y="attention to words", title="heads of all seeds", legend=True)
    axes.set_xticks(range(1, len(layers) + 1))


def _draw_examples(axes: lab.Axes, rows: Sequence[ExampleRow], images: Sequence[np.ndarray]) -> None:
    """Show attacked images with their predictions, in two rows."""
    axes.axis("off")
    axes.set_title("shown + written: predicted, and with prompts", fontsize=10)
    for index, (row, image) in enumerate(zip(rows, images, strict=True)):
        x, bottom = (index % COLUMNS) / COLUMNS, 0.52 if index < COLUMNS else 0.0
        text = f"{row.true_class} + {row.word}:\n{row.undefended}, {row.defended}"
        style: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 7, "transform": axes.transAxes}
        axes.text(x + 0.5 / COLUMNS, bottom, text, **style)
        inset = axes.inset_axes((x + 0.03, bottom + 0.12, 0.27, 0.35))
        inset.imshow(image, interpolation="nearest")
        inset.axis("off")


class Typographic(SmallClip, lab.SeededClaim):
    """Attack a CLIP with written words, and defend it; a small one is trained unless weights are given."""

    statement = (
        "A CLIP whose captions mention written words takes a word on an image for what it shows; prompts "
        "that name the word, hiding it, and silencing the heads that read it help without any training."
    )
    source = (
        "Goh et al. 2021, section on typographic attacks; Azuma and Matsui 2023; Hufe et al. 2025 (Dyslexify)"
    )
    published = (
        "\"By exploiting the model's ability to read text robustly, we find that even photographs of "
        'hand-written text can often fool the model." An apple with the word iPod is an iPod (Goh et al.). '
        "Silencing heads that attend to text raises accuracy on attacked ImageNet-100 by up to 22.06 % and "
        "costs less than 1 % on clean images (Hufe et al.)."
    )
    criterion = CRITERION

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
    num_tested: int = Field(default=300, ge=1)
    """Most test images."""
    num_calibration: int = Field(default=200, ge=1)
    """Most further images to choose heads on; half of the given images where those are few."""

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

    def run(self, progress: lab.OnProgress, *, seed: int) -> list[TypographicRow]:
        what = "training a small CLIP" if self.weights is None else "loading the CLIP"
        parts = (what, *(f"defence {defence}" for defence in DEFENCES))
        reports = lab.tracked(progress, list(product(self.seeds(seed), parts)), "seed {}: {}")
        rows: list[TypographicRow] = []
        for each in self.seeds(seed):
            next(reports)
            defender, tested, calibration = self._prepare(each)
            predicted: dict[Defence, Predictions] = {}
            for defence in DEFENCES:
                next(reports)
                found, further = _apply(defender, defence, tested, calibration, each)
                rows += further
                if found is not None:
                    predicted[defence] = found
                    rows.append(_count(found, defence, tested, each, num_classes=len(defender.names)))
            rows += _examples(predicted, tested, defender.names, each)
        next(reports, None)  # reports the end
        return rows

    def judge(self, rows: Sequence[TypographicRow]) -> lab.Judgement:
        counted = lab.rows_of(rows, DefenceRow)
        used = [defence for defence in DEFENCES if defence in lab.column(counted, "defence")]
        flips = {each: lab.mean(counted, "flipped", defence=each) for each in used}
        clean = {each: lab.mean(counted, "clean_accuracy", defence=each) for each in used}
        helps = [
            flips[each] <= BETTER * flips["none"] and clean["none"] - clean[each] <= LOST for each in used[1:]
        ]
        missing = list(dict.fromkeys((row.defence, row.reason) for row in lab.rows_of(rows, ImpossibleRow)))
        verdict = _decide(flips["none"] >= FOOLED, helps, num_missing=len(missing))
        doubts = _doubts(counted, clean["none"])
        if verdict == "undecided":
            doubts.append(f"it hangs on {' and '.join(defence for defence, _ in missing)}")
        looked = [row.looked_for_words for row in counted if row.looked_for_words is not None]
        parts = [", ".join(f"{each} {flips[each]:.0%} (clean accuracy {clean[each]:.0%})" for each in used)]
        parts += [f"masking finds a word on {fmean(looked):.0%} of them"] if looked else []
        parts += [f"{defence}: not possible for this model, because {reason}" for defence, reason in missing]
        parts += [f"undecided, because {' and '.join(doubts)}"] if doubts else []
        num_images = min(lab.column(counted, "num_images"))
        return lab.Judgement(
            verdict="undecided" if doubts else verdict,
            measured=f"Attacked images ({num_images} with each seed) whose prediction becomes the written "
            f"word: {'; '.join(parts)}",
        )

    def draw(self, rows: Sequence[TypographicRow]) -> lab.Figure:
        heads, examples = lab.rows_of(rows, HeadRow), lab.rows_of(rows, ExampleRow)
        shown = lab.rows_of(examples, ExampleRow, seed=examples[0].seed)
        figure, (shares, *of_heads, last) = lab.new_panels(3 if heads else 2)
        _draw_shares(shares, lab.rows_of(rows, DefenceRow), lab.rows_of(rows, ImpossibleRow))
        for axes in of_heads:
            _draw_heads(axes, heads)
        _draw_examples(last, shown, self._attack_again(shown))
        return figure

    def _prepare(self, seed: int) -> tuple[Defender, AttackedImages, AttackedImages]:
        """Return a model with its defences, and attacked images for the test and for choosing heads."""
        encoder = self.train_clip(seed) if self.weights is None else ImageTextEncoder(self.weights)
        attacked, names = self._attack(encoder, seed)
        defender = Defender(
            encoder, names, template=self.template, template_with_word=self.template_with_word
        )
        count = len(attacked.labels)
        left = count - min(self.num_calibration, count // 2)  # given images may be few
        tested, calibration = (
            AttackedImages(*(tensor[part] for tensor in attacked))
            for part in (slice(0, min(self.num_tested, left)), slice(left, None))
        )
        return defender, tested, calibration

    def _attack(self, encoder: ImageTextEncoder | None, seed: int) -> tuple[AttackedImages, Sequence[str]]:
        """Return attacked images of a seed and their class names; given images need the encoder."""
        count = self.num_tested + self.num_calibration
        names: Sequence[str] = SHAPES
        if self.images is None:
            random, colours = Random(f"tested {seed}"), tuple(COLOURS)
            shapes = [random.randrange(len(SHAPES)) for _ in range(count)]
            drawn = [
                draw_shape(SHAPES[each], random.choice(colours), random, size=self.size) for each in shapes
            ]
            pixels, labels = to_pixels(drawn), torch.tensor(shapes)
        else:
            assert encoder is not None
            pixels, labels, names = read_images(
                self.images, encoder, count=count, max_classes=self.max_classes, seed=seed
            )
        return attack(pixels, labels, names, Random(seed)), names

    def _attack_again(self, rows: Sequence[ExampleRow]) -> list[np.ndarray]:
        """Redraw the images of examples of one seed."""
        encoder = None if self.weights is None else ImageTextEncoder(self.weights)
        attacked = self._attack(encoder, rows[0].seed)[0].attacked
        return [attacked[row.index].permute(1, 2, 0).numpy() for row in rows]


CLAIM = Typographic()


def _apply(
    defender: Defender, defence: Defence, tested: AttackedImages, calibration: AttackedImages, seed: int
) -> tuple[Predictions | None, Sequence[HeadRow | ImpossibleRow]]:
    """Return the predictions and heads of a defence, or None and why it does not apply."""
    if defence != "silencing":
        return defender.predict(tested, defence), []
    try:
        scores = defender.attention_to_words(calibration)
    except ConfigError as error:  # an image tower without a class token
        return None, [ImpossibleRow(seed=seed, defence=defence, reason=error.given)]
    chosen = choose_heads(
        lambda heads: defender.predict(calibration, defence, heads), calibration.labels, scores
    )
    rows = [
        HeadRow(
            seed=seed, layer=layer, head=head, attention_to_words=score, is_silenced=(layer, head) in chosen
        )
        for (layer, head), score in scores.items()
    ]
    return defender.predict(tested, defence, chosen), rows


def _count(
    predicted: Predictions, defence: Defence, images: AttackedImages, seed: int, *, num_classes: int
) -> DefenceRow:
    became_word = (predicted.attacked == images.words) & (predicted.clean != images.words)
    return DefenceRow(
        seed=seed,
        defence=defence,
        clean_accuracy=_mean(predicted.clean == images.labels),
        attacked_accuracy=_mean(predicted.attacked == images.labels),
        flipped=_mean(became_word),
        looked_for_words=predicted.found_words,
        num_images=len(images.labels),
        num_classes=num_classes,
    )


def _examples(
    predicted: dict[Defence, Predictions], images: AttackedImages, names: Sequence[str], seed: int
) -> Iterator[ExampleRow]:
    for index in range(min(SHOWN, len(images.labels))):
        yield ExampleRow(
            seed=seed,
            index=index,
            true_class=names[int(images.labels[index])],
            word=names[int(images.words[index])],
            undefended=names[int(predicted["none"].attacked[index])],
            defended=names[int(predicted["prompts"].attacked[index])],
        )
