"""Int8 linear layers on a CPU: per-row weights, calibrated activation ranges.

Activations are 0 to 255 (0 to 127 on CPUs without VNNI) with a zero point, weights -127 to 127. Before
quantisation, each activation channel is divided by a factor that its weights are multiplied with, to balance
their rounding errors (Xiao et al. 2023, SmoothQuant, equation 4); the division is fused with the rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from vitrail.engines.contract import Inputs
from vitrail.engines.packing import TYPICAL_ROWS, Activation, has_gelu, is_replaceable
from vitrail.nn.attention import Attention
from vitrail.nn.blocks import MLP
from vitrail.nn.box_queries import BoxHead
from vitrail.nn.scores import DotScore
from vitrail.nn.windows import WindowAttention

HAS_VNNI = torch.cpu._is_vnni_supported()
# Without VNNI pairs of products are summed in 16 bits, which 8-bit activations overflow: they get 7 bits.
LEVELS, MOST_WEIGHT = (255 if HAS_VNNI else 127), 127
LEAST_RANGE = 1e-6  # of all-zero activations or weights


class ChannelRange(NamedTuple):
    """Minimum and maximum of each input channel of a layer."""

    least: Float[Tensor, " channels"]
    greatest: Float[Tensor, " channels"]


class QuantisedLinear(nn.Module):
    """Return ``activation(x weight^T + bias)`` by integer products, without gradients.

    Args:
        seen: ranges of its inputs.
        smooths: whether channel ranges are balanced; not for integer inputs.
        narrow: whether the output is bfloat16 instead of float32.
    """

    def __init__(
        self,
        linear: nn.Linear,
        seen: ChannelRange,
        *,
        activation: Activation = "none",
        smooths: bool = True,
        narrow: bool = False,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.result_type = torch.bfloat16 if narrow else torch.float32
        weight = linear.weight.detach().float()
        factors = smoothing_factors(seen, weight) if smooths else torch.ones(linear.in_features)
        self.scale, self.zero_point = scale_of(seen, factors)
        weight = weight * factors
        scales = weight.abs().amax(dim=1).clamp(min=LEAST_RANGE) / MOST_WEIGHT
        rounded = (weight / scales[:, None]).round().clamp(-MOST_WEIGHT, MOST_WEIGHT).to(torch.int8)
        self.packed = torch.ops.onednn.qlinear_prepack(rounded, [TYPICAL_ROWS, linear.in_features])
        self.weight_scales = nn.Buffer(scales)
        self.weight_zeros = nn.Buffer(torch.zeros(linear.out_features, dtype=torch.int32))
        self.multipliers = nn.Buffer(1 / (factors * self.scale))
        # Truncation after adding half a level rounds.
        self.offset = nn.Buffer(torch.tensor(self.zero_point + 0.5))
        self.bias = None if linear.bias is None else nn.Buffer(linear.bias.detach().float())

    def forward(self, x: Float[Tensor, "*batch in_dim"]) -> Float[Tensor, "*batch out_dim"]:
        return self.multiply(self.quantise(x))

    def quantise(self, x: Float[Tensor, "*batch in_dim"]) -> UInt8[Tensor, "*batch in_dim"]:
        levels = torch.addcmul(self.offset, x, self.multipliers)
        return levels.clamp_(0, LEVELS).to(torch.uint8)

    def multiply(
        self, x: UInt8[Tensor, "*batch in_dim"], reader: QuantisedLinear | None = None
    ) -> Float[Tensor, "*batch out_dim"] | UInt8[Tensor, "*batch out_dim"]:
        """Return the activated product of ``quantise``'s output, quantised for ``reader`` if there is one."""
        form = (1.0, 0, self.result_type)
        if reader is not None:
            form = (reader.scale, reader.zero_point, torch.uint8)
        layer = (self.packed, self.weight_scales, self.weight_zeros, self.bias)
        result: Tensor = torch.ops.onednn.qlinear_pointwise(
            x, self.scale, self.zero_point, *layer, *form, self.activation, [], "none"
        )
        return result


class QuantisedMLP(nn.Module):
    """An ``MLP`` with GELU whose hidden activations stay int8."""

    def __init__(self, expand: QuantisedLinear, contract: QuantisedLinear) -> None:
        super().__init__()
        self.expand, self.contract = expand, contract

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch out_dim"]:
        hidden = self.expand.multiply(self.expand.quantise(x), self.contract)
        return self.contract.multiply(hidden)


def smoothing_factors(
    seen: ChannelRange, weight: Float[Tensor, "out_dim channels"]
) -> Float[Tensor, " channels"]:
    """Return the divisor of each activation channel, with geometric mean one.

    Paper: Xiao et al. 2023, equation 4 with an exponent of one half.
    """
    of_inputs = torch.maximum(seen.least.abs(), seen.greatest.abs()).clamp(min=LEAST_RANGE)
    of_weights = weight.abs().amax(dim=0).clamp(min=LEAST_RANGE)
    factors = (of_inputs / of_weights).sqrt()
    return factors / factors.log().mean().exp()


def scale_of(seen: ChannelRange, factors: Float[Tensor, " channels"]) -> tuple[float, int]:
    """Return the quantisation step and the zero point."""
    least = min(float((seen.least / factors).min()), 0.0)
    greatest = max(float((seen.greatest / factors).max()), 0.0)
    scale = max(greatest - least, LEAST_RANGE) / LEVELS
    return scale, min(max(round(-least / scale), 0), LEVELS)


def observe(model: nn.Module, batches: Iterable[Inputs]) -> dict[str, ChannelRange]:
    """Return the input ranges of all quantisable layers of a CPU model in evaluation mode, by name."""
    seen: dict[str, ChannelRange] = {}

    def look(name: str, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        rows = given[0].detach().float().flatten(0, -2)
        least, greatest = rows.amin(dim=0), rows.amax(dim=0)
        if name in seen:
            least = torch.minimum(seen[name].least, least)
            greatest = torch.maximum(seen[name].greatest, greatest)
        seen[name] = ChannelRange(least, greatest)

    with ExitStack() as hooks, torch.no_grad():
        for name, layer in quantisable_layers(model).items():
            hooks.enter_context(layer.register_forward_pre_hook(partial(look, name)))
        for inputs in batches:
            model(*inputs)
    return seen


def quantise_layers(model: nn.Module, seen: Mapping[str, ChannelRange], *, narrow: bool) -> nn.Module:
    """Replace the linear layers of a model by int8 ones, in place, if their inputs were observed.

    Args:
        model: in evaluation mode, on the CPU.
        narrow: whether attention is in bfloat16, for CPUs that support it.
    """
    for name, layer in quantisable_layers(model).items():
        if name not in seen:
            continue
        path, _, own = name.rpartition(".")
        parent = model.get_submodule(path)
        if isinstance(parent, MLP) and has_gelu(parent):
            if own == "expand" and f"{path}.contract" in seen:
                expand = QuantisedLinear(layer, seen[name], activation="gelu")
                contract = QuantisedLinear(parent.contract, seen[f"{path}.contract"], smooths=False)
                holder, _, field = path.rpartition(".")
                setattr(model.get_submodule(holder), field, QuantisedMLP(expand, contract))
            continue
        is_narrow = narrow and own == "qkv" and _has_plain_attention(parent)
        setattr(parent, own, QuantisedLinear(layer, seen[name], narrow=is_narrow))
    return model


def quantisable_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers of a model by name, except heads, whose logits need precision."""
    found: dict[str, nn.Linear] = {}
    for parent_name, parent in model.named_modules():
        if not parent_name or parent_name.split(".")[0] == "head":
            continue
        for name, child in parent.named_children():
            is_of_scores = isinstance(parent, BoxHead) and name == "classes"
            if is_replaceable(parent, name, child) and not is_of_scores:
                assert isinstance(child, nn.Linear)
                found[f"{parent_name}.{name}"] = child
    return found


def _has_plain_attention(layer: nn.Module) -> bool:
    """Return whether queries, keys and values are used as they are, in any type."""
    if isinstance(layer, Attention):
        return isinstance(layer.score, DotScore) and layer.positions is None
    return type(layer) is WindowAttention  # and not the cosine's
