"""Torch's own recurrent modules with our weights, which several tests compare ours with."""

from __future__ import annotations

import torch
from torch import nn

from vitrail.nn.recurrent import RecurrentWeights

TORCH_CELLS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "tanh": nn.RNNCell}
TORCH_LAYERS = {"lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN}


def copy_weights(ours: RecurrentWeights, theirs: nn.Module, suffix: str = "") -> None:
    """Give a layer or a cell of torch our weights, under the names that end with a suffix."""
    with torch.no_grad():
        for kind in ("weight", "bias"):
            getattr(theirs, f"{kind}_ih{suffix}").copy_(getattr(ours, f"input_{kind}"))
            getattr(theirs, f"{kind}_hh{suffix}").copy_(getattr(ours, f"hidden_{kind}"))


def randomise(module: nn.Module) -> nn.Module:
    """Fill the zeros that some weights begin with, which would hide what is behind."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module.eval()
