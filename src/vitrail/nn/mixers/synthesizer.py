"""Synthesizer: attention with scores that do not compare tokens, or not these alone (Tay et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.masks import masked_softmax
from vitrail.nn.mixers.contract import MixerShape, check_length, fit_to_tokens
from vitrail.nn.tap import Tap, one_grid
from vitrail.nn.tokens import Grid, Mask, Tokens

FACTOR_RANK = 8  # Tay et al. 2021, section 3.2.4, "we set k = 8"


class Synthesizer(nn.Module):
    """Average the values of all tokens with the softmax of synthetic scores.

    Args:
        scores: from the tokens and ``grid`` to scores (1 or batch, heads, queries, keys).

    Paper: Tay et al. 2021, equations 2 and 4; each head has scores of its own.
    """

    tap: Tap | None

    def __init__(self, dim: int, num_heads: int, *, scores: nn.Module) -> None:
        super().__init__()
        assert dim % num_heads == 0, f"{num_heads} heads do not divide {dim} channels"
        self.num_heads = num_heads
        self.scores = scores
        self.value = nn.Linear(dim, dim)
        self.projection = nn.Linear(dim, dim)
        self.tap = None

    def forward(self, x: Tokens, *, may_attend: Mask | None = None, grid: Grid | None = None) -> Tokens:
        weights = masked_softmax(self.scores(x, grid=grid).float(), may_attend)  # b or 1, h q k
        if self.tap is not None:
            self.tap.take_weights(weights.expand(x.shape[0], -1, -1, -1), kind="mixing", grids=one_grid(grid))
        values = self.value(x).unflatten(-1, (self.num_heads, -1))  # b k h d
        mixed = torch.einsum("bhqk,bkhd->bqhd", weights.to(values.dtype), values)
        return self.projection(mixed.flatten(2))


class DenseScores(nn.Module):
    """Predict a token's scores for all positions from that token alone.

    Paper: Tay et al. 2021, section 3.2.1: two layers with ReLU between them.
    """

    def __init__(self, shape: MixerShape) -> None:
        super().__init__()
        self.shape = shape
        head_dim = shape.dim // shape.num_heads
        self.hidden = nn.Linear(shape.dim, shape.dim)
        self.key_positions = _drawn(shape.num_tokens, shape.num_heads, head_dim, std=head_dim**-0.5)
        self.key_position_bias = nn.Parameter(torch.zeros(shape.num_tokens, shape.num_heads))

    def forward(
        self, x: Float[Tensor, "batch queries dim"], *, grid: Grid | None = None
    ) -> Float[Tensor, "batch heads queries queries"]:
        """Return the scores; the weights of the keys are resampled to another grid."""
        hidden = self.hidden(x).relu().unflatten(-1, (self.shape.num_heads, -1))  # b q h d
        tables = self.key_positions, self.key_position_bias
        return _scores_of_positions(hidden, *tables, self.shape, x.shape[1], grid)


class RandomScores(nn.Module):
    """One score for each head, query and key, the same for all inputs.

    Paper: Tay et al. 2021, section 3.2.2.
    """

    position_scores: Tensor

    def __init__(self, shape: MixerShape, *, trainable: bool = True) -> None:
        super().__init__()
        self.shape = shape
        # A standard normal, as for embeddings: heads differ from the first step on.
        scores = _drawn(shape.num_tokens, shape.num_tokens, shape.num_heads, std=1.0)
        if trainable:
            self.position_scores = scores
        else:
            self.register_buffer("position_scores", scores.detach())

    def forward(
        self, x: Float[Tensor, "batch queries dim"], *, grid: Grid | None = None
    ) -> Float[Tensor, "1 heads queries queries"]:
        """Return the scores, resampled to another grid along queries and along keys."""
        num_tokens = x.shape[1]
        by_query = fit_to_tokens(self.position_scores, self.shape, num_tokens, grid)  # q k h
        by_key = fit_to_tokens(by_query.transpose(0, 1), self.shape, num_tokens, grid)  # k q h
        return by_key.permute(2, 1, 0)[None]  # 1 h q k


class FactorizedDenseScores(nn.Module):
    """Predict a token's scores as an outer product of two short vectors.

    The vectors belong to the rows and the columns of the grid, or of a sequence folded into a nearly square
    grid. Prefix tokens have scores of their own.

    Paper: Tay et al. 2021, section 3.2.3; the paper tiles both vectors to the length of the sequence, which
    makes all products of a pair once.
    """

    def __init__(self, shape: MixerShape) -> None:
        super().__init__()
        self.shape = shape
        head_dim = shape.dim // shape.num_heads
        side = math.isqrt(max(shape.num_tokens - 1, 0)) + 1
        rows, columns = shape.grid or (-(-shape.num_tokens // side), side)
        self.row_shape = shape._replace(num_tokens=shape.num_prefix + rows, grid=(rows, 1))
        self.column_shape = shape._replace(num_tokens=columns, grid=(columns, 1))
        self.hidden = nn.Linear(shape.dim, shape.dim)
        self.row_positions = _drawn(shape.num_prefix + rows, shape.num_heads, head_dim, std=head_dim**-0.5)
        self.row_position_bias = nn.Parameter(torch.ones(shape.num_prefix + rows, shape.num_heads))
        self.column_positions = _drawn(columns, shape.num_heads, head_dim, std=head_dim**-0.5)
        self.column_position_bias = nn.Parameter(torch.ones(columns, shape.num_heads))

    def forward(
        self, x: Float[Tensor, "batch queries dim"], *, grid: Grid | None = None
    ) -> Float[Tensor, "batch heads queries queries"]:
        """Return the scores; the weights of rows and columns are resampled to another grid."""
        num_tokens, num_prefix = x.shape[1], self.shape.num_prefix
        if grid is None or self.shape.grid is None:
            check_length(self.shape, num_tokens)
            grid = len(self.row_positions) - num_prefix, len(self.column_positions)
        hidden = self.hidden(x).relu().unflatten(-1, (self.shape.num_heads, -1))  # b q h d
        of_rows = self.row_positions, self.row_position_bias, self.row_shape
        by_row = _scores_of_positions(hidden, *of_rows, num_prefix + grid[0], (grid[0], 1))
        of_columns = self.column_positions, self.column_position_bias, self.column_shape
        by_column = _scores_of_positions(hidden, *of_columns, grid[1], (grid[1], 1))
        patches = (by_row[..., num_prefix:, None] * by_column[..., None, :]).flatten(-2)  # b h q patches
        return torch.cat((by_row[..., :num_prefix], patches), dim=-1)[..., :num_tokens]


class FactorizedRandomScores(nn.Module):
    """``RandomScores`` as the product of two matrices of width ``rank``.

    Paper: Tay et al. 2021, section 3.2.4, ``R1 R2^T``.
    """

    def __init__(self, shape: MixerShape, *, rank: int = FACTOR_RANK) -> None:
        super().__init__()
        self.shape = shape
        std = rank**-0.25  # so that the products have variance one, as the scores of RandomScores
        self.query_positions = _drawn(shape.num_tokens, shape.num_heads, rank, std=std)
        self.key_positions = _drawn(shape.num_tokens, shape.num_heads, rank, std=std)

    def forward(
        self, x: Float[Tensor, "batch queries dim"], *, grid: Grid | None = None
    ) -> Float[Tensor, "1 heads queries queries"]:
        """Return the scores, both matrices resampled to another grid."""
        queries = fit_to_tokens(self.query_positions, self.shape, x.shape[1], grid)
        keys = fit_to_tokens(self.key_positions, self.shape, x.shape[1], grid)
        return torch.einsum("qhr,khr->hqk", queries, keys)[None]


class DotProductScores(nn.Module):
    """Compare every pair of tokens, as attention does.

    Paper: Vaswani et al. 2017, equation 1; "vanilla" in Tay et al. 2021, table 1.
    """

    def __init__(self, shape: MixerShape) -> None:
        super().__init__()
        self.num_heads = shape.num_heads
        self.query_key = nn.Linear(shape.dim, 2 * shape.dim)

    def forward(
        self, x: Float[Tensor, "batch queries dim"], *, grid: Grid | None = None
    ) -> Float[Tensor, "batch heads queries queries"]:
        query, key = self.query_key(x).unflatten(-1, (2, self.num_heads, -1)).unbind(2)  # b n h d
        return torch.einsum("bqhd,bkhd->bhqk", query * query.shape[-1] ** -0.5, key)


class MixedScores(nn.Module):
    """Average several kinds of scores with learned weights that sum to one.

    Paper: Tay et al. 2021, section 3.2.5, ``softmax(a1 S1(X) + ... + aN SN(X))``. Here the weights are a
    softmax of learned numbers, and equal at first.
    """

    def __init__(self, *scores: nn.Module) -> None:
        super().__init__()
        self.scores = nn.ModuleList(scores)
        self.mixture = nn.Parameter(torch.zeros(len(scores)))

    def forward(
        self, x: Float[Tensor, "batch queries dim"], *, grid: Grid | None = None
    ) -> Float[Tensor, "_ heads queries queries"]:
        shares = self.mixture.softmax(dim=0)
        mixed = [share * scores(x, grid=grid) for share, scores in zip(shares, self.scores, strict=True)]
        return sum(mixed[1:], start=mixed[0])


def _scores_of_positions(
    hidden: Tensor, weight: Tensor, bias: Tensor, shape: MixerShape, num_tokens: int, grid: Grid | None
) -> Float[Tensor, "batch heads queries {num_tokens}"]:
    """Apply a linear layer of each head, whose outputs are positions, fitted to those there are."""
    weight, bias = (fit_to_tokens(table, shape, num_tokens, grid) for table in (weight, bias))
    return torch.einsum("bqhd,khd->bhqk", hidden, weight.to(hidden.dtype)) + bias.T[:, None].to(hidden.dtype)


def _drawn(*sizes: int, std: float) -> nn.Parameter:
    return nn.Parameter(nn.init.normal_(torch.empty(*sizes), std=std))


def _build(shape: MixerShape, *, scores: Sequence[Callable[[MixerShape], nn.Module]]) -> Synthesizer:
    made = [kind(shape) for kind in scores]
    return Synthesizer(shape.dim, shape.num_heads, scores=made[0] if len(made) == 1 else MixedScores(*made))


SCORES: dict[str, Sequence[Callable[[MixerShape], nn.Module]]] = {
    "synthesizer_dense": [DenseScores],
    "synthesizer_random": [RandomScores],
    "synthesizer_factorized": [FactorizedRandomScores],
    "synthesizer_factorized_dense": [FactorizedDenseScores],
    "synthesizer_fixed_random": [partial(RandomScores, trainable=False)],
    "synthesizer_random_dense": [RandomScores, DenseScores],
    "synthesizer_random_attention": [RandomScores, DotProductScores],
    "synthesizer_dense_attention": [DenseScores, DotProductScores],
}
"""Scores by mixer; several are mixed."""

MIXERS = {name: partial(_build, scores=scores) for name, scores in SCORES.items()}
