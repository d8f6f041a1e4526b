"""Cached features of a captioner's frozen encoder, computed once per split."""

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
    """Return the features of a split's images, computed on first use.

    The file name is a hash of the images, preprocessing, encoder settings and weights, so that other
    trainings can reuse it.

    Args:
        model: a captioner with a frozen encoder; not modified.
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
    """Encode pixels on the fastest device, with a temporary copy of the encoder."""

    def __init__(self, encoder: Any, preprocessing: CaptionPreprocessing) -> None:
        self._encoder, self._preprocessing, self._copy = encoder, preprocessing, None

    @torch.inference_mode()
    def __call__(self, pixels: UInt8[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch cells dim"]:
        device = inspect_machine().device
        if next(self._encoder.parameters()).device == device:
            encoder = self._encoder
        else:
            self._copy = encoder = self._copy or copy.deepcopy(self._encoder).to(device)
        images = self._preprocessing.images.normalise(pixels).to(device)
        return encoder(images).cells.float()

    def __getstate__(self) -> dict[str, object]:
        """Drop the model: worker processes only read features."""
        return {"_encoder": None, "_preprocessing": self._preprocessing, "_copy": None}


def digest_of_weights(encoder: Any) -> bytes:
    """Return a digest of all tensors of a model, including buffers."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(state_tensors(encoder).items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()
