"""Convolutions before the first block of a Vision Transformer.

Paper: Xiao et al. 2021, "Early convolutions help transformers see better".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from torch import nn

from vitrail.core.config import Config
from vitrail.nn.patches import ChannelLayerNorm, ConvStem


class ConvStemConfig(Config):
    """Settings of a convolutional stem (Xiao et al. 2021)."""

    channels: tuple[int, ...]
    """Channels after each 3x3 convolution."""
    strides: tuple[int, ...]
    """Stride of each convolution; their product divides ``patch_size``, the projection does the rest."""
    depths: tuple[int, ...] = ()
    """Number of residual blocks of two convolutions after each; empty means none."""
    norm: Literal["layer", "batch"] = "layer"
    """Norm after each convolution: layer norm over the channels of a pixel, or batch norm."""

    def check(self, patch_size: int) -> None:
        """Check lengths and strides.

        Raises:
            ValueError: the lists differ in length, or the strides do not divide the patch size.
        """
        stride = math.prod(self.strides)
        if len(self.channels) != len(self.strides) or stride < 1 or patch_size % stride:
            raise ValueError(
                f"stem needs as many channels as strides, and a product of strides that divides "
                f"patch_size {patch_size}; given {self.channels} and {self.strides}"
            )
        if self.depths and len(self.depths) != len(self.channels):
            raise ValueError(f"stem needs one depth for each of its {len(self.channels)} convolutions")

    def build(self, num_channels: int, width: int, *, patch_size: int) -> ConvStem:
        norms: dict[str, Callable[[int], nn.Module]] = {"layer": ChannelLayerNorm, "batch": nn.BatchNorm2d}
        return ConvStem(
            num_channels,
            width,
            patch_size=patch_size,
            channels=self.channels,
            strides=self.strides,
            depths=self.depths,
            norm=norms[self.norm],
        )
