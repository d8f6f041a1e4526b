"""The features of a captioner's frozen encoder, computed once for each split and kept beside other caches."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitrail.data.caption_preprocessing import CaptionPreprocessing
from vitrail.data.feature_cache import FeatureCache, cache_folder, digest_of
from vitrail.models.checkpoint import state_tensors
from vitrail.tasks.captioning.dataset import CaptionSplit
from vitrail.tasks.captioning.samples import image_source
from vitrail.train.machine import inspect_machine


def keep_features(split: CaptionSplit, preprocessing: CaptionPreprocessing, model: Any) -> FeatureCache:
    """Return the features of a split's images, which are computed when they are first needed.

    The file's name follows from the images, their preparation, and the encoder's settings and weights, so
    that another training with the same ones finds it.

    Args:
        split: the images.
        preprocessing: how they are prepared.
        model: a captioner with a frozen encoder; it stays as it is.
    """
    encoder = model.encoder
    cells = encoder.grid[0] * encoder.grid[1]
    name = digest_of(
        split.image_fingerprint,
        preprocessing.images.model_dump_json(),
        f"{type(encoder.model).__name__} stage {encoder.stage} pool {encoder.pool}",
        model.config.encoder_config.model_dump_json(),
        digest_of_weights(encoder),
    )
    encode = _Encode(encoder, preprocessing)
    return FeatureCache(
        image_source(split, preprocessing),
        encode,
        path=cache_folder() / "features" / f"{name}.f16",
        shape=(cells, encoder.dim),
    )


class _Encode:
    """Make cells of pixels, on the device that pays, with a copy of the encoder that exists meanwhile."""

    def __init__(self, encoder: Any, preprocessing: CaptionPreprocessing) -> None:
        self._encoder, self._preprocessing, self._copy = encoder, preprocessing, None

    @torch.inference_mode()
    def __call__(self, pixels: UInt8[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch cells dim"]:
        """Return the cells of a batch."""
        device = inspect_machine().device
        if next(self._encoder.parameters()).device == device:
            encoder = self._encoder
        else:
            self._copy = encoder = self._copy or copy.deepcopy(self._encoder).to(device)
        images = self._preprocessing.images.normalise(pixels).to(device)
        return encoder(images).cells.float()

    def __getstate__(self) -> dict[str, object]:
        """Travel to worker processes without the model: what they read is there already."""
        return {"_encoder": None, "_preprocessing": self._preprocessing, "_copy": None}


def digest_of_weights(encoder: Any) -> bytes:
    """Return bytes that change with any tensor of a model, its buffers included."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(state_tensors(encoder).items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()
