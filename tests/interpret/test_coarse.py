from __future__ import annotations

import torch

from vitrail.interpret import AttentionMap
from vitrail.interpret.grids import coarsen


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
    cells = recorded.weights[:, :, 1:, 1:].reshape(2, 3, 4, 6, 5, 3)
    expected = cells[:, :, 2:4, 4:6, 2:4, 2:].sum((-2, -1)).mean((-2, -1))  # a square that is not full
    torch.testing.assert_close(coarse.weights[:, :, 6, 4], expected)
    torch.testing.assert_close(coarse.weights[:, :, 0, 0], recorded.weights[:, :, 0, 0])


def test_rows_still_sum_to_one():
    coarse = coarsen(_map((7, 5), (6, 7), num_prefix=2), 4)
    torch.testing.assert_close(coarse.weights.sum(-1), torch.ones(coarse.weights.shape[:-1]))


def test_queries_that_are_no_images_stay():
    recorded = _map((1, 7), (6, 4))._replace(query_grid=None, kind="cross")
    coarse = coarsen(recorded, 3)

    assert (coarse.query_grid, coarse.grid) == (None, (3, 2))
    expected = recorded.weights.reshape(2, 3, 7, 3, 2, 2, 2).sum((-3, -1)).flatten(-2)
    torch.testing.assert_close(coarse.weights, expected)
