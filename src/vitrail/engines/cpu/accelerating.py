"""Swap a model's layers for faster CPU versions with the same parameters and names.

Modules change their class; functions that a layer calls through an attribute, such as ``self.attend``, are
replaced on the layer. The replacements check each call, so an accelerated model can still move to another
device, be traced, compiled or differentiated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.engines.cpu import elementwise
from vitrail.engines.cpu.attention import FastSequenceRotary, attend, rotate_pairs
from vitrail.engines.cpu.convolution import FastNormedConvolution, FastResidualBlock, FastSqueezeExcite
from vitrail.engines.cpu.decoding import DECODERS
from vitrail.engines.cpu.linear import FastLinear, linear
from vitrail.engines.cpu.recurrent import run_lstm
from vitrail.models.efficientnet import SqueezeExcite
from vitrail.models.resnet import ResidualBlock
from vitrail.nn import attention, recurrent, rotary
from vitrail.nn.activations import QuickGELU
from vitrail.nn.blocks import Dropout
from vitrail.nn.convolution import NormedConvolution
from vitrail.nn.linear import Linear
from vitrail.nn.rotary import SequenceRotary
from vitrail.nn.windows import CosineWindowAttention

Model = TypeVar("Model", bound=nn.Module)


class FastCosineWindowAttention(CosineWindowAttention):
    """Cosine attention that, without gradients, scales queries and keys in place."""

    def _normalise(self, query_key: Tensor) -> Tensor:
        factors = self._factors(query_key)
        if torch.is_grad_enabled():
            return query_key * factors
        return query_key.mul_(factors)  # the page faults of another tensor cost more than the product


LAYERS: dict[type[nn.Module], type[nn.Module]] = {
    CosineWindowAttention: FastCosineWindowAttention,
    Dropout: elementwise.FastDropout,
    Linear: FastLinear,
    NormedConvolution: FastNormedConvolution,
    QuickGELU: elementwise.OverwritingQuickGELU,
    ResidualBlock: FastResidualBlock,
    SequenceRotary: FastSequenceRotary,
    SqueezeExcite: FastSqueezeExcite,
    nn.GELU: elementwise.OverwritingGELU,
    nn.ReLU: elementwise.OverwritingReLU,
    nn.SiLU: elementwise.OverwritingSiLU,
    **DECODERS,
}
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "activation": (F.silu, elementwise.silu),
    "attend": (attention.attend, attend),
    "drop": (F.dropout, elementwise.dropout),
    "linear": (F.linear, linear),
    "run": (recurrent.run_lstm, run_lstm),
    "rotate": (rotary.rotate_pairs, rotate_pairs),
}
"""Attribute through which layers call a function, the function, and its replacement."""


def accelerate(model: Model) -> Model:
    """Swap the layers of a model, in place, for versions that are faster on a CPU.

    Results may differ by rounding, and dropout draws other random numbers.

    Example:
        >>> from vitrail.models import build
        >>> model = accelerate(build("vit_nano"))
        >>> type(model.blocks[0].mlp.expand).__name__
        'FastLinear'
    """
    for module in model.modules():
        if type(module) in LAYERS and getattr(module, "approximate", "none") == "none":
            module.__class__ = LAYERS[type(module)]
        if isinstance(module, FastNormedConvolution) and "settled_weight" not in module._buffers:
            module.register_buffer("settled_weight", None, persistent=False)
            module.register_buffer("settled_shift", None, persistent=False)
        for name, (plain, faster) in FUNCTIONS.items():
            if getattr(module, name, None) is plain:
                setattr(module, name, faster)
    return model
