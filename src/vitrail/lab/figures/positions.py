"""Positions: the sinusoidal table, and the index of relative positions in a window."""

from __future__ import annotations

import torch
from pydantic import Field

from vitrail.core.config import ImageSize
from vitrail.lab.figures.drawing import Drawing, Drawn
from vitrail.nn.relative import relative_index
from vitrail.nn.sinusoidal import sinusoidal_positions, sinusoidal_positions_in_halves
from vitrail.report.plots import MORE_COLOURS, frame, white_figure
from vitrail.report.tiles import ON_WHITE, Matrix, matrix_figure, show_map


class Sinusoidal(Drawing):
    """The table of positions that is added to the tokens."""

    name = "sinusoidal"
    shows = "Sinusoidal positions: the encoding of each position of a sequence, and some of its channels"
    source = "Vaswani et al. 2017, section 3.5"

    num_tokens: int = Field(default=100, ge=2)
    """Positions."""
    dim: int = Field(default=512, ge=4, multiple_of=2)
    """Width of a token."""
    in_halves: bool = False
    """Whether all sines stand before all cosines, as in Marian."""

    def draw(self) -> Drawn:
        make_table = sinusoidal_positions_in_halves if self.in_halves else sinusoidal_positions
        table = make_table(self.num_tokens, self.dim).numpy()
        figure = white_figure(11.5, 4.2, "")
        whole, curves = figure.subplots(1, 2, width_ratios=(3, 2))
        frame(whole, "channel", "position")
        show_map(whole, table, ON_WHITE, (-1.0, 1.0), "", colours="RdBu_r")
        whole.set_aspect("auto")
        frame(curves, "position", "value")
        channels = [round(self.dim * share) for share in (0, 0.1, 0.2, 0.3, 0.5)]
        for colour, channel in zip(MORE_COLOURS, dict.fromkeys(channels), strict=False):
            curves.plot(table[:, channel], color=colour, label=f"channel {channel}", linewidth=1.4)
        curves.legend(frameon=False, fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
        return Drawn(figure, (Matrix("positions", table),))


class RelativeIndex(Drawing):
    """Which entry of the bias table belongs to which pair of patches."""

    name = "relative_index"
    shows = "Relative position bias: the entry of the table that each pair of a window's patches shares"
    source = "Liu et al. 2021 (Swin), section 3.2, equation 4"

    window: ImageSize = (3, 3)
    """Rows and columns of a window."""

    def draw(self) -> Drawn:
        rows, columns = self.window
        index = relative_index(self.window).numpy()
        table = torch.arange((2 * rows - 1) * (2 * columns - 1)).reshape(2 * rows - 1, -1).numpy()
        distances = [[f"{step:+d}" for step in range(1 - side, side)] for side in self.window]
        matrices = (
            Matrix("patches of a window", torch.arange(rows * columns).reshape(self.window).numpy()),
            Matrix("table, by query's minus key's row and column", table, *distances),
            Matrix("entry of each pair: queries down, keys across", index),
        )
        return Drawn(matrix_figure(matrices), matrices)


DRAWINGS = (Sinusoidal(), RelativeIndex())
