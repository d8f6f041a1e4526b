"""Initialise a training from weights learned on other data."""

from __future__ import annotations

import torch
from torch import nn

from vitrail.core.errors import CheckpointError

HEAD = "head"
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
    faults = sorted(
        name
        for name in targets.keys() | sources.keys()
        if not name.partition(".")[0].endswith(HEAD)
        and (name not in targets or name not in sources or targets[name].shape != sources[name].shape)
    )
    if faults:
        more = f" and {len(faults) - MAX_LISTED} more" if len(faults) > MAX_LISTED else ""
        raise CheckpointError(
            f"the weights differ from the model in {', '.join(faults[:MAX_LISTED])}{more}",
            expected="the model that the weights were made for, with another head at most",
            remedy="Leave the model's settings to the weights; data.image_size may be set",
        )
    with torch.no_grad():
        for name, target in targets.items():
            if name not in fresh:
                target.copy_(sources[name])
    return fresh
