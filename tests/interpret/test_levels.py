from __future__ import annotations

import torch

from vitrail.interpret import AttentionMap
from vitrail.interpret.grids import join_levels, with_joined_levels


def level(grid: tuple[int, int], weights: torch.Tensor, layer: str = "layer") -> AttentionMap:
    return AttentionMap(layer, weights, "cross", grid, 0)


def test_weights_are_spread_over_the_places_that_their_cells_cover():
    coarse = level((1, 2), torch.tensor([[[[0.3, 0.1]]]]))
    fine = level((2, 3), torch.tensor([[[[0.1, 0.0, 0.2, 0.0, 0.3, 0.0]]]]))

    joined = join_levels([fine, coarse])

    assert joined.grid == (2, 3)
    # Of three columns, the first of two coarse cells covers the first and half of the second.
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
