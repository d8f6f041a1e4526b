"""Attention by the faster of the fused kernel and plain products, and rotary positions as complex numbers."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from jaxtyping import Complex, Float
from torch import Tensor

from vitrail.engines.cpu.elementwise import dropout as drop
from vitrail.nn import attention, rotary
from vitrail.nn.rotary import SequenceRotary
from vitrail.nn.sinusoidal import position_angles
from vitrail.train.machine import cpu_facts

# Up to this many tokens, bfloat16 on a CPU takes plain products (times: docs/log.md). In training they were
# never slower, as the backward pass of the fused kernel is slow there: above this their memory, quadratic
# in the tokens, decides. Without gradients the fused kernel is faster for more tokens, and with AMX always.
PLAIN_MAX_TOKENS, PLAIN_MAX_TOKENS_INFERRED = 1024, 896
STORED_TURNS = 512  # positions; tables for longer sequences are computed on demand
FUSED_USES_TILES = "amx_bf16" in cpu_facts().get("flags", "").split()
"""Whether the fused kernel multiplies bfloat16 in the CPU's tiles (AMX)."""


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    bias: Tensor | None = None,
    may_attend: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """As ``nn.attention.attend``, by plain products where they are faster."""
    if plain_is_faster(query, key):
        weights = attention.attention_weights(query, key, bias=bias, may_attend=may_attend, scale=scale)
        return drop(weights, dropout) @ value
    return attention.attend(query, key, value, bias=bias, may_attend=may_attend, scale=scale, dropout=dropout)


def plain_is_faster(query: Tensor, key: Tensor) -> bool:
    """Tell whether plain products beat the fused kernel for these (batch heads tokens dim)."""
    if query.dtype != torch.bfloat16 or query.device.type != "cpu":
        return False
    num_tokens = max(query.shape[-2], key.shape[-2])
    if not torch.is_grad_enabled():
        return not FUSED_USES_TILES and num_tokens <= PLAIN_MAX_TOKENS_INFERRED
    return (query.requires_grad or key.requires_grad) and num_tokens <= PLAIN_MAX_TOKENS


def rotate_pairs(x: rotary.Heads, angles: Float[Tensor, "turned pairs"]) -> rotary.Heads:
    """As ``nn.rotary.rotate_pairs``, by complex numbers, which compilers and exporters do not support."""
    if torch.compiler.is_compiling():
        return rotary.rotate_pairs(x, angles)
    num_prefix = x.shape[-2] - angles.shape[0]
    angles = F.pad(angles, (0, 0, num_prefix, 0)) if num_prefix else angles
    return _turn(x, torch.polar(torch.ones_like(angles), angles))


class FastSequenceRotary(SequenceRotary):
    """Rotary positions of a sequence, with a lookup table for the newest tokens."""

    def place_newest(self, query_key: Tensor, *, num_before: int) -> tuple[Tensor, None]:
        dim = query_key.shape[-1]
        stored = max(STORED_TURNS, 1 << num_before.bit_length())  # grows in powers of two
        return _turn(query_key, _turns(stored, dim, self.base, query_key.device)[num_before]), None


def _turn(x: Tensor, factors: Complex[Tensor, "*#tokens pairs"]) -> Tensor:
    """Multiply each pair of channels, as a complex number, by its factor, in float32.

    Forward and backward take a fifth of the time of sines and cosines on a CPU (docs/log.md).
    """
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * factors).flatten(-2).to(x.dtype)


@lru_cache(maxsize=8)
def _turns(
    num_positions: int, dim: int, base: float, device: torch.device
) -> Complex[Tensor, "num_positions {dim//2}"]:
    """Return ``exp(i angle)`` of each position and pair of channels."""
    with torch.inference_mode(False):  # or it could not be used outside of that mode later
        angles = position_angles(torch.arange(num_positions, device=device), dim, base=base)
        return torch.polar(torch.ones_like(angles), angles)
