"""Maps on other grids: joined, spread and added up over levels."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.interpret import AttentionMap
from vitrail.interpret.grids import coarsen, join_levels, spread_patches, with_joined_levels

SIDES = st.integers(1, 9)


@settings(max_examples=30, deadline=None)
@given(rows=SIDES, columns=SIDES, to_rows=SIDES, to_columns=SIDES)
def test_no_value_is_lost_between_any_two_grids(rows, columns, to_rows, to_columns):
    values = torch.rand(2, rows, columns)
    spread = spread_patches(values, (to_rows, to_columns))

    assert spread.shape == (2, to_rows, to_columns)
    torch.testing.assert_close(spread.sum((-1, -2)), values.sum((-1, -2)))
    assert (spread >= 0).all()


def test_merged_patches_are_shared_evenly_and_others_by_overlap():
    assert spread_patches(torch.tensor([[6.0], [3.0], [5.0]]), (5, 1)).flatten().tolist() == [
        3,
        3,
        1.5,
        1.5,
        5,
    ]
    assert spread_patches(torch.tensor([[9.0, 0.0, 0.0, 0.0]]), (1, 3)).flatten().tolist() == [9, 0, 0]
    assert spread_patches(torch.tensor([[6.0, 0.0]]), (1, 3)).sum() == 6
    assert spread_patches(torch.ones(5, 3), (3, 2)).tolist() == [[4, 2], [4, 2], [2, 1]]
    values = torch.rand(3, 2)
    torch.testing.assert_close(spread_patches(spread_patches(values, (5, 3)), (3, 2)), values)


def _map(queries: tuple[int, int], keys: tuple[int, int], *, num_prefix: int = 0) -> AttentionMap:
    torch.manual_seed(0)
    shape = (2, 3, num_prefix + queries[0] * queries[1], num_prefix + keys[0] * keys[1])
    return AttentionMap("layer", torch.randn(shape).softmax(-1), "self", keys, num_prefix, queries)


def test_a_map_that_is_small_enough_stays():
    recorded = _map((4, 5), (2, 3), num_prefix=1)
    coarse = coarsen(recorded, 5)
    assert torch.equal(coarse.weights, recorded.weights)
    assert coarse[2:] == recorded[2:]


def test_queries_are_averaged_and_keys_added():
    recorded = _map((4, 6), (5, 3), num_prefix=1)
    coarse = coarsen(recorded, 3)

    assert (coarse.query_grid, coarse.grid, coarse.num_prefix) == ((2, 3), (3, 2), 1)
    assert coarse.weights.shape == (2, 3, 7, 7)
    patches = recorded.weights[:, :, 1:, 1:].reshape(2, 3, 4, 6, 5, 3)
    expected = patches[:, :, 2:4, 4:6, 2:4, 2:].sum((-2, -1)).mean((-2, -1))  # a square that is not full
    torch.testing.assert_close(coarse.weights[:, :, 6, 4], expected)
    torch.testing.assert_close(coarse.weights[:, :, 0, 0], recorded.weights[:, :, 0, 0])
    torch.testing.assert_close(coarse.weights.sum(-1), torch.ones(coarse.weights.shape[:-1]))


def test_queries_without_a_grid_stay():
    recorded = _map((1, 7), (6, 4))._replace(query_grid=None, kind="cross")
    coarse = coarsen(recorded, 3)

    assert (coarse.query_grid, coarse.grid) == (None, (3, 2))
    expected = recorded.weights.reshape(2, 3, 7, 3, 2, 2, 2).sum((-3, -1)).flatten(-2)
    torch.testing.assert_close(coarse.weights, expected)


def level(grid: tuple[int, int], weights: torch.Tensor, layer: str = "layer") -> AttentionMap:
    return AttentionMap(layer, weights, "cross", grid, 0)


def test_weights_are_spread_over_what_their_patches_cover():
    coarse = level((1, 2), torch.tensor([[[[0.3, 0.1]]]]))
    fine = level((2, 3), torch.tensor([[[[0.1, 0.0, 0.2, 0.0, 0.3, 0.0]]]]))

    joined = join_levels([fine, coarse])

    assert joined.grid == (2, 3)
    # Of three columns, the first of two coarse patches covers the first and half of the second.
    spread = torch.tensor([[0.1, 0.05 + 0.05 / 3, 0.1 / 3]]).expand(2, 3)
    expected = fine.weights.reshape(2, 3) + spread
    torch.testing.assert_close(joined.weights.reshape(2, 3), expected)


def test_rows_that_sum_to_one_over_all_levels_still_do():
    weights = torch.rand(2, 3, 5, 12 + 35 + 2).softmax(-1)
    grids = [(5, 7), (4, 3), (1, 2)]
    parts = weights.split([35, 12, 2], dim=-1)

    joined = join_levels([level(grid, part) for grid, part in zip(grids, parts, strict=True)])

    assert joined.weights.shape == (2, 3, 5, 35)
    torch.testing.assert_close(joined.weights.sum(-1), torch.ones(2, 3, 5))


def test_levels_are_numbered_and_their_sum_comes_last():
    one, two = level((2, 2), torch.rand(1, 1, 3, 4), "first"), level((1, 2), torch.rand(1, 1, 3, 2), "first")
    alone = level((2, 1), torch.rand(1, 1, 3, 2), "second")

    maps = with_joined_levels([one, two, alone])

    assert [each.layer for each in maps] == ["first, level 0", "first, level 1", "first", "second"]
    assert torch.equal(maps[2].weights, join_levels([one, two]).weights)
    assert maps[3] is alone
