"""Initialise a training, or a part of its model, from weights learned on other data."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from vitrail.core.errors import CheckpointError

HEAD = "head"
LEFT_OUT = ("head", "final", "stages")  # parts of an image model that an encoder may leave out
COUNTER = "num_batches_tracked"  # of a batch norm; a frozen one has none
MAX_LISTED = 4


def copy_pretrained(model: nn.Module, pretrained: nn.Module) -> list[str]:
    """Copy every tensor of a pretrained model into one that differs in the number of classes at most.

    If it does, the head keeps its new weights.

    Returns:
        The names of the tensors that were not copied.

    Raises:
        CheckpointError: the two differ in more than the head; nothing is copied then.
    """
    targets, sources = model.state_dict(), pretrained.state_dict()
    fresh = [
        name
        for name, target in targets.items()
        if name.partition(".")[0].endswith(HEAD)
        and (name not in sources or sources[name].shape != target.shape)
    ]
    faults = [
        name
        for name in targets.keys() | sources.keys()
        if not name.partition(".")[0].endswith(HEAD)
        and (name not in targets or name not in sources or targets[name].shape != sources[name].shape)
    ]
    if faults:
        raise CheckpointError(
            f"the weights differ from the model in {_listed(faults)}",
            expected="the model that the weights were made for, with another head at most",
            remedy="Leave the model's settings to the weights; data.image_size may be set",
        )
    with torch.no_grad():
        for name, target in targets.items():
            if name not in fresh:
                target.copy_(sources[name])
    return fresh


def copy_encoder(model: nn.Module, pretrained: nn.Module) -> None:
    """Copy the weights of an image model with the same settings into one without its head.

    Stages that the latter leaves out are not copied, and frozen batch norms take the values of learned ones.

    Raises:
        CheckpointError: names or shapes of the tensors differ; nothing is copied then.
    """
    targets, sources = model.state_dict(), pretrained.state_dict()
    faults = [name for name in targets if name not in sources or sources[name].shape != targets[name].shape]
    faults += [
        name
        for name in sources
        if name not in targets and name.split(".")[0] not in LEFT_OUT and not name.endswith(COUNTER)
    ]
    if faults:
        raise CheckpointError(
            f"the weights differ from the encoder in {_listed(faults)}",
            expected="weights of the image model that the settings name, with the same settings",
            remedy="Leave model.encoder, model.encoder_changes and data.image_size to the weights; of a "
            "detector, model.backbone and model.backbone_changes",
        )
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(sources[name])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(sorted(names)[:MAX_LISTED]) + more
