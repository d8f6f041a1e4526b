"""The axes that norms average over, found by gradients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool
from pydantic import Field, model_validator
from torch import Tensor, nn

from vitrail.lab.figures.drawing import Drawing, Drawn
from vitrail.nn.convolution import ChannelLayerNorm
from vitrail.report.plots import COLOURS, white_figure


def normalised_together(
    layer: Callable[[Tensor], Tensor], shape: tuple[int, int, int, int]
) -> Bool[Tensor, "batch channels rows columns"]:
    """Return the inputs that share mean and variance with the first image's last channel and position.

    They are those that its output depends on.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).requires_grad_()
    (gradient,) = torch.autograd.grad(layer(x)[0, -1, -1, -1], x)
    return gradient != 0


class Norms(Drawing):
    """Batch, layer, instance and group norm."""

    name = "norms"
    shows = "Norms: the entries that share one mean and variance, of a batch's channels and positions"
    source = "Wu and He 2018, figure 2; Ba et al. 2016 (layer norm); Ioffe and Szegedy 2015 (batch norm)"

    batch_size: int = Field(default=4, ge=2, le=12)
    """Images or sentences."""
    channels: int = Field(default=6, ge=2, le=12)
    """Channels."""
    positions: int = Field(default=5, ge=2, le=12)
    """Pixels or tokens."""
    groups: int = Field(default=2, ge=1)
    """Groups of group norm; divides ``channels``."""

    @model_validator(mode="after")
    def _check_groups(self) -> Norms:
        if self.channels % self.groups:
            raise ValueError(f"groups {self.groups} does not divide channels {self.channels}")
        return self

    def layers(self) -> dict[str, nn.Module]:
        channels = self.channels
        return {
            "batch norm": nn.BatchNorm2d(channels),
            "layer norm of a token": ChannelLayerNorm(channels),
            "layer norm of an image": nn.GroupNorm(1, channels),
            "instance norm": nn.GroupNorm(channels, channels),
            "group norm": nn.GroupNorm(self.groups, channels),
        }

    def draw(self) -> Drawn:
        channels, layers = self.channels, self.layers()
        figure = white_figure(14.0, 3.2, "")
        for place, (name, layer) in enumerate(layers.items(), start=1):
            together = normalised_together(layer, (self.batch_size, channels, self.positions, 1))
            cubes = together[..., 0].permute(1, 0, 2).numpy()  # channels batch positions
            axes = figure.add_subplot(1, len(layers), place, projection="3d")
            colours = np.where(cubes, COLOURS[0], "#fffffff0")
            axes.voxels(np.ones_like(cubes), facecolors=colours, edgecolor="#5c6675", linewidth=0.4)
            axes.set(xlabel="channels", ylabel="batch", zlabel="positions", xticks=[], yticks=[], zticks=[])
            axes.zaxis.set_ticks_position("lower")  # on the left, where the neighbour does not hide it
            for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
                axis.labelpad = -10
            axes.set_title(name, fontsize=10)
            axes.set_box_aspect((channels, self.batch_size, self.positions), zoom=0.95)
        return Drawn(figure)


DRAWINGS = (Norms(),)
