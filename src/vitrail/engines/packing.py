"""Linear layers with weights prepacked for oneDNN, for inference on a CPU.

Without packing, a row-major weight is reordered at every product. Products of ViT-B/16 ran 7 % faster
prepacked, 16 % in bfloat16; GELU fused into the product costs 2 to 5 % of it, and outside 7 % (docs/log.md).
"""

from __future__ import annotations

import copy
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.engines.cpu.linear import FastLinear
from vitrail.nn.blocks import MLP
from vitrail.nn.detr_attention import DetrAttention
from vitrail.nn.linear import Linear
from vitrail.nn.mixers.token_mlp import TokenMLP
from vitrail.nn.pooling_attention import PoolingAttention
from vitrail.nn.windows import CosineWindowAttention

Activation = Literal["none", "gelu"]

TYPICAL_ROWS = 256  # of a product; oneDNN chooses the layout by them, and accepts any number
MIN_WEIGHT = 2**12  # values; below, packing does not matter
# Their layers read some weights directly, to multiply with others beside them.
READ_INSTEAD_OF_CALLED = (CosineWindowAttention, TokenMLP)
CALLED_IN_PARTS = (DetrAttention, PoolingAttention)
SPECIAL_LAYERS = ("qkv", "expand", "contract")


class PackedLinear(nn.Module):
    """Return ``activation(x weight^T + bias)`` by oneDNN, without gradients.

    Args:
        linear: its weights are copied in their type.
    """

    def __init__(self, linear: nn.Linear, *, activation: Activation = "none") -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.activation = activation
        # An opaque tensor cannot be a parameter: it can be neither moved to another device nor saved.
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), TYPICAL_ROWS)
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach(), requires_grad=False)

    @property
    def weight(self) -> Tensor:
        """The weight row by row, unpacked at each call: for rare reads."""
        return self.packed.to_dense()

    def forward(self, x: Float[Tensor, "*batch in_dim"]) -> Float[Tensor, "*batch out_dim"]:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.packed, self.bias, self.activation, [], "none"
        )
        return result

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, activation={self.activation}"


class PackedParts(nn.Module):
    """The same for a layer that is called in parts, each packed on first use.

    Args:
        linear: its weights are shared.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self._parts: dict[tuple[int, int], tuple[Tensor, Tensor | None]] = {}

    def part(
        self, x: Float[Tensor, "*batch in_dim"], start: int, stop: int
    ) -> Float[Tensor, "*batch part_dim"]:
        """Return the outputs from ``start`` to ``stop``, as ``Linear.part``."""
        if (start, stop) not in self._parts:
            weight = self.weight.detach()[start:stop].contiguous()
            offsets = None if self.bias is None else self.bias.detach()[start:stop]
            self._parts[start, stop] = (
                torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_ROWS),
                offsets,
            )
        packed, bias = self._parts[start, stop]
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
        return result


def copy_for_inference(model: nn.Module) -> nn.Module:
    """Return a copy of a model that shares its parameters and buffers, so that its layers can be replaced."""
    shared = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    return copy.deepcopy(model, shared).eval()


def pack_linear_layers(model: nn.Module) -> nn.Module:
    """Replace the linear layers of a model in place, fused with the GELU that follows in an ``MLP``.

    Layers whose weights others read are kept. The model is in evaluation mode, on the CPU.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if is_called_in_parts(parent, name) and isinstance(child, nn.Linear):
                setattr(parent, name, PackedParts(child))
            if not is_replaceable(parent, name, child):
                continue
            assert isinstance(child, nn.Linear)
            if isinstance(parent, MLP) and name == "expand" and has_gelu(parent):
                setattr(parent, name, PackedLinear(child, activation="gelu"))
                parent.activation = nn.Identity()
            else:
                setattr(parent, name, PackedLinear(child))
    return model


def is_replaceable(parent: nn.Module, name: str, child: nn.Module) -> bool:
    """Return whether a child is a linear layer that is only called, and large enough."""
    if type(child) not in (FastLinear, Linear, nn.Linear):
        return False
    assert isinstance(child, nn.Linear)
    is_read = isinstance(parent, READ_INSTEAD_OF_CALLED) and name in SPECIAL_LAYERS
    return child.weight.numel() >= MIN_WEIGHT and not is_read and not is_called_in_parts(parent, name)


def is_called_in_parts(parent: nn.Module, name: str) -> bool:
    """Return whether a child is a linear layer that is called in parts."""
    return isinstance(parent, CALLED_IN_PARTS) and name in SPECIAL_LAYERS


def has_gelu(mlp: MLP) -> bool:
    """Return whether an MLP's activation is the exact GELU, which kernels can fuse."""
    activation = mlp.activation
    return isinstance(activation, nn.GELU) and activation.approximate == "none"
