"""Digests that identify the model of an export or a benchmark."""

from __future__ import annotations

import hashlib

import torch

from vitrail.models.checkpoint import LoadedModel, state_tensors
from vitrail.nn.token_merging import TokenMergingBlock

NUM_VALUES = 64  # per tensor, evenly spaced


def digest_model(loaded: LoadedModel) -> str:
    """Return a digest of a model's settings, tensor shapes and some values of each tensor.

    Hashing all values of a large model takes longer than its first prediction; an optimiser step changes all
    of them. Token merging is included, as it changes outputs without changing tensors.
    """
    model = loaded.model
    counts = [block.num_merged for block in model.modules() if isinstance(block, TokenMergingBlock)]
    about = f"{type(model).__qualname__} {getattr(model, 'config', None)!r} {counts}"
    digest = hashlib.sha256(about.encode())
    for name, tensor in state_tensors(model).items():
        flat = tensor.flatten()
        some = flat[:: max(len(flat) // NUM_VALUES, 1)].to("cpu", torch.float64).numpy().tobytes()
        digest.update(f"{name} {tuple(tensor.shape)}".encode() + some)
    return digest.hexdigest()
