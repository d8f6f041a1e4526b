"""Mix tokens by bidirectional LSTMs (Sequencer, Tatsunami and Taki 2022)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from vitrail.core.errors import ConfigError
from vitrail.nn.masks import read_key_mask
from vitrail.nn.mixers.contract import MixerShape
from vitrail.nn.recurrent import RecurrentWeights, run_lstm
from vitrail.nn.tokens import Grid, Mask, Tokens


class BidirectionalLSTM(nn.Module):
    """A bidirectional LSTM.

    It calls torch's function and not its module, which torch.compile does not trace.
    """

    run = staticmethod(run_lstm)

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.ahead, self.back = RecurrentWeights(4, dim, hidden_dim), RecurrentWeights(4, dim, hidden_dim)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden_dim**-0.5), hidden_dim**-0.5)  # Sequencer's published code

    def forward(
        self, x: Float[Tensor, "steps batch dim"], *, is_there: Bool[Tensor, "steps batch"] | None = None
    ) -> Float[Tensor, "steps batch hidden"]:
        """Return the concatenated states of both directions.

        Args:
            is_there: False for padding, which may be anywhere: both directions read it last.
        """
        if is_there is None:
            return self._read(x, self.ahead.ordered() + self.back.ordered())
        # Each direction reads its sequence first, and then the padding.
        ahead = (~is_there).int().argsort(dim=0, stable=True)
        back = len(x) - 1 - (~is_there.flip(0)).int().argsort(dim=0, stable=True)
        return torch.cat((self._read_in(ahead, x, self.ahead), self._read_in(back, x, self.back)), dim=-1)

    def _read_in(self, order: Int[Tensor, "steps batch"], x: Tensor, weights: RecurrentWeights) -> Tensor:
        states = self._read(x.take_along_dim(order[..., None], dim=0), weights.ordered())
        return states.take_along_dim(order.argsort(dim=0)[..., None], dim=0)

    def _read(self, x: Tensor, weights: list[Tensor]) -> Tensor:
        start = x.new_zeros(len(weights) // 4, x.shape[1], self.hidden_dim)
        return self.run(x, (start, start), weights, training=self.training, bidirectional=len(weights) == 8)


class SequenceLSTM(nn.Module):
    """A bidirectional LSTM over the tokens, projected to their width.

    Paper: Tatsunami and Taki 2022, section 3.2, "BiLSTM layer", with the projection of section 3.3.
    """

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.lstm = BidirectionalLSTM(dim, hidden_dim)
        self.projection = nn.Linear(2 * hidden_dim, dim)

    def forward(self, x: Tokens, *, may_attend: Mask | None = None, grid: Grid | None = None) -> Tokens:
        """Return new tokens; the mask may hide padding, patches of an image are read row by row."""
        is_there = _read_mask(may_attend, x, layer="lstm")
        states = self.lstm(x.transpose(0, 1), is_there=None if is_there is None else is_there.T)
        return self.projection(states.transpose(0, 1))


class GridLSTM(nn.Module):
    """Bidirectional LSTMs over each column and each row of an image, projected to the tokens' width.

    Prefix tokens precede every column and every row; their states are averaged over columns and rows.

    Paper: Tatsunami and Taki 2022, section 3.3, "BiLSTM2D layer"; the paper has no prefix tokens.
    """

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.vertical = BidirectionalLSTM(dim, hidden_dim)
        self.horizontal = BidirectionalLSTM(dim, hidden_dim)
        self.projection = nn.Linear(4 * hidden_dim, dim)

    def forward(self, x: Tokens, *, may_attend: Mask | None = None, grid: Grid | None = None) -> Tokens:
        """Return new tokens; padding is left out of its column and its row.

        Raises:
            ConfigError: there is no grid, or the mask differs by query or head.
        """
        if grid is None:
            raise _no_grid()
        is_there = _read_mask(may_attend, x, layer="lstm_2d")
        num_prefix = x.shape[1] - grid[0] * grid[1]
        columns = _read_lines(self.vertical, x, is_there, grid, axis=0)  # rows b columns d
        rows = _read_lines(self.horizontal, x, is_there, grid, axis=1)  # columns b rows d
        columns, rows = columns.permute(1, 0, 2, 3), rows.permute(1, 2, 0, 3)  # b rows columns d
        states = torch.cat((columns[:, num_prefix:], rows[:, :, num_prefix:]), dim=-1).flatten(
            1, 2
        )  # b patches d
        if num_prefix:
            means = (columns[:, :num_prefix].mean(dim=2), rows[:, :, :num_prefix].mean(dim=1))
            states = torch.cat((torch.cat(means, dim=-1), states), dim=1)  # b tokens d
        return self.projection(states)


def _read_lines(
    lstm: BidirectionalLSTM, x: Tensor, is_there: Tensor | None, grid: Grid, *, axis: int
) -> Float[Tensor, "steps batch lines hidden"]:
    """Read the columns (axis 0) or the rows (axis 1) of a grid, each after the prefix tokens."""
    lines = _arrange_lines(x, grid, axis=axis)  # steps b lines d
    if is_there is not None:
        is_there = _arrange_lines(is_there[..., None], grid, axis=axis)[..., 0].flatten(1)  # steps b*lines
    return lstm(lines.flatten(1, 2), is_there=is_there).unflatten(1, (-1, lines.shape[2]))


def _arrange_lines(x: Tensor, grid: Grid, *, axis: int) -> Shaped[Tensor, "steps batch lines dim"]:
    num_prefix = x.shape[1] - grid[0] * grid[1]
    lines = x[:, num_prefix:].reshape(x.shape[0], *grid, -1).movedim(axis + 1, 0)  # steps b lines d
    if not num_prefix:
        return lines
    prefix = x[:, :num_prefix].transpose(0, 1)[:, :, None]  # prefix b 1 d
    return torch.cat((prefix.expand(-1, -1, lines.shape[2], -1), lines))


def _read_mask(may_attend: Tensor | None, x: Tensor, *, layer: str) -> Bool[Tensor, "batch tokens"] | None:
    if may_attend is None:
        return None
    return read_key_mask(may_attend, layer=layer).expand(x.shape[0], -1)


def _no_grid() -> ConfigError:
    return ConfigError(
        "the mixer 'lstm_2d' was given tokens without rows and columns",
        expected="the tokens of an image",
        remedy="Choose the mixer 'lstm' for sequences",
    )


def _lstm(shape: MixerShape) -> SequenceLSTM:
    return SequenceLSTM(shape.dim, max(1, shape.dim // 2))  # the states of a token are as wide as the token


def _lstm_2d(shape: MixerShape) -> GridLSTM:
    if shape.grid is None:
        raise _no_grid()
    return GridLSTM(shape.dim, max(1, shape.dim // 4))  # Tatsunami and Taki 2022, table 1 of the appendix


MIXERS = {"lstm": _lstm, "lstm_2d": _lstm_2d}
