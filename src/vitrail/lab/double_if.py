"""Claim: one attention layer counts tokens of one kind, if the first token is of another."""

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

ASKED, COUNTED = 0, 1  # the symbols a and b


class DoubleIf(Config):
    """Write down and train layers that count the second symbol where the first token is the first one."""

    name: ClassVar[str] = "double_if"
    statement: ClassVar[str] = (
        "Attention computes f1(v1, ..., vn) = sum_j [v1 = a, vj = b]: exactly in the limit with "
        "Q K^T = alpha a b^T, and it learns this by gradient descent; one convolution of equal size does not."
    )
    source: ClassVar[str] = "Lectures on attention (the double-if function)"
    published: ClassVar[str] = (
        "A construction: of the scores v1^T (alpha a b^T) vj only those with v1 = a and vj = b are alpha, "
        "and all others 0, so that softmax selects these tokens as alpha grows."
    )
    criterion: ClassVar[str] = CRITERION

    alphas: tuple[float, ...] = Field(default=(1, 2, 4, 6, 8, 10, 12), min_length=2)
    """Factors of the scores that are written down, rising."""
    num_symbols: int = Field(default=24, ge=3)
    """Symbols that there are; a is the first one, b the second."""
    length: int = Field(default=8, ge=2)
    """Symbols of the trained sequences."""
    longer: int = Field(default=20, ge=2)
    """Symbols of sequences that are tested, too."""
    most: int = Field(default=3, ge=1)
    """Most tokens b of a sequence; from none up to this, each number is as frequent."""
    num_steps: int = Field(default=2000, ge=1)
    """Of each training."""
    batch_size: int = Field(default=64, ge=1)
    """Sequences of a step."""
    learning_rate: float = Field(default=5e-3, gt=0)
    """Of Adam at first; it falls to zero."""
    num_tested: int = Field(default=1000, ge=1)
    """Sequences of each test."""
    num_seeds: int = Field(default=3, ge=1)
    """Choices of symbols, weights and sequences."""

    @model_validator(mode="after")
    def _check_lengths(self) -> DoubleIf:
        if self.most >= min(self.length, self.longer):
            raise ValueError("most must be below length and longer: the first token is not counted")
        return self

    @property
    def blind_error(self) -> float:
        """Error of the best answer that depends on v1 alone: the variance of the count, over its square."""
        counts = torch.arange(self.most + 1).double()
        return float(counts.var(correction=0) / counts.square().mean())

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
        return judge_function(rows, self.blind_error)

    def draw(self, rows: Sequence[FunctionRow]) -> Figure:
        """Show the errors by hand against alpha, and the learned ones."""
        return draw_function(rows, self.blind_error)

    def _measure(self, seed: int) -> list[FunctionRow]:
        generator = torch.Generator().manual_seed(seed)
        symbols = draw_symbols(self.num_symbols, generator)
        draw = _drawer(symbols, self.most, generator)
        asked, counted = symbols[ASKED], symbols[COUNTED]
        scores, values = torch.outer(asked, counted), torch.outer(counted, counted)
        tested = draw(self.num_tested, self.length)
        built: list[FunctionRow] = [
            BuiltRow(
                alpha=alpha,
                seed=seed,
                greatest_error=greatest_error(attend_by_hand(scores, values, symbols, alpha), tested),
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


CLAIM = DoubleIf()


def _drawer(symbols: Float[Tensor, "symbols_and_stop dim"], most: int, generator: torch.Generator) -> Draw:
    """Return what draws sequences; half of them begin with a, and a count of n is told as n b."""
    num_symbols = len(symbols) - 1

    def draw(num_sequences: int, length: int) -> Sequences:
        is_asked = torch.rand(num_sequences, generator=generator) < 0.5
        first = torch.randint(1, num_symbols, (num_sequences,), generator=generator)
        first = torch.where(is_asked, ASKED, first)
        others = torch.randint(1, num_symbols, (num_sequences, length - 1), generator=generator)
        others = torch.where(others == COUNTED, ASKED, others)  # an a elsewhere means nothing
        count = torch.randint(most + 1, (num_sequences,), generator=generator)
        order = torch.rand(num_sequences, length - 1, generator=generator).argsort(dim=1)
        others = torch.where(order < count[:, None], COUNTED, others)
        stop = torch.full((num_sequences, 1), num_symbols)
        tokens = torch.cat((first[:, None], others, stop), dim=1)
        return Sequences(symbols[tokens], (count * is_asked)[:, None] * symbols[COUNTED])

    return draw
