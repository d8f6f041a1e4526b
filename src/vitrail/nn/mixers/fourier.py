"""Mix tokens by the Fourier transform, without a weight (FNet, Lee-Thorp et al. 2022)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.core.tensors import without_autocast
from vitrail.nn.masks import hide_padding, read_key_mask
from vitrail.nn.tokens import Grid, Mask, Tokens


class FourierMixer(nn.Module):
    """Return the real part of the discrete Fourier transform over tokens and channels.

    There are no parameters and no mixing matrix: the transform over the channels mixes those too. Patches of
    an image are one sequence, row by row after the prefix tokens, as in the paper's experiments on pixels.
    Computed in float32 or wider, returned in the type of the tokens.

    Paper: Lee-Thorp et al. 2022 (FNet), equation 3.
    Departs from the paper: a padded sequence is transformed over its own length, as it would be alone.
    """

    def forward(self, x: Tokens, *, may_attend: Mask | None = None, grid: Grid | None = None) -> Tokens:
        wide = hide_padding(x, may_attend, layer="fourier").to(torch.promote_types(x.dtype, torch.float32))
        if may_attend is None:
            return torch.fft.fft2(wide).real.to(x.dtype)
        by_channel = torch.fft.fft(wide)  # b n d, complex
        angles = _angles(read_key_mask(may_attend, layer="fourier"), wide.dtype)
        with without_autocast(x.device.type):
            # The real part of exp(-ia) (u + iv) is cos(a) u + sin(a) v.
            return (angles.cos() @ by_channel.real + angles.sin() @ by_channel.imag).to(x.dtype)


def _angles(
    is_there: Bool[Tensor, "batch tokens"], dtype: torch.dtype
) -> Float[Tensor, "batch tokens tokens"]:
    """Return the angles of the transform over each sequence's own length."""
    positions = is_there.cumsum(dim=1) - 1
    length = is_there.sum(dim=1).clamp_min(1)[:, None, None]
    # Whole turns are removed in integers, without loss of precision.
    return (positions[:, :, None] * positions[:, None] % length).to(dtype) * (2 * math.pi / length)


MIXERS = {"fourier": lambda shape: FourierMixer()}
