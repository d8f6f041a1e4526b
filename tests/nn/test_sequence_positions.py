from __future__ import annotations

import pytest
import torch

from vitrail.core.errors import DataError
from vitrail.nn.sequence_positions import LearnedPositions
from vitrail.nn.sinusoidal import (
    STORED_POSITIONS,
    SinusoidalPositions,
    sinusoidal_positions,
    sinusoidal_positions_in_halves,
)


@pytest.mark.parametrize("make_table", [sinusoidal_positions, sinusoidal_positions_in_halves])
def test_sines_are_added_from_the_first_place_on(make_table):
    x = torch.randn(2, 3, 6)
    positions = SinusoidalPositions(6, make_table=make_table)
    torch.testing.assert_close(positions(x), x + make_table(3, 6))
    torch.testing.assert_close(positions(x, first=4), x + make_table(7, 6)[4:])


def test_sequences_longer_than_the_stored_table_have_positions():
    x = torch.randn(1, 2, 6)
    table = sinusoidal_positions(STORED_POSITIONS + 1, 6)
    moved = SinusoidalPositions(6)(x, first=STORED_POSITIONS - 1)
    torch.testing.assert_close(moved, x + table[-2:])
    assert SinusoidalPositions(6)(torch.zeros(1, STORED_POSITIONS + 5, 6)).shape[1] == STORED_POSITIONS + 5


def test_halves_hold_the_same_values_in_another_order():
    in_turn, halves = sinusoidal_positions(5, 6), sinusoidal_positions_in_halves(5, 6)
    assert torch.equal(halves, torch.cat((in_turn[:, 0::2], in_turn[:, 1::2]), dim=1))


def test_sines_are_not_stored_with_the_weights():
    assert SinusoidalPositions(6).state_dict() == {}


def test_learned_positions_are_rows_of_a_table():
    positions = LearnedPositions(5, 6)
    x = torch.randn(2, 3, 6)
    torch.testing.assert_close(positions(x, first=2), x + positions.table[2:5])


def test_a_sequence_beyond_the_table_is_refused():
    positions = LearnedPositions(5, 6)
    with pytest.raises(DataError, match=r"6 tokens for a model with positions for 5.*max_length"):
        positions(torch.zeros(1, 1, 6), first=5)
