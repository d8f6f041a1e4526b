"""Samples of captioned images: pixels or features, and tokenised captions."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Float16, UInt8
from torch import Tensor

from vitrail.data.feature_cache import FeatureCache, cache_folder, digest_of
from vitrail.data.settings import AugmentSettings
from vitrail.data.source import ImageSource
from vitrail.data.text.subwords import Subwords
from vitrail.data.text_preprocessing import CaptionPreprocessing
from vitrail.models.checkpoint import state_tensors
from vitrail.tasks.captioning.dataset import CaptionSplit
from vitrail.train.machine import Precision, autocast, inspect_machine


@dataclass(frozen=True, slots=True)
class CaptionSample:
    """One image with captions."""

    content: UInt8[Tensor, "3 height width"] | Float16[Tensor, "patches dim"]
    """Pixels of the encoder's input size, or features of a frozen encoder."""
    rows: list[list[int]]
    """Tokens of each caption without begin and end; in training possibly a subset."""
    captions: tuple[str, ...]
    """Every caption, unprocessed."""
    index: int
    """Index in the source."""


class CaptionSource:
    """Images of a split with their captions.

    Args:
        augment: only ``min_crop_area`` is used here; the rest is applied batch-wise.
        captions_per_image: of a training sample, drawn anew each time; 0 uses all.
        max_length: maximum tokens of a training caption including its end; longer ones are left out, except
            the shortest of an image. None keeps all.
        cache: keep decoded pixels, if they fit in memory.
        features: of the same images, instead of pixels; disables augmentation.
    """

    def __init__(
        self,
        split: CaptionSplit,
        vocabulary: Subwords,
        preprocessing: CaptionPreprocessing,
        augment: AugmentSettings | None = None,
        *,
        captions_per_image: int = 0,
        max_length: int | None = None,
        cache: bool = False,
        features: FeatureCache | None = None,
    ) -> None:
        self.split, self.vocabulary, self.preprocessing = split, vocabulary, preprocessing
        self.captions_per_image, self.max_length, self.features = captions_per_image, max_length, features
        self.images = ImageSource(
            split.unlabelled, preprocessing.images, augment, cache=cache and features is None
        )
        self._rows: list[list[list[int]]] | None = None

    def __len__(self) -> int:
        return len(self.split)

    def prepare(self) -> None:
        """Tokenise the captions, and fill the cache of pixels or features, if any."""
        if self._rows is None:
            texts = [text for captions in self.split.captions for text in captions]
            cut = iter(self.vocabulary.encode(self.preprocessing.prepare(texts)))
            self._rows = [[next(cut) for _ in captions] for captions in self.split.captions]
        if self.features is None:
            self.images.prepare()
        else:
            self.features.prepare()

    def load(self, index: int, generator: torch.Generator | None) -> CaptionSample:
        """Return one image with captions: a random subset with a generator, all of them without one."""
        self.prepare()
        assert self._rows is not None
        rows = self._rows[index]
        if generator is not None:
            rows = self._draw(rows, generator)
        content = (
            self.images.load(index, generator).image if self.features is None else self.features.load(index)
        )
        return CaptionSample(content, rows, self.split.captions[index], index)

    def _draw(self, rows: list[list[int]], generator: torch.Generator) -> list[list[int]]:
        """Draw some of the captions, none too long or empty unless all are."""
        limit = float("inf") if self.max_length is None else self.max_length
        kept = [row for row in rows if row and len(row) + 1 <= limit] or [min(rows, key=len)]
        if not self.captions_per_image or len(kept) <= self.captions_per_image:
            return kept
        order = torch.randperm(len(kept), generator=generator).tolist()
        return [kept[index] for index in order[: self.captions_per_image]]


def keep_features(
    split: CaptionSplit, preprocessing: CaptionPreprocessing, model: Any, precision: Precision
) -> FeatureCache:
    """Return the features of a split's images, computed on first use.

    The file name is a hash of the images, preprocessing, encoder settings, weights and precision, so that
    other trainings can reuse it.
    """
    encoder = model.encoder
    num_patches = encoder.grid[0] * encoder.grid[1]
    name = digest_of(
        split.image_fingerprint,
        preprocessing.images.model_dump_json(),
        f"{type(encoder.model).__name__} stage {encoder.stage} pool {encoder.pool}",
        model.config.encoder_config.model_dump_json(),
        digest_of_weights(encoder),
        *([] if precision == "float32" else [precision]),
    )

    @cache
    def encoder_on(device: torch.device) -> Any:
        is_there = next(encoder.parameters()).device == device
        return encoder if is_there else copy.deepcopy(encoder).to(device)

    @torch.inference_mode()
    def encode(pixels: UInt8[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch patches dim"]:
        device = inspect_machine().device  # the fastest one, where the model may not be yet
        with autocast(precision, device):
            features: Tensor = encoder_on(device)(preprocessing.images.normalise(pixels).to(device)).features
            return features.float()

    return FeatureCache(
        ImageSource(split.unlabelled, preprocessing.images),
        encode,
        path=cache_folder() / "features" / f"{name}.f16",
        shape=(num_patches, encoder.dim),
    )


def digest_of_weights(encoder: Any) -> bytes:
    """Return a digest of all tensors of a model, including buffers."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(state_tensors(encoder).items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()
