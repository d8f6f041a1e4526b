"""One head of attention step by step, for any sentence and without training."""

from __future__ import annotations

import torch
from pydantic import Field, model_validator
from torch import Tensor

from vitrail.core.errors import ConfigError
from vitrail.interpret.record import record_attention
from vitrail.interpret.viewer.steps import steps_matrices
from vitrail.lab.figures.drawing import Drawing, Drawn
from vitrail.lab.figures.masks import words_of
from vitrail.nn.attention import AttentionLayer
from vitrail.nn.masks import causal_mask
from vitrail.nn.sinusoidal import sinusoidal_positions
from vitrail.report.tiles import matrix_figure

Rows = tuple[tuple[float, ...], ...]


class Heads(AttentionLayer):
    """Heads whose matrices are given: ``Q = X W_Q``, ``K = X W_K``, ``V = X W_V``."""

    def __init__(self, query: Tensor, key: Tensor, value: Tensor, *, num_heads: int) -> None:
        super().__init__()
        self.matrices, self.num_heads = (query, key, value), num_heads

    def forward(self, x: Tensor, *, may_attend: Tensor | None) -> Tensor:
        query, key, value = (
            (x @ each).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in self.matrices
        )
        return self.average(query, key, value, may_attend=may_attend)


class AttentionHead(Drawing):
    """The worked example of self-attention."""

    name = "attention"
    shows = "One head, step by step, for any sentence: X, Q, K, V, scores, scaled scores, softmax, Z"
    source = "Vaswani et al. 2017, equation 1 and section 3.2.2"
    prints = True

    text: tuple[str, ...] = Field(default=("LSC is the best!",), min_length=1, max_length=1)
    """A sentence, whose words get random vectors."""
    x: Rows | None = None
    """The vectors instead, one row for each token."""
    query: Rows | None = None
    """W_Q, one row for each channel of X; the heads' columns beside each other. By default random."""
    key: Rows | None = None
    """W_K."""
    value: Rows | None = None
    """W_V."""
    dim: int = Field(default=4, ge=2, multiple_of=2)
    """Width of X where it is random."""
    head_dim: int = Field(default=4, ge=1)
    """Width of a head where its matrices are random."""
    num_heads: int = Field(default=1, ge=1)
    """Heads."""
    head: int = 1
    """The head shown, counted from 1."""
    causal: bool = False
    """Whether a token sees only itself and earlier ones."""
    positions: bool = False
    """Whether sinusoidal positions are added to X."""
    seed: int = 0
    """Of what is random."""

    @model_validator(mode="after")
    def _check_matrices(self) -> AttentionHead:
        for name in ("x", "query", "key", "value"):
            rows = getattr(self, name)
            if rows is not None and (not rows or len({len(row) for row in rows}) != 1 or not rows[0]):
                raise ValueError(f"the rows of {name} are not equally long, or there is none")
            if name != "x" and rows is not None and len(rows) != self.width:
                raise ValueError(
                    f"{name} needs {self.width} rows, one for each channel of x, not {len(rows)}"
                )
            if name != "x" and rows is not None and len(rows[0]) % self.num_heads:
                raise ValueError(f"{self.num_heads} heads do not divide the {len(rows[0])} columns of {name}")
        if self.query is not None and self.key is not None and len(self.query[0]) != len(self.key[0]):
            raise ValueError("query and key need equally many columns")
        return self

    @property
    def width(self) -> int:
        """Channels of X."""
        return len(self.x[0]) if self.x else self.dim

    def draw(self) -> Drawn:
        if not 1 <= self.head <= self.num_heads:
            raise ConfigError(
                f"there is no head {self.head}",
                expected=f"1 to {self.num_heads}",
                remedy="Change head or num_heads with --set",
            )
        generator = torch.Generator().manual_seed(self.seed)
        words = [f"x{number}" for number in range(1, len(self.x) + 1)] if self.x else words_of(self.text[0])
        x = torch.tensor(self.x) if self.x else torch.randn(len(words), self.dim, generator=generator)
        if self.positions:
            x = x + sinusoidal_positions(*x.shape)
        columns = len((self.query or self.key or ((0,) * self.num_heads * self.head_dim,))[0])
        widths = (columns, columns, self.num_heads * self.head_dim)
        matrices = [
            torch.tensor(rows)
            if rows
            else torch.randn(self.width, width, generator=generator) / self.width**0.5
            for rows, width in zip((self.query, self.key, self.value), widths, strict=True)
        ]
        heads = Heads(*matrices, num_heads=self.num_heads)
        mask = causal_mask(len(words)) if self.causal else None
        with record_attention(heads, keep_qkv=True) as recorded:
            heads(x[None], may_attend=mask)
        steps = steps_matrices(recorded[0], self.head - 1, words, words)
        return Drawn(matrix_figure(steps), steps)


DRAWINGS = (AttentionHead(),)
