"""Initialise a training, or a part of its model, from weights learned on other data."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vitrail.core.errors import CheckpointError
from vitrail.data.findings import some_of

HEAD = "head"
LEFT_OUT = ("head", "final", "stages")  # parts of an image model that an encoder may leave out
COUNTER = "num_batches_tracked"  # of a batch norm; a frozen one has none


def copy_pretrained(model: nn.Module, pretrained: nn.Module) -> list[str]:
    """Copy every tensor of a pretrained model into one that differs in the number of classes at most.

    If it does, the head keeps its new weights. Return the names of the tensors that were not copied.

    Raises:
        CheckpointError: the two differ in more than the head; nothing is copied then.
    """
    targets, sources = model.state_dict(), pretrained.state_dict()
    differing = _differing(targets, sources)
    faults = [name for name in differing if not name.partition(".")[0].endswith(HEAD)]
    if faults:
        raise CheckpointError(
            f"the weights differ from the model in {some_of(sorted(faults), len(faults))}",
            expected="the model that the weights were made for, with another head at most",
            remedy="Leave the model's settings to the weights; data.image_size may be set",
        )
    with torch.no_grad():
        for name in targets.keys() - differing:
            targets[name].copy_(sources[name])
    return [name for name in targets if name in differing]


def copy_encoder(model: nn.Module, pretrained: nn.Module) -> None:
    """Copy the weights of an image model with the same settings into one without its head.

    Stages that the latter leaves out are not copied, and frozen batch norms take the values of learned ones.

    Raises:
        CheckpointError: names or shapes of the tensors differ; nothing is copied then.
    """
    targets, sources = model.state_dict(), pretrained.state_dict()
    faults = [
        name
        for name in _differing(targets, sources)
        if name in targets or not (name.split(".")[0] in LEFT_OUT or name.endswith(COUNTER))
    ]
    if faults:
        raise CheckpointError(
            f"the weights differ from the encoder in {some_of(sorted(faults), len(faults))}",
            expected="weights of the image model that the settings name, with the same settings",
            remedy="Leave model.encoder, model.encoder_changes and data.image_size to the weights; of a "
            "detector, model.backbone and model.backbone_changes",
        )
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(sources[name])


def _differing(targets: Mapping[str, Tensor], sources: Mapping[str, Tensor]) -> set[str]:
    """Return the names of the tensors that only one of two models has, or that have other shapes."""
    in_both = targets.keys() & sources.keys()
    reshaped = {name for name in in_both if targets[name].shape != sources[name].shape}
    return (targets.keys() ^ sources.keys()) | reshaped
