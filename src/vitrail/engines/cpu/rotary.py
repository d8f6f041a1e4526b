"""Rotary positions as products of complex numbers."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from jaxtyping import Complex, Float
from torch import Tensor

from vitrail.nn import rotary
from vitrail.nn.rotary import SequenceRotary, rotary_angles

STORED_TURNS = 512  # positions; tables for longer sequences are computed on demand


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
    num_places: int, dim: int, base: float, device: torch.device
) -> Complex[Tensor, "num_places {dim//2}"]:
    """Return ``exp(i angle)`` of each position and pair of channels."""
    with torch.inference_mode(False):  # or it could not be used outside of that mode later
        angles = rotary_angles(torch.arange(num_places, device=device), dim, base)
        return torch.polar(torch.ones_like(angles), angles)
