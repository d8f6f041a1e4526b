"""Claim: one attention layer finds the token that belongs to the first one, wherever it stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor

from vitrail.config import Config
from vitrail.lab.contract import Judgement, OnProgress, Progress
from vitrail.lab.token_functions import (
    CRITERION,
    BuiltRow,
    Draw,
    FunctionRow,
    Readers,
    Sequences,
    attend_by_hand,
    draw_function,
    draw_symbols,
    greatest_error,
    judge_function,
    learn_all,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLIND_ERROR = 0.5  # of U v1 / 2: the partner is there in half of the sequences


class Association(Config):
    """Write down and train layers that return the first token's partner where it is in the sequence."""

    name: ClassVar[str] = "association"
    statement: ClassVar[str] = (
        "Attention computes f1(v1, ..., vn) = sum_i v_i [v_i = U v1]: exactly in the limit with "
        "Q K^T = alpha U^-1, and it learns this by gradient descent; one convolution of equal size does not."
    )
    source: ClassVar[str] = (
        "Lectures on attention (the association function); compare the induction heads of Olsson et al. 2022"
    )
    published: ClassVar[str] = (
        "A construction: scores v1^T (alpha U^-1) v_i are alpha where v_i = U v1, for an orthogonal U, and "
        "smaller elsewhere, so that softmax selects that token as alpha grows. A convolution sees few "
        "tokens, and weighs them by their places."
    )
    criterion: ClassVar[str] = CRITERION

    alphas: tuple[float, ...] = Field(default=(1, 2, 4, 6, 8, 10, 12), min_length=2)
    """Factors of the scores that are written down, rising."""
    num_symbols: int = Field(default=24, ge=3)
    """Symbols that there are; U turns each into another."""
    length: int = Field(default=8, ge=2)
    """Symbols of the trained sequences, all different."""
    longer: int = Field(default=20, ge=2)
    """Symbols of sequences that are tested, too."""
    num_steps: int = Field(default=2000, ge=1)
    """Of each training."""
    batch_size: int = Field(default=64, ge=1)
    """Sequences of a step."""
    learning_rate: float = Field(default=5e-3, gt=0)
    """Of Adam at first; it falls to zero."""
    num_tested: int = Field(default=1000, ge=1)
    """Sequences of each test."""
    num_seeds: int = Field(default=3, ge=1)
    """Choices of symbols, U, weights and sequences."""

    @model_validator(mode="after")
    def _check_lengths(self) -> Association:
        if max(self.length, self.longer) >= self.num_symbols:
            raise ValueError("length and longer must be below num_symbols: all tokens differ")
        return self

    def run(self, progress: OnProgress, *, seed: int) -> list[FunctionRow]:
        """Write down and train with each seed."""
        rows: list[FunctionRow] = []
        for done in range(self.num_seeds):
            progress(Progress(done, self.num_seeds, f"seed {seed + done}"))
            rows += self._measure(seed + done)
        progress(Progress(self.num_seeds, self.num_seeds, "done"))
        return rows

    def judge(self, rows: Sequence[FunctionRow]) -> Judgement:
        """Look at the errors by hand, learned, and of the convolution."""
        return judge_function(rows, BLIND_ERROR)

    def draw(self, rows: Sequence[FunctionRow]) -> Figure:
        """Show the errors by hand against alpha, and the learned ones."""
        return draw_function(rows, BLIND_ERROR)

    def _measure(self, seed: int) -> list[FunctionRow]:
        generator = torch.Generator().manual_seed(seed)
        symbols = draw_symbols(self.num_symbols, generator)
        partner = _draw_partners(self.num_symbols, generator)
        draw = _drawer(symbols, partner, generator)
        # U maps each symbol to its partner; it is orthogonal on their span, so its inverse is U^T.
        inverse = symbols[:-1].T @ symbols[partner]
        values = torch.eye(len(symbols)) - torch.outer(symbols[-1], symbols[-1])
        tested = draw(self.num_tested, self.length)
        built: list[FunctionRow] = [
            BuiltRow(
                alpha=alpha,
                seed=seed,
                greatest_error=greatest_error(attend_by_hand(inverse, values, symbols, alpha), tested),
            )
            for alpha in self.alphas
        ]
        settings = Readers(
            length=self.length,
            longer=self.longer,
            num_steps=self.num_steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            num_tested=self.num_tested,
        )
        return [*built, *learn_all(draw, len(symbols), settings, seed)]


CLAIM = Association()


def _draw_partners(num_symbols: int, generator: torch.Generator) -> Tensor:
    """Return another symbol for each, all different: the next in a random circle."""
    circle = torch.randperm(num_symbols, generator=generator)
    partner = torch.empty_like(circle)
    partner[circle] = circle.roll(1)
    return partner


def _drawer(
    symbols: Float[Tensor, "symbols_and_stop dim"], partner: Tensor, generator: torch.Generator
) -> Draw:
    """Return what draws sequences of different symbols; half of them hold the partner of the first."""
    num_symbols = len(partner)

    def draw(num_sequences: int, length: int) -> Sequences:
        ranks = torch.rand(num_sequences, num_symbols, generator=generator)
        first = torch.randint(num_symbols, (num_sequences,), generator=generator)
        rows = torch.arange(num_sequences)
        wanted = partner[first]
        ranks[rows, first], ranks[rows, wanted] = 2.0, 3.0  # neither is among the others
        others = ranks.argsort(dim=1)[:, : length - 1]
        has_partner = torch.rand(num_sequences, generator=generator) < 0.5
        place = torch.randint(length - 1, (num_sequences,), generator=generator)
        others[rows, place] = torch.where(has_partner, wanted, others[rows, place])
        stop = torch.full((num_sequences, 1), num_symbols)
        tokens = torch.cat((first[:, None], others, stop), dim=1)
        return Sequences(symbols[tokens], symbols[wanted] * has_partner[:, None])

    return draw
