"""A CLIP small enough to be trained in a minute, on composed images whose captions mention written words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from vitrail.data.augment import shift
from vitrail.data.image_text_preprocessing import ImageTextPreprocessing
from vitrail.data.text.rows import bounded_row, join_rows
from vitrail.lab.scenes import COLOURS, SHAPES, draw_scene, to_pixels
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.clip import CLIP, CLIPConfig
from vitrail.tasks.contrastive.objective import contrast
from vitrail.tasks.contrastive.predictor import ImageTextEncoder
from vitrail.train.optimise import Optimisers
from vitrail.train.settings import OptimSettings

PAD_ID, BEGIN_ID, END_ID, UNKNOWN_ID = range(4)
GRAMMAR = ("a", "photo", "of", "the", "word", "with")
MAX_LENGTH = 14
MAX_SHIFT = 2  # pixels
WARMUP = 0.1  # share of the steps


class WholeWords:
    """Subwords that are the words of composed captions; any other word is unknown."""

    def __init__(self) -> None:
        self.words = (*GRAMMAR, *SHAPES, *COLOURS)
        self.size = len(self.words) + UNKNOWN_ID + 1
        self.pad_id, self.begin_id, self.end_id, self.unknown_id = PAD_ID, BEGIN_ID, END_ID, UNKNOWN_ID
        self._numbers = {word: number for number, word in enumerate(self.words, start=UNKNOWN_ID + 1)}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the number of each word, without begin and end."""
        return [[self._numbers.get(word, UNKNOWN_ID) for word in text.split()] for text in texts]

    def encode_sampled(self, texts: Sequence[str], *, dropout: float, seed: int) -> list[list[int]]:
        """Cut texts as ``encode`` does: words have no parts."""
        return self.encode(texts)

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Join the words of each row, without special ones."""
        return [
            " ".join(self.words[number - UNKNOWN_ID - 1] for number in row if number > UNKNOWN_ID)
            for row in rows
        ]

    def pieces(self, row: Sequence[int]) -> list[str]:
        """Write each word of a row."""
        return [self.words[number - UNKNOWN_ID - 1] if number > UNKNOWN_ID else "?" for number in row]


def small_config(size: int, width: int) -> CLIPConfig:
    """Return settings of a CLIP whose image tower has three convolutions, then blocks with a class token.

    Args:
        size: pixels of a side.
        width: of a token.
    """
    return CLIPConfig(
        image_size=(size, size),
        embedding_dim=width,
        image_model="vit_nano",
        image_model_settings={
            "stem": {"channels": [width // 4, width // 2, width], "strides": [2, 2, 2]},
            "patch_size": 8,
            "width": width,
            "depth": 4,
            "num_heads": 4,
            "class_token": True,
            "pool": "class",
        },
        vocabulary_size=WholeWords().size,
        max_length=MAX_LENGTH,
        pad_id=PAD_ID,
        begin_id=BEGIN_ID,
        end_id=END_ID,
        text_width=width,
        text_depth=2,
        text_num_heads=4,
        activation="gelu",
    )


def train_small_clip(
    *,
    seed: int,
    size: int,
    width: int,
    num_scenes: int,
    num_steps: int,
    batch_size: int,
    learning_rate: float,
) -> ImageTextEncoder:
    """Compose images with captions, train a CLIP on them, and return it ready for use.

    Args:
        seed: of images, weights and order.
        size: pixels of a side.
        width: of a token.
        num_scenes: images that are composed.
        num_steps: of Muon and AdamW, with a rate that rises, then falls along half a cosine.
        batch_size: images of a step.
        learning_rate: the highest of AdamW.
    """
    random, subwords = Random(seed), WholeWords()
    scenes = [draw_scene(random, size=size) for _ in range(num_scenes)]
    rows = [
        bounded_row(row, subwords, MAX_LENGTH) for row in subwords.encode([each.caption for each in scenes])
    ]
    tokens, lengths = join_rows(rows, pad_id=PAD_ID)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = small_config(size, width).build()
        pixels = to_pixels([each.image for each in scenes])
        preprocessing = ImageTextPreprocessing(image_size=(size, size))
        _learn(
            model,
            (pixels, tokens, lengths),
            preprocessing,
            num_steps=num_steps,
            batch_size=batch_size,
            learning_rate=learning_rate,
        )
    loaded = LoadedModel(
        model.eval(), {"name": "clip_tiny"}, preprocessing.model_dump(mode="json"), [], {"origin": "the lab"}
    )
    return ImageTextEncoder(loaded, batch_size=256, subwords=subwords)


def _learn(
    model: CLIP,
    data: tuple[UInt8[Tensor, "n 3 h w"], Int[Tensor, "n tokens"], Int[Tensor, " n"]],
    preprocessing: ImageTextPreprocessing,
    *,
    num_steps: int,
    batch_size: int,
    learning_rate: float,
) -> None:
    pixels, tokens, lengths = data
    generator = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
    # Muon for hidden matrices: it learned the shapes in half as many steps as AdamW alone.
    settings = OptimSettings(name="muon", learning_rate=learning_rate, betas=(0.9, 0.98))
    optimisers = Optimisers(model, settings)
    model.train()
    for step in range(num_steps):
        chosen = torch.randperm(len(pixels), generator=generator)[:batch_size]
        images = shift(preprocessing.normalise(pixels[chosen]), MAX_SHIFT, generator)
        output = model(images, tokens[chosen], lengths[chosen])
        targets = torch.arange(len(chosen))
        losses, _ = contrast(output.images, output.texts, output.images, output.texts, targets, output.scale)
        torch.autograd.backward(losses.mean())
        optimisers.clip()
        optimisers.set_rate(_share((step + 0.5) / num_steps))
        optimisers.step()


def _share(progress: float) -> float:
    """Return the rate at some share of the training, as a share of the highest."""
    if progress < WARMUP:
        return progress / WARMUP
    return (1 + math.cos(math.pi * (progress - WARMUP) / (1 - WARMUP))) / 2
