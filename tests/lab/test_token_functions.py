"""The functions of tokens by their definitions, the layers that are written down, and the criterion."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vitrail.core.errors import ConfigError
from vitrail.lab import association, double_if
from vitrail.lab.association import Association
from vitrail.lab.double_if import DoubleIf
from vitrail.lab.token_functions import (
    LAYERS,
    BuiltRow,
    FunctionRow,
    LearnedRow,
    Readers,
    attend_by_hand,
    draw_symbols,
    greatest_error,
    judge_function,
    learn_all,
)

NUM_SYMBOLS = 7
SHORT = Readers(length=5, longer=7, num_steps=1, batch_size=3, learning_rate=0.01, num_tested=3)


def test_answers_of_the_association_are_those_of_its_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    symbols = draw_symbols(NUM_SYMBOLS, generator)
    partner = association._draw_partners(NUM_SYMBOLS, generator)
    drawn = association._drawer(symbols, partner, generator)(40, 4)

    numbers = (drawn.tokens @ symbols.T).argmax(dim=-1)  # of the symbols; 7 is the stop
    wanted = partner[numbers[:, 0]]
    belongs = (numbers == wanted[:, None]).double()
    expected = (belongs[..., None] * drawn.tokens).sum(dim=1)

    torch.testing.assert_close(drawn.answer, expected)
    assert 0 < int(belongs.sum()) < 40
    assert sorted(partner.tolist()) == list(range(NUM_SYMBOLS))
    assert (partner != torch.arange(NUM_SYMBOLS)).all()
    assert all(len(set(row)) == 5 for row in numbers.tolist()), "a symbol stands twice"


def test_answers_of_the_double_if_are_those_of_its_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    symbols = draw_symbols(NUM_SYMBOLS, generator)
    drawn = double_if._drawer(symbols, 2, generator)(60, 5)

    numbers = (drawn.tokens @ symbols.T).argmax(dim=-1)
    counts = (numbers[:, 0] == double_if.ASKED) * (numbers == double_if.COUNTED).sum(dim=1)

    torch.testing.assert_close(drawn.answer, counts[:, None] * symbols[double_if.COUNTED])
    assert set(counts.tolist()) == {0, 1, 2}


def test_by_hand_the_error_falls_like_an_exponential() -> None:
    claim = DoubleIf(num_symbols=NUM_SYMBOLS, most=2)
    generator = torch.Generator().manual_seed(1)
    symbols = draw_symbols(NUM_SYMBOLS, generator)
    drawn = double_if._drawer(symbols, claim.most, generator)(50, 6)
    scores, values = torch.outer(symbols[0], symbols[1]), torch.outer(symbols[1], symbols[1])

    errors = [greatest_error(attend_by_hand(scores, values, symbols, alpha), drawn) for alpha in (6.0, 7.0)]

    assert errors[0] / errors[1] == pytest.approx(torch.e, rel=0.05)
    assert errors[0] < 0.02


def test_convolutions_are_given_at_least_as_many_parameters() -> None:
    generator = torch.Generator().manual_seed(2)
    symbols = draw_symbols(9, generator)
    draw = association._drawer(symbols, association._draw_partners(9, generator), generator)

    rows = learn_all(draw, 10, SHORT, 2, shortest=2)

    count = {row.layer: row.parameters for row in rows}
    assert count["attention"] == 4 * 10 * 10 + 10
    assert all(count["attention"] <= count[name] < 1.2 * count["attention"] for name in LAYERS)


def test_a_function_needs_an_exact_limit_and_then_a_layer_that_learns_and_one_that_does_not() -> None:
    built, learned = make_built(1e-5), make_learned(attention=0.001, convolution=0.4)

    assert judge_function([*built, *learned], 0.5).verdict == "holds"
    assert judge_function([*built, *make_learned(attention=0.1, convolution=0.4)], 0.5).verdict == "partly"
    assert judge_function([*built, *make_learned(attention=0.001, convolution=0.1)], 0.5).verdict == "partly"
    assert judge_function([*make_built(0.1), *learned], 0.5).verdict == "does not hold"


def test_what_v1_alone_tells_is_the_variance_of_the_count() -> None:
    assert DoubleIf(most=3).blind_error == pytest.approx(1.25 / 3.5)
    assert DoubleIf(most=1).blind_error == pytest.approx(association.BLIND_ERROR)


@pytest.mark.parametrize(
    ("claim", "changes", "message"),
    [
        (Association(), {"longer": 24}, "all tokens differ"),
        (DoubleIf(), {"most": 8}, "the first token is not counted"),
    ],
)
def test_sequences_that_cannot_be_drawn_are_refused(
    claim: Any, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        claim.with_changes(changes)


def make_built(last: float) -> list[FunctionRow]:
    return [BuiltRow(alpha=alpha, seed=0, greatest_error=error) for alpha, error in ((1.0, 0.5), (9.0, last))]


def make_learned(*, attention: float, convolution: float) -> list[FunctionRow]:
    """Return trained rows, and rows of longer sequences that would decide otherwise."""
    errors = dict(zip(LAYERS, (attention, convolution, 0.0), strict=True))
    return [
        LearnedRow(
            layer=name,
            seed=0,
            length=length,
            was_trained=length == 8,
            error=errors[name] if length == 8 else 0.2,
            parameters=11,
        )
        for name in LAYERS
        for length in (8, 20)
    ]
