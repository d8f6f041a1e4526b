"""Linear layers whose weights lie as oneDNN's kernels read them, for inference on a processor.

A weight that lies row by row is rearranged at every product. Products of ViT-B/16, 197 tokens, in GFLOP/s of
one AMD EPYC core (Zen 4), by processor time: by MKL 86, by oneDNN 98, arranged once 105; in bfloat16 180 and
208. GELU inside the product costs 2 to 5 % of it, and outside 7 %.
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
from vitrail.nn.window_attention import CosineWindowAttention

Activation = Literal["none", "gelu"]

TYPICAL_ROWS = 256  # of a product; oneDNN chooses the arrangement by them, and takes it for any number
MIN_WEIGHT = 2**12  # values of a matrix below which a product is too small for the arrangement to matter
# These read the weights of some of their layers, to multiply with others beside them.
READ_INSTEAD_OF_CALLED = (CosineWindowAttention, TokenMLP)
CALLED_IN_PARTS = (DetrAttention, PoolingAttention)
SPECIAL_LAYERS = ("qkv", "expand", "contract")


class PackedLinear(nn.Module):
    """Return ``activation(x weight^T + bias)`` by oneDNN, without gradients.

    Args:
        linear: the layer whose weights are taken; they are copied, in their type.
        activation: of the result.
    """

    def __init__(self, linear: nn.Linear, *, activation: Activation = "none") -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.activation = activation
        # An opaque tensor is no parameter: it can be neither moved to another device nor saved.
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), TYPICAL_ROWS)
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach(), requires_grad=False)

    @property
    def weight(self) -> Tensor:
        """The weight row by row, made anew at each call: for the few that read it now and then."""
        return self.packed.to_dense()

    def forward(self, x: Float[Tensor, "*batch in_dim"]) -> Float[Tensor, "*batch out_dim"]:
        """Return the activated product, in the type of the weights."""
        result: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.packed, self.bias, self.activation, [], "none"
        )
        return result

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, activation={self.activation}"


class PackedParts(nn.Module):
    """The same for a layer that is asked for parts of its outputs; each is arranged when first asked for.

    Args:
        linear: the layer whose weights are taken, and shared.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self._parts: dict[tuple[int, int], tuple[Tensor, Tensor | None]] = {}

    def part(
        self, x: Float[Tensor, "*batch in_dim"], start: int, stop: int
    ) -> Float[Tensor, "*batch part_dim"]:
        """Return only the outputs from one on up to another, as ``Linear.part``."""
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
    """Replace the linear layers of a model, in place, each with the GELU that follows it in an ``MLP``.

    Layers whose weights others read stay as they are.

    Args:
        model: in evaluation mode, on the processor.
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
    """Tell whether a child is a linear layer that is only ever called, and large enough to be worth it."""
    if type(child) not in (FastLinear, Linear, nn.Linear):
        return False
    assert isinstance(child, nn.Linear)
    is_read = isinstance(parent, READ_INSTEAD_OF_CALLED) and name in SPECIAL_LAYERS
    return child.weight.numel() >= MIN_WEIGHT and not is_read and not is_called_in_parts(parent, name)


def is_called_in_parts(parent: nn.Module, name: str) -> bool:
    """Tell whether a child is a linear layer that is asked for parts of its outputs."""
    return isinstance(parent, CALLED_IN_PARTS) and name in SPECIAL_LAYERS


def has_gelu(mlp: MLP) -> bool:
    """Tell whether the activation of an MLP is the exact GELU, which kernels have inside."""
    activation = mlp.activation
    return isinstance(activation, nn.GELU) and activation.approximate == "none"
