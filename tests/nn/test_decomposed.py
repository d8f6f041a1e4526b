from __future__ import annotations

import pytest
import torch

from vitrail.nn.pooling_attention import DecomposedRelativePositions, relative_steps, resize_axis_table


@pytest.fixture
def positions() -> DecomposedRelativePositions:
    positions = DecomposedRelativePositions((4, 6), 5)
    for table in positions.parameters():
        torch.nn.init.normal_(table)
    return positions


@pytest.mark.parametrize("num_queries", [1, 2, 5, 9, 28])
def test_steps_are_the_scaled_distances_of_the_published_code(num_queries):
    for num_keys in range(1, 30):
        steps = relative_steps(num_queries, num_keys)
        assert torch.equal(steps, _published_steps(num_queries, num_keys)), num_keys
        assert steps.min() >= 0
        assert steps.max() < 2 * max(num_queries, num_keys) - 1


def _published_steps(num_queries: int, num_keys: int) -> torch.Tensor:
    """Scale positions by floats, as the published code does, but in float64."""
    query_scale = torch.tensor(max(num_keys / num_queries, 1.0), dtype=torch.float64)
    key_scale = torch.tensor(max(num_queries / num_keys, 1.0), dtype=torch.float64)
    distances = torch.arange(num_queries)[:, None] * query_scale - torch.arange(num_keys) * key_scale
    expected = distances + (num_keys - 1) * key_scale
    # a product may stand a hair below the whole number that it is
    return (expected + 1e-9).floor().long()


@pytest.mark.parametrize(("query_grid", "key_grid"), [((4, 6), (2, 3)), ((4, 6), (4, 6)), ((2, 3), (4, 6))])
def test_the_bias_is_the_sum_of_one_product_for_each_axis(positions, query_grid, key_grid):
    query = torch.randn(2, 3, query_grid[0] * query_grid[1], 5)
    bias = positions(query, query_grid=query_grid, key_grid=key_grid)

    assert bias.shape == (2, 3, query.shape[2], key_grid[0] * key_grid[1])
    rows, columns = relative_steps(query_grid[0], key_grid[0]), relative_steps(query_grid[1], key_grid[1])
    for of_query in range(query.shape[2]):
        for of_key in range(bias.shape[3]):
            i, j = divmod(of_query, query_grid[1])
            k, m = divmod(of_key, key_grid[1])
            vector = positions.by_row[rows[i, k]] + positions.by_column[columns[j, m]]
            torch.testing.assert_close(bias[:, :, of_query, of_key], query[:, :, of_query] @ vector)


def test_equal_queries_get_biases_that_depend_on_the_distance_alone(positions):
    query = torch.randn(1, 1, 1, 5).expand(1, 1, 24, 5)
    bias = positions(query, query_grid=(4, 6), key_grid=(4, 6)).reshape(4, 6, 4, 6)
    torch.testing.assert_close(bias[1:, 1:, 1:, 1:], bias[:-1, :-1, :-1, :-1])


def test_all_but_the_farthest_vectors_get_gradients(positions):
    query = torch.randn(2, 3, 24, 5)
    bias = positions(query, query_grid=(4, 6), key_grid=(2, 3))
    bias.square().sum().backward()
    # the finer axis has 2 * 4 - 1 positions, of which every second key reaches all but the last
    assert (positions.by_row.grad.abs().sum(1) > 0).tolist() == [True] * 6 + [False]


def test_a_table_that_fits_is_not_touched(positions):
    assert resize_axis_table(positions.by_row, 7) is positions.by_row


def test_resizing_keeps_distance_zero_and_a_straight_line():
    line = torch.arange(-3.0, 4.0)[:, None]
    resized = resize_axis_table(line, 13)
    assert abs(resized[6].item()) < 1e-6  # weights of float32 do not sum to one exactly
    torch.testing.assert_close(resized, -resized.flip(0))
    steps = resized[2:-2].diff(dim=0)  # the ends repeat their last value
    torch.testing.assert_close(steps, torch.full_like(steps, 7 / 13))


def test_any_two_grids_are_taken(positions):
    query = torch.randn(1, 2, 35, 5)
    assert positions(query, query_grid=(5, 7), key_grid=(2, 9)).shape == (1, 2, 35, 18)
