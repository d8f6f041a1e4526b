"""Claim: one attention layer counts tokens of one kind, if the first token is of another."""

from __future__ import annotations

from functools import partial

import torch
from pydantic import Field, model_validator
from torch import Tensor

from vitrail.lab.token_functions import Construction, Sequences, TokenFunction, draw_symbols

ASKED, COUNTED = 0, 1  # the symbols a and b


class DoubleIf(TokenFunction):
    """Construct and train layers that count the symbol b where the first token is a."""

    statement = (
        "Attention computes f1(v1, ..., vn) = sum_j [v1 = a, vj = b]: exactly in the limit with "
        "Q K^T = alpha a b^T, and it learns this by gradient descent; one convolution of equal size cannot "
        "reach so far."
    )
    source = "Teaching example (the double-if function)"
    published = (
        "A construction: of the scores v1^T (alpha a b^T) vj only those with v1 = a and vj = b are alpha, "
        "and all others 0, so that softmax selects these tokens as alpha grows."
    )

    most: int = Field(default=3, ge=1)
    """Most tokens b in a sequence; all counts from zero are equally frequent."""

    @model_validator(mode="after")
    def _check_lengths(self) -> DoubleIf:
        if self.most >= min(self.length, self.longer):
            raise ValueError("most must be below length and longer: the first token is not counted")
        return self

    @property
    def blind_error(self) -> float:
        """Relative squared error of the best predictor that sees only v1."""
        counts = torch.arange(self.most + 1).double()
        return float(counts.var(correction=0) / counts.square().mean())

    @property
    def shortest(self) -> int:
        return self.most + 1

    def write_down(self, generator: torch.Generator) -> Construction:
        """Choose symbols; a is the first one, b the second."""
        symbols = draw_symbols(self.num_symbols, generator)
        asked, counted = symbols[ASKED], symbols[COUNTED]
        scores, values = torch.outer(asked, counted), torch.outer(counted, counted)
        return Construction(symbols, scores, values, partial(_draw, symbols, self.most, generator))


CLAIM = DoubleIf()


def _draw(
    symbols: Tensor, most: int, generator: torch.Generator, num_sequences: int, length: int
) -> Sequences:
    """Draw sequences, half of which begin with a; the target of a count n is n b."""
    num_symbols = len(symbols) - 1
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
