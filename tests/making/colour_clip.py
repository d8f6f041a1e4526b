"""A model of images and texts that knows colours and nothing else, so that right answers are known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from vitrail.data.text.subwords import SentencePieceSubwords, vocabulary_to_files
from vitrail.data.text_preprocessing import ImageTextPreprocessing
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import ImageTextModelConfig, ImageTextOutput

COLOURS = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 220)}
SENTENCES = [f"a {word} photo of a {colour} thing" for colour in COLOURS for word in ("big", "small")]
SIZE = (16, 24)


class ColourConfig(ImageTextModelConfig):
    """Settings of the model."""

    family: ClassVar[str] = "colour"
    paper: ClassVar[str] = "none"
    position_policy: ClassVar[str] = "none"
    size_policy: ClassVar[str] = "none"


class ColourCLIP(nn.Module):
    """Embed an image as its mean colour, and a text as the colours that it names."""

    def __init__(self, subwords: SentencePieceSubwords) -> None:
        super().__init__()
        ends = {"begin_id": subwords.begin_id, "end_id": subwords.end_id, "pad_id": subwords.pad_id}
        self.config = ColourConfig(
            image_size=SIZE, embedding_dim=3, vocabulary_size=subwords.size, max_length=20, **ends
        )
        table = torch.full((subwords.size, 3), 1e-3)
        for place, colour in enumerate(COLOURS):
            for piece in subwords.encode([colour])[0]:
                table[piece, place] += 1
        self.table = nn.Parameter(table)
        self.scale = torch.tensor(20.0)

    def forward(self, images: Tensor, tokens: Tensor, lengths: Tensor) -> ImageTextOutput:
        return ImageTextOutput(self.embed_images(images), self.embed_texts(tokens, lengths), self.scale)

    def embed_images(self, images: Tensor) -> Tensor:
        return F.normalize(images.mean(dim=(2, 3)) + 1, dim=-1)  # normalised pixels are -1 to 1

    def embed_texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        is_there = torch.arange(tokens.shape[1]) < lengths[:, None]
        return F.normalize((self.table[tokens] * is_there[..., None]).sum(dim=1), dim=-1)


def load_colour_clip() -> LoadedModel:
    """Return the model as one that was read from a folder."""
    subwords = SentencePieceSubwords.train([*SENTENCES, *COLOURS], size=60)
    preprocessing = ImageTextPreprocessing(image_size=SIZE)
    return LoadedModel(
        ColourCLIP(subwords).eval(),
        {"name": "colour", "max_length": 20},
        preprocessing.model_dump(mode="json"),
        [],
        {},
        vocabulary_to_files(subwords),
    )


def write_colour_images(folder: Path, colours: Sequence[str] = tuple(COLOURS)) -> list[Path]:
    """Write an image of each colour, named after it."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{colour}.png" for colour in colours]
    for colour, path in zip(colours, paths, strict=True):
        Image.new("RGB", (31, 23), COLOURS[colour]).save(path)
    return paths
