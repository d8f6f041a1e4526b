from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.interpret.grids import spread_cells

SIDES = st.integers(1, 9)


@settings(max_examples=30, deadline=None)
@given(rows=SIDES, columns=SIDES, to_rows=SIDES, to_columns=SIDES)
def test_no_value_is_lost_between_any_two_grids(rows, columns, to_rows, to_columns):
    values = torch.rand(2, rows, columns)
    spread = spread_cells(values, (to_rows, to_columns))

    assert spread.shape == (2, to_rows, to_columns)
    torch.testing.assert_close(spread.sum((-1, -2)), values.sum((-1, -2)))
    assert (spread >= 0).all()


def test_the_last_cell_of_a_merged_grid_is_shared_by_those_it_was_merged_of():
    spread = spread_cells(torch.tensor([[6.0], [3.0], [5.0]]), (5, 1))
    assert spread.flatten().tolist() == [3, 3, 1.5, 1.5, 5]


def test_merging_is_the_sum_of_the_cells_and_undoes_spreading():
    values = torch.rand(3, 2)
    assert spread_cells(torch.ones(5, 3), (3, 2)).tolist() == [[4, 2], [4, 2], [2, 1]]
    torch.testing.assert_close(spread_cells(spread_cells(values, (5, 3)), (3, 2)), values)


def test_cells_that_do_not_fit_into_each_other_share_by_place():
    spread = spread_cells(torch.tensor([[6.0, 0.0]]), (1, 3))
    assert spread_cells(torch.tensor([[9.0, 0.0, 0.0, 0.0]]), (1, 3)).flatten().tolist() == [9, 0, 0]
    assert spread.sum() == 6
