"""Claim: one attention layer finds the token that belongs to the first one, at any position."""

from __future__ import annotations

from functools import partial

import torch
from pydantic import model_validator
from torch import Tensor

from vitrail.lab.token_functions import Construction, Sequences, TokenFunction, draw_symbols

BLIND_ERROR = 0.5  # of U v1 / 2: the partner is there in half of the sequences


class Association(TokenFunction):
    """Construct and train layers that return the first token's partner if it is in the sequence."""

    statement = (
        "Attention computes f1(v1, ..., vn) = sum_i v_i [v_i = U v1]: exactly in the limit with "
        "Q K^T = alpha U^-1, and it learns this by gradient descent; one convolution of equal size cannot "
        "reach so far."
    )
    source = "Teaching example (the association function); compare the induction heads of Olsson et al. 2022"
    published = (
        "A construction: scores v1^T (alpha U^-1) v_i are alpha where v_i = U v1, for an orthogonal U, and "
        "smaller elsewhere, so that softmax selects that token as alpha grows. A convolution sees few "
        "tokens, and weighs them by their positions."
    )

    @model_validator(mode="after")
    def _check_lengths(self) -> Association:
        if max(self.length, self.longer) >= self.num_symbols:
            raise ValueError("length and longer must be below num_symbols: all tokens differ")
        return self

    @property
    def blind_error(self) -> float:
        return BLIND_ERROR

    def write_down(self, generator: torch.Generator) -> Construction:
        """Choose symbols and their partners; U maps each symbol to its partner."""
        symbols = draw_symbols(self.num_symbols, generator)
        partner = _draw_partners(self.num_symbols, generator)
        # U maps each symbol to its partner; it is orthogonal on their span, so its inverse is U^T.
        inverse = symbols[:-1].T @ symbols[partner]
        values = torch.eye(len(symbols)) - torch.outer(symbols[-1], symbols[-1])
        return Construction(symbols, inverse, values, partial(_draw, symbols, partner, generator))


CLAIM = Association()


def _draw_partners(num_symbols: int, generator: torch.Generator) -> Tensor:
    """Return another symbol for each, all different: the next one in a random cycle."""
    circle = torch.randperm(num_symbols, generator=generator)
    partner = torch.empty_like(circle)
    partner[circle] = circle.roll(1)
    return partner


def _draw(
    symbols: Tensor, partner: Tensor, generator: torch.Generator, num_sequences: int, length: int
) -> Sequences:
    """Draw sequences of different symbols; half of them hold the partner of the first."""
    num_symbols = len(partner)
    ranks = torch.rand(num_sequences, num_symbols, generator=generator)
    first = torch.randint(num_symbols, (num_sequences,), generator=generator)
    rows = torch.arange(num_sequences)
    wanted = partner[first]
    ranks[rows, first], ranks[rows, wanted] = 2.0, 3.0  # neither is among the others
    others = ranks.argsort(dim=1)[:, : length - 1]
    has_partner = torch.rand(num_sequences, generator=generator) < 0.5
    position = torch.randint(length - 1, (num_sequences,), generator=generator)
    others[rows, position] = torch.where(has_partner, wanted, others[rows, position])
    stop = torch.full((num_sequences, 1), num_symbols)
    tokens = torch.cat((first[:, None], others, stop), dim=1)
    return Sequences(symbols[tokens], symbols[wanted] * has_partner[:, None])
