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

# Up to this many tokens, training on a CPU in bfloat16 takes plain products, as the backward pass of
# the fused kernel is slow there. Forward and backward, fused / plain, in ms of one core, torch 2.13:
#   AMD EPYC, AVX-512: 65 tokens 97 / 19, 197 tokens 52 / 22, 400 tokens 50 / 24, 785 tokens 38 / 22 (128, 24,
#   8, 2 images, 3 heads of 64).
#   Intel Xeon, AMX: 49 tokens 64 / 9 (64 windows, 3 heads of 32), 197 tokens 90 / 38 (8 images), 577 tokens
#   75 / 32 (12 heads of 64), 850 tokens 51 / 38 (8 heads of 32).
# Plain was never slower; above this its memory, quadratic in the tokens, decides.
PLAIN_MAX_TOKENS = 1024
# Without gradients, forward alone:
#   AMD: 49 tokens 2.5 / 1.8, 197 tokens 2.9 / 1.4 and 8 images 18.7 / 13.7, 577 tokens 15.9 / 10.8, 850
#   tokens 12.5 / 11.0, 1024 tokens 44 / 51 (12 heads of 64).
#   Intel with AMX: 49 tokens 2.7 / 4.2, 197 tokens 1.4 / 2.0 and 8 images 13 / 16, 577 tokens 5.7 / 10.0,
#   850 tokens 6.1 / 12.3; with a bias 0.5 to 0.9 of the time.
PLAIN_MAX_TOKENS_INFERRED = 896
STORED_TURNS = 512  # positions; tables for longer sequences are computed on demand
FUSED_USES_TILES = bool(torch.cpu.get_capabilities().get("amx_bf16", False))
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
