"""What claims share that say a function of tokens can be written down as attention, and learned."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from vitrail.lab.contract import Judgement, OnProgress, Progress
from vitrail.lab.token_functions import (
    CRITERION,
    BuiltRow,
    Draw,
    FunctionRow,
    Readers,
    attend_by_hand,
    draw_function,
    greatest_error,
    judge_function,
    learn_all,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Construction(NamedTuple):
    """A function of sequences, and the attention layer that computes it, written down."""

    symbols: Float[Tensor, "symbols_and_stop dim"]
    """As ``draw_symbols`` returns them."""
    scores: Float[Tensor, "dim dim"]
    """As ``attend_by_hand`` takes them."""
    values: Float[Tensor, "dim dim"]
    """Likewise."""
    draw: Draw
    """Of sequences with their answers."""


class TokenFunction(Readers):
    """A claim about one function; a subclass says which, and how it is written down."""

    criterion: ClassVar[str] = CRITERION

    alphas: tuple[float, ...] = Field(default=(1, 2, 4, 6, 8, 10, 12), min_length=2)
    """Factors of the scores that are written down, rising."""
    num_symbols: int = Field(default=24, ge=3)
    """Symbols that there are."""
    num_seeds: int = Field(default=3, ge=1)
    """Choices of symbols, of the function, of weights and sequences."""

    @property
    @abstractmethod
    def blind_error(self) -> float:
        """Error of the best answer that depends on v1 alone, over the mean square of the answers."""

    @property
    def shortest(self) -> int:
        """Symbols of the shortest sequences of which the function can be asked."""
        return 2

    @abstractmethod
    def write_down(self, generator: torch.Generator) -> Construction:
        """Choose symbols and write the layer down."""

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
        symbols, scores, values, draw = self.write_down(torch.Generator().manual_seed(seed))
        tested = draw(self.num_tested, self.length)
        built: list[FunctionRow] = [
            BuiltRow(
                alpha=alpha,
                seed=seed,
                greatest_error=greatest_error(attend_by_hand(scores, values, symbols, alpha), tested),
            )
            for alpha in self.alphas
        ]
        return [*built, *learn_all(draw, len(symbols), self, seed, shortest=self.shortest)]
