"""Inference with a trained image-text model: joint embeddings of images and texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitrail.core.errors import ConfigError
from vitrail.data.inputs import ImageInput, OneImage, name_input, name_inputs
from vitrail.data.text.rows import join_rows, strict_rows
from vitrail.data.text.subwords import Subwords, vocabulary_from_files
from vitrail.data.text_preprocessing import ImageTextPreprocessing
from vitrail.models.checkpoint import LoadedModel
from vitrail.tasks.predicting import (
    answer_in_order,
    check_positive,
    chunks_of,
    device_or_default,
    open_in_torch,
    over_photograph,
    read_image,
    several,
    text_of,
)

if TYPE_CHECKING:
    from vitrail.interpret.viewer.explanation import Explanation

TEXTS_AT_ONCE = 256


class EmbeddedImages(NamedTuple):
    """Embeddings of a list of images, in order."""

    names: tuple[str, ...]
    """Path of each file, or ``image N`` for the Nth image without one."""
    embeddings: Float[Tensor, "images dim"]
    """Normalised, float32, on the CPU; readable images only."""
    errors: dict[int, str]
    """Errors of the other images, by index in ``names``."""

    @property
    def read_names(self) -> list[str]:
        """Names of the readable images, one per embedding."""
        return [name for index, name in enumerate(self.names) if index not in self.errors]


class ImageTextEncoder:
    """Embed images and texts with a trained model.

    Args:
        source: a run directory, the folder of a saved model, a published model as for ``vitrail.load``, or a
            loaded model.
        device: by default a GPU, if there is one.
        subwords: the model's tokenizer; by default the one saved with it.

    Raises:
        CheckpointError: the source holds no usable model, or none of images and texts.
        ConfigError: the batch size is not positive.
    """

    def __init__(
        self,
        source: str | Path | LoadedModel,
        *,
        device: str | torch.device | None = None,
        batch_size: int = 32,
        subwords: Subwords | None = None,
    ) -> None:
        check_positive("the batch size", batch_size, "Choose 32, or less for large models")
        self.device, self.batch_size = device_or_default(device), batch_size
        loaded = open_in_torch(
            source,
            "contrastive",
            self.device,
            expected="a CLIP: a published one, or one of vitrail train CAPTIONED --model clip_tiny",
        )
        self.model: Any = loaded.model
        self.config: Any = loaded.model.config
        self.preprocessing = ImageTextPreprocessing.from_tree(loaded.preprocessing)
        self.subwords = vocabulary_from_files(loaded.files) if subwords is None else subwords

    @property
    def scale(self) -> float:
        """The logit scale of the cosines."""
        return float(self.model.scale.detach())

    def embed_texts(self, texts: Iterable[str]) -> Float[Tensor, "texts dim"]:
        """Return normalised float32 embeddings on the CPU.

        Raises:
            DataError: a text holds no word, or is longer than the model reads.
        """
        prepared = self.preprocessing.prepare([*map(text_of, several(texts))])
        return self.embed_rows(strict_rows(prepared, self.subwords, max_length=self.config.max_length))

    @torch.inference_mode()
    def embed_rows(self, rows: Sequence[Sequence[int]]) -> Float[Tensor, "texts dim"]:
        """Return normalised float32 embeddings, on the CPU, of subwords between begin and end."""
        found = [torch.empty(0, self.config.embedding_dim)]
        for start in range(0, len(rows), TEXTS_AT_ONCE):
            tokens, lengths = join_rows(rows[start : start + TEXTS_AT_ONCE], pad_id=self.subwords.pad_id)
            found.append(self.model.embed_texts(tokens.to(self.device), lengths.to(self.device)).cpu())
        return torch.cat(found)

    @torch.inference_mode()
    def embed_pixels(self, pixels: UInt8[Tensor, "images 3 height width"]) -> Float[Tensor, "images dim"]:
        """Return normalised float32 embeddings on the CPU."""
        found = [torch.empty(0, self.config.embedding_dim)]
        for part in pixels.split(self.batch_size) if len(pixels) else ():
            images = self.preprocessing.normalise(part.to(self.device))
            found.append(self.model.embed_images(images).cpu())
        return torch.cat(found)

    def explain(self, image: ImageInput, texts: Sequence[str]) -> Explanation:
        """Compare one image with texts and record the image regions behind each.

        Raises:
            DataError: the image cannot be read, or a text has no word or is too long.
            ConfigError: there is no text, or one is repeated.
        """
        from vitrail.tasks.contrastive.explanation import explain_pixels

        texts = check_texts(texts)
        name, given = name_input(image)
        explained = explain_pixels(self, self.read(given), name, texts, self.embed_texts(texts))
        return over_photograph(explained, self.preprocessing, given)

    def read(self, image: OneImage) -> UInt8[Tensor, "3 height width"]:
        """Resize one image to the model's input size, as in training.

        Raises:
            DataError: the image cannot be read, or contains NaN or infinite values.
        """
        return read_image(self.preprocessing, image)

    def embed_images(self, inputs: ImageInput | Iterable[ImageInput]) -> EmbeddedImages:
        """Embed files, folders, patterns or images in memory; unreadable ones are reported.

        Raises:
            DataError: a folder or pattern holds no image, or nothing was given.
        """
        named = name_inputs(inputs)
        found = list(
            answer_in_order(
                chunks_of(named, self.batch_size),
                read=lambda given: self.read(given[1]),
                run=lambda given, pixels: [*self.embed_pixels(torch.stack([*pixels]))],
                failed=lambda given, error: error,
            )
        )
        errors = {index: each for index, each in enumerate(found) if isinstance(each, str)}
        embedded = [each for each in found if isinstance(each, Tensor)]
        none = torch.empty(0, self.config.embedding_dim)
        return EmbeddedImages(
            tuple(name for name, _ in named), torch.stack(embedded) if embedded else none, errors
        )


def check_texts(texts: Sequence[str]) -> tuple[str, ...]:
    """Check the texts to compare an image with; ``ConfigError`` if there is none, or one is repeated."""
    if not texts or len(set(texts)) < len(texts):
        raise ConfigError(
            "the same text was given twice" if texts else "no text was given to compare the image with",
            expected="one or more different texts",
            remedy="Name them, as in --text 'a cat' --text 'a dog'",
        )
    return tuple(texts)
