"""Mix tokens by the Fourier transform, without a weight (FNet, Lee-Thorp et al. 2022)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.nn.masks import hide_padding
from vitrail.nn.mixers.contract import MixerShape


class FourierMixer(nn.Module):
    """Return the real part of the discrete Fourier transform over tokens and channels.

    It has no parameters and no mixing matrix of its own: the transform over the channels mixes those too.
    An image's cells are one sequence, row by row after the prefix tokens, as in the paper's experiments on
    pixels. Computed in float32 or wider, returned in the type of the tokens.

    Paper: Lee-Thorp et al. 2022 (FNet), equation 3.
    Departs from the paper: padding is set to zero first.
    """

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        *,
        may_attend: Bool[Tensor, "#batch #heads #queries tokens"] | None = None,
        grid: tuple[int, int] | None = None,
    ) -> Float[Tensor, "batch tokens dim"]:
        """Return new tokens; the mask may hide padding, the grid changes nothing."""
        x = hide_padding(x, may_attend, layer="fourier")
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return torch.fft.fft2(wide).real.to(x.dtype)


def _fourier(shape: MixerShape) -> FourierMixer:
    return FourierMixer()


MIXERS = {"fourier": _fourier}
