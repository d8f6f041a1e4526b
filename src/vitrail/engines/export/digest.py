"""Which model an export or a measurement was made of, so that neither is taken for another's."""

from __future__ import annotations

import hashlib

import torch

from vitrail.models.checkpoint import LoadedModel, state_tensors
from vitrail.nn.token_merging import TokenMergingBlock

NUM_VALUES = 64  # of each tensor, evenly spaced


def digest_model(loaded: LoadedModel) -> str:
    """Return a digest of what a model is, of the shapes of its tensors and of some values of each.

    All values of a large model take longer than its first prediction; an optimiser's step changes them all.
    Models that merge tokens have the tensors of those that do not, and answer otherwise.
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
