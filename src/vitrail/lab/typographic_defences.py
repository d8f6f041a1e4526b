"""Typographic attacks on a CLIP, and three defences without training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int, UInt8
from PIL import Image
from torch import Tensor

from vitrail.core.errors import ConfigError, DataError
from vitrail.data.source import ImageSource
from vitrail.interpret import record_attention
from vitrail.interpret.heads import CLASS_TOKEN, silence_heads
from vitrail.interpret.record import tapped_layers
from vitrail.lab.small_clip import hide_words, to_pixels, write_word
from vitrail.tasks.classification.opening import open_dataset
from vitrail.tasks.classification.settings import ImageDataSettings
from vitrail.tasks.contrastive.predictor import ImageTextEncoder
from vitrail.tasks.contrastive.prompts import embed_classes, fill


def read_images(
    source: str, encoder: ImageTextEncoder, *, count: int, max_classes: int, seed: int
) -> tuple[UInt8[Tensor, "images 3 height width"], Int[Tensor, " images"], Sequence[str]]:
    """Return test images of a data set at the model's size, their classes and all class names.

    Args:
        encoder: its preprocessing is used.
        count: most images, sampled.
        max_classes: most classes, sampled if there are more.

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
    places = np.flatnonzero(np.isin(dataset.test.labels, classes))
    samples = ImageSource(dataset.test.take(random.permutation(places)[:count]), encoder.preprocessing)
    loaded = [samples.load(index, None) for index in range(len(samples))]
    labels = torch.from_numpy(np.searchsorted(classes, [sample.label for sample in loaded]))
    return torch.stack([sample.image for sample in loaded]), labels, [names[each] for each in classes]


TOWER = "image."  # name prefix of its layers
LOST_AT_MOST = 0.01  # of the accuracy on clean images; Hufe et al. 2025
GAINED_AT_LEAST = 0.001  # by each head; their published code
USELESS_AT_MOST = 10  # heads in a row that gain less; likewise

Head = tuple[str, int]


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

    def part(self, which: slice) -> AttackedImages:
        return AttackedImages(*(tensor[which] for tensor in self))


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
        word = random.choice([place for place in range(len(names)) if place != label])
        picture = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
        written = write_word(picture, names[word], random)
        left, top, right, bottom = written.box
        mask = torch.zeros(pixels.shape[-2:], dtype=torch.bool)
        mask[top:bottom, left:right] = True
        words.append(word)
        images.append(written.image)
        masks.append(mask)
    return AttackedImages(clean, to_pixels(images), torch.stack(masks), labels, torch.tensor(words))


class Answers(NamedTuple):
    """Predicted classes of clean and attacked images."""

    clean: Int[Tensor, " images"]
    attacked: Int[Tensor, " images"]
    found_words: float | None = None
    """Share of attacked images on which a word was detected, for defences that look for it."""


class Defender:
    """Zero-shot classification, undefended and with each defence.

    Args:
        encoder: a CLIP.
        names: class names.
        template: prompt with ``{}`` for a name.
        template_with_word: prompt with ``{word}`` for a written word as well.
    """

    def __init__(
        self, encoder: ImageTextEncoder, names: Sequence[str], *, template: str, template_with_word: str
    ) -> None:
        self.encoder, self.names = encoder, names
        self.classes = embed_classes(encoder, names, [template])
        sentences = [
            fill(template_with_word, name).replace("{word}", word)
            for name in names
            for word in names
            if word != name
        ]
        named = encoder.embed_texts(sentences).unflatten(0, (len(names), len(names) - 1))
        self.aware = torch.cat((self.classes[:, None], named), dim=1)  # classes sentences dim

    def undefended(self, images: AttackedImages) -> Answers:
        """Predict the class of the nearest prompt."""
        return Answers(self._nearest(images.clean), self._nearest(images.attacked))

    def by_prompts(self, images: AttackedImages) -> Answers:
        """Predict the class of the nearest prompt, whether it names a written word or none.

        The word is any other class name, since a defender does not know what is written.
        """

        def nearest(pixels: Tensor) -> Tensor:
            cosines = torch.einsum("id,csd->ics", self.encoder.embed_pixels(pixels), self.aware)
            return cosines.amax(dim=-1).argmax(dim=-1)

        return Answers(nearest(images.clean), nearest(images.attacked))

    def by_masking(self, images: AttackedImages) -> Answers:
        """Predict after hiding every patch that may hold a word."""
        clean, attacked = (
            torch.stack([hide_words(each, self.patch_size) for each in pixels])
            for pixels in (images.clean, images.attacked)
        )
        has_hidden = (attacked != images.attacked).flatten(1).any(dim=1)
        return Answers(self._nearest(clean), self._nearest(attacked), float(has_hidden.double().mean()))

    def by_silencing(self, images: AttackedImages, heads: Sequence[Head]) -> Answers:
        """Predict while some heads add nothing to the class token."""
        with silence_heads(self.encoder.module, by_layer(heads)):
            return self.undefended(images)

    @property
    def patch_size(self) -> int:
        """Pixels between the tokens of the image tower, or a sixteenth of the image if it has none."""
        tower = self.encoder.module.get_submodule("image").config
        found = getattr(tower, "patch_size", None)
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
        encoder, totals = self.encoder, dict[Head, float]()
        if not any(name.startswith(TOWER) for name in tapped_layers(encoder.module)):
            raise _nothing_to_silence("the image tower mixes without attention")
        parts = zip(
            images.attacked.split(encoder.batch_size), images.has_word.split(encoder.batch_size), strict=True
        )
        for pixels, has_word in parts:
            batch = encoder.preprocessing.normalise(pixels.to(encoder.device))
            with record_attention(encoder.module, layers=TOWER, queries=[CLASS_TOKEN]) as maps:
                encoder.model.embed_images(batch)
            for each in maps:
                if each.grid is None or each.num_prefix < 1 or each.kind != "self":
                    raise _nothing_to_silence("the image tower has no class token that attends to cells")
                to_cells = each.weights[:, :, 0, each.num_prefix :].cpu()  # b heads cells
                share = F.adaptive_max_pool2d(has_word[:, None].float(), each.grid).flatten(1)  # b cells
                on_words = (to_cells * share[:, None]).sum(dim=-1) / to_cells.sum(dim=-1)
                for head, value in enumerate(on_words.sum(dim=0).tolist()):
                    totals[each.layer, head] = totals.get((each.layer, head), 0.0) + value
        return {head: total / len(images.labels) for head, total in totals.items()}

    def choose_heads(self, images: AttackedImages, scores: Mapping[Head, float]) -> list[Head]:
        """Return the heads to silence: those that attend to words most, at little cost on clean images.

        Args:
            images: not those that the defence is tested on.
            scores: as ``attention_to_words`` returns them.

        Paper: Hufe et al. 2025 (Dyslexify), the greedy selection, with the limits of its published code.
        Departs from the paper: a head that costs too much clean accuracy is skipped, and the search goes on.
        """
        answers = self.undefended(images)
        clean, attacked = (_accuracy(each, images.labels) for each in (answers.clean, answers.attacked))
        first, chosen, useless = clean, list[Head](), 0
        for head in sorted(scores, key=lambda head: -scores[head]):
            answers = self.by_silencing(images, [*chosen, head])
            clean, reached = (_accuracy(each, images.labels) for each in (answers.clean, answers.attacked))
            if first - clean > LOST_AT_MOST or reached - attacked < GAINED_AT_LEAST:
                useless += 1
                if useless > USELESS_AT_MOST:
                    break
                continue
            chosen.append(head)
            attacked, useless = reached, 0
        return chosen

    def _nearest(self, pixels: Tensor) -> Tensor:
        return (self.encoder.embed_pixels(pixels) @ self.classes.T).argmax(dim=-1)


def _nothing_to_silence(given: str) -> ConfigError:
    return ConfigError(
        given,
        expected="an image tower with a class token, such as CLIP's own",
        remedy="Choose another model, or the other defences",
    )


def by_layer(heads: Sequence[Head]) -> dict[str, list[int]]:
    """Return the head numbers by layer name."""
    found: dict[str, list[int]] = {}
    for layer, head in heads:
        found.setdefault(layer, []).append(head)
    return found


def _accuracy(answers: Tensor, labels: Tensor) -> float:
    return float((answers == labels).double().mean())
