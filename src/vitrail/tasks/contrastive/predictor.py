"""A trained model of images and texts ready for use: both become vectors in one space."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitrail.core.errors import CheckpointError, ConfigError, DataError
from vitrail.data.image_text_preprocessing import ImageTextPreprocessing
from vitrail.data.images import decode
from vitrail.data.inputs import ImageInput, OneImage, name_inputs, open_input
from vitrail.data.text.clip_subwords import from_files
from vitrail.data.text.rows import join_rows, strict_rows
from vitrail.data.text.subwords import Subwords
from vitrail.engines.loading import load_any
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import ImageTextModel, ImageTextModelConfig
from vitrail.tasks.other_use import other_use

TEXTS_AT_ONCE = 256


class EmbeddedImages(NamedTuple):
    """Some images of a list, in its order."""

    names: tuple[str, ...]
    """Path of each file, or ``image N`` for the Nth image that came without one."""
    embeddings: Float[Tensor, "images dim"]
    """Of length one, in float32, on the processor; of those that could be read."""
    errors: dict[int, str]
    """Why others could not be read, by their place in ``names``."""

    @property
    def read_names(self) -> list[str]:
        """Names of those that could be read, one for each embedding."""
        return [name for place, name in enumerate(self.names) if place not in self.errors]


class ImageTextEncoder:
    """Embed images and texts with a trained model.

    Args:
        source: a run directory, the folder of a saved model, a published model as for ``vitrail.load``, or a
            model that is loaded already.
        device: where the model runs; a GPU where there is one, by default.
        batch_size: images of one forward pass.
        subwords: of the model; those that are stored with it, by default.

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
        if batch_size < 1:
            raise ConfigError(
                f"the batch size is {batch_size}",
                expected="1 or more",
                remedy="Choose 32, or less for large models",
            )
        loaded = source if isinstance(source, LoadedModel) else load_any(source)
        config = loaded.model.config
        is_of_both = loaded.preprocessing.get("task") == "contrastive"
        if not is_of_both or not isinstance(config, ImageTextModelConfig):
            raise CheckpointError(
                f"{loaded.model_settings.get('name', 'the model')} does not compare images with texts",
                expected="a CLIP: a published one, or one of vitrail train CAPTIONED --model clip_tiny",
                remedy=other_use(loaded.preprocessing),
            )
        automatic = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(automatic if device is None else device)
        self.module = loaded.model.eval().to(self.device)
        assert isinstance(self.module, ImageTextModel)
        self.model: ImageTextModel = self.module
        self.config = config
        self.preprocessing = ImageTextPreprocessing.from_tree(loaded.preprocessing)
        self.subwords = from_files(loaded.files) if subwords is None else subwords
        self.batch_size = batch_size

    @property
    def scale(self) -> float:
        """What cosines are multiplied by to become logits."""
        return float(self.model.logit_scale.detach().exp())

    def embed_texts(self, texts: Sequence[str]) -> Float[Tensor, "texts dim"]:
        """Return vectors of length one, in float32, on the processor.

        Raises:
            DataError: a text holds no word, or is longer than the model reads.
        """
        rows = strict_rows(
            self.preprocessing.prepare(texts), self.subwords, max_length=self.config.max_length
        )
        return self.embed_rows(rows)

    @torch.inference_mode()
    def embed_rows(self, rows: Sequence[Sequence[int]]) -> Float[Tensor, "texts dim"]:
        """Return vectors of length one, in float32, on the processor.

        Args:
            rows: subwords of each text between begin and end, no more than the model reads.
        """
        found = [torch.empty(0, self.config.embedding_dim)]
        for start in range(0, len(rows), TEXTS_AT_ONCE):
            tokens, lengths = join_rows(rows[start : start + TEXTS_AT_ONCE], pad_id=self.subwords.pad_id)
            found.append(self.model.embed_texts(tokens.to(self.device), lengths.to(self.device)).cpu())
        return torch.cat(found)

    @torch.inference_mode()
    def embed_pixels(self, pixels: UInt8[Tensor, "images 3 height width"]) -> Float[Tensor, "images dim"]:
        """Return vectors of length one, in float32, on the processor.

        Args:
            pixels: of the size that the model takes, as ``read`` returns them.
        """
        found = [torch.empty(0, self.config.embedding_dim)]
        for part in pixels.split(self.batch_size) if len(pixels) else ():
            images = self.preprocessing.normalise(part.to(self.device))
            found.append(self.model.embed_images(images).cpu())
        return torch.cat(found)

    def read(self, image: OneImage) -> UInt8[Tensor, "3 height width"]:
        """Bring one image to the model's size, as in training.

        Raises:
            DataError: the image cannot be read, or holds values that are no numbers.
        """
        if isinstance(image, Path):
            return self.preprocessing.read(image)
        with open_input(image) as opened:
            return self.preprocessing.to_uint8(decode(opened))

    def embed_images(self, inputs: ImageInput | Iterable[ImageInput]) -> EmbeddedImages:
        """Embed files, folders, patterns or images in memory; what cannot be read is reported.

        Raises:
            DataError: a folder or pattern holds no image, or nothing was given.
        """
        parts = list(self.embed_each(inputs))
        names = tuple(name for part in parts for name in part.names)
        errors, before = dict[int, str](), 0
        for part in parts:
            errors |= {before + place: error for place, error in part.errors.items()}
            before += len(part.names)
        return EmbeddedImages(names, torch.cat([part.embeddings for part in parts]), errors)

    def embed_each(self, inputs: ImageInput | Iterable[ImageInput]) -> Iterator[EmbeddedImages]:
        """Embed as ``embed_images`` does, one batch after the other, for long lists.

        Raises:
            DataError: as ``embed_images``.
        """
        named = name_inputs(inputs)
        for start in range(0, len(named), self.batch_size):
            pixels, errors = [], {}
            part = named[start : start + self.batch_size]
            for place, (_, image) in enumerate(part):
                try:
                    pixels.append(self.read(image))
                except DataError as error:
                    errors[place] = str(error)
            size = self.preprocessing.image_size
            batch = torch.stack(pixels) if pixels else torch.empty(0, 3, *size, dtype=torch.uint8)
            yield EmbeddedImages(tuple(name for name, _ in part), self.embed_pixels(batch), errors)
