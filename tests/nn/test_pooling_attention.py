from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.interpret import record_attention
from vitrail.nn.blocks import MLP
from vitrail.nn.pooling_attention import (
    DecomposedRelativePositions,
    HeadPool,
    MaxHeadPool,
    PoolingAttention,
    PoolingBlock,
    PrefixPoolingAttention,
    relative_steps,
    resize_axis_table,
)


def _attention(dim: int = 6, out_dim: int = 10, *, query_stride: int = 2, key_stride: int = 3) -> nn.Module:
    attention = PoolingAttention(
        dim,
        out_dim,
        2,
        positions=DecomposedRelativePositions((3, 4), out_dim // 2),
        query_stride=query_stride,
        key_stride=key_stride,
    )
    for parameter in attention.parameters():
        nn.init.normal_(parameter, std=0.5)
    return attention


@pytest.fixture
def x() -> Tensor:
    return torch.randn(3, 5, 7, 6)


def test_each_head_is_pooled_by_the_same_convolution_and_normalised():
    pool = HeadPool(3, 4, stride=2)
    nn.init.normal_(pool.norm.weight)
    x = torch.randn(2, 5, 7, 12)
    pooled = pool(x)

    assert pooled.shape == (2, 3, 4, 3, 4)
    convolution = nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=4, bias=False)
    convolution.weight = pool.weight
    for head in range(3):
        part = convolution(x[..., 4 * head : 4 * head + 4].permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        torch.testing.assert_close(pooled[..., head, :], pool.norm(part), rtol=1e-5, atol=1e-5)


def test_maxima_are_those_of_each_channels_neighbours():
    x = torch.randn(2, 5, 7, 12)
    pooled = MaxHeadPool(3, 4, stride=2)(x)
    assert pooled.shape == (2, 3, 4, 3, 4)
    for row, column in ((0, 0), (1, 2), (2, 3)):
        near = x[:, max(2 * row - 1, 0) : 2 * row + 2, max(2 * column - 1, 0) : 2 * column + 2]
        assert torch.equal(pooled[:, row, column].flatten(1), near.amax(dim=(1, 2)))


def test_the_result_is_the_recorded_weights_times_the_values_plus_the_queries(x):
    attention = _attention()
    with record_attention(attention) as maps:
        out = attention(x)

    (recorded,) = maps
    assert (recorded.query_grid, recorded.grid) == ((3, 4), (2, 3))
    query, _, value = (
        pool(part).flatten(1, 2).transpose(1, 2)
        for pool, part in zip(
            (attention.query_pool, attention.key_pool, attention.value_pool),
            attention.qkv(x).chunk(3, dim=-1),
            strict=True,
        )
    )
    mixed = recorded.weights @ value + query
    expected = attention.projection(mixed.transpose(1, 2).flatten(2)).reshape(3, 3, 4, 10)
    assert out.shape == expected.shape
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)  # other order of sums


def test_scores_are_scaled_but_the_bias_is_not(x):
    attention = _attention(query_stride=1, key_stride=1)
    with torch.no_grad():
        attention.key_pool.norm.weight.zero_()
        attention.key_pool.norm.bias.zero_()
    with record_attention(attention) as maps:
        attention(x)
    query = attention.query_pool(attention.qkv(x)[..., :10]).flatten(1, 2).transpose(1, 2)
    bias = attention.positions(query, query_grid=(5, 7), key_grid=(5, 7))
    torch.testing.assert_close(maps[0].weights, bias.softmax(-1), rtol=1e-4, atol=1e-6)


def _block(dim: int, hidden_dim: int, out_dim: int, *, stride: int) -> PoolingBlock:
    return PoolingBlock(
        dim,
        hidden_dim,
        out_dim,
        attention=_attention(dim, hidden_dim, query_stride=stride),
        mlp=MLP(hidden_dim, 7, out_dim=out_dim),
        norm=partial(nn.LayerNorm, eps=1e-6),
        stride=stride,
    )


def test_a_block_without_branches_takes_maxima_of_what_it_is_given():
    block = _block(6, 6, 6, stride=2)
    for layer in (block.mixer.projection, block.mlp.contract):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    x = torch.randn(2, 6, 5, 7)
    assert torch.equal(block(x), F.max_pool2d(x, 3, stride=2, padding=1))


@pytest.mark.parametrize(("widths", "widened"), [((6, 10, 10), "mixer"), ((6, 6, 10), "mlp")])
def test_a_skip_projects_the_normalised_tokens_where_the_branch_widens_them(widths, widened):
    block, x = _block(*widths, stride=1), torch.randn(2, 6, 5, 7)
    assert block(x).shape == (2, 10, 5, 7)
    assert (block.mixer_skip is not None) == (widened == "mixer")
    assert (block.mlp_skip is not None) == (widened == "mlp")

    patches = x.permute(0, 2, 3, 1)
    normed = block.mixer_norm(patches)
    patches = (block.mixer_skip(normed) if widened == "mixer" else patches) + block.mixer(normed)
    normed = block.mlp_norm(patches)
    patches = (block.mlp_skip(normed) if widened == "mlp" else patches) + block.mlp(normed)
    torch.testing.assert_close(block(x), patches.permute(0, 3, 1, 2))


def test_maps_stay_in_channels_last_memory():
    x = torch.randn(2, 6, 5, 7).contiguous(memory_format=torch.channels_last)
    assert _block(6, 10, 10, stride=2)(x).is_contiguous(memory_format=torch.channels_last)


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


@pytest.mark.parametrize("query_stride", [1, 2])
def test_prefix_tokens_are_normalised_but_not_pooled(query_stride):
    attention = PrefixPoolingAttention(6, 2, query_stride=query_stride, key_stride=3)
    for parameter in attention.parameters():
        nn.init.normal_(parameter, std=0.5)
    x = torch.randn(3, 2 + 5 * 7, 6)
    with record_attention(attention, keep_qkv=True) as maps:
        out, grid = attention(x, grid=(5, 7))

    (recorded,) = maps
    assert grid == recorded.query_grid == ((3, 4) if query_stride == 2 else (5, 7))
    assert (recorded.grid, recorded.num_prefix) == ((2, 3), 2)
    query, key, value = attention.qkv(x).unflatten(-1, (3, 2, 3)).permute(2, 0, 3, 1, 4)  # b h n d
    steps = recorded.steps
    assert torch.equal(steps.x, x)
    for part, pool, found in (
        (query, attention.query_pool, steps.query),
        (key, attention.key_pool, steps.key),
        (value, attention.value_pool, steps.value),
    ):
        if pool is None:
            assert torch.equal(found, part)
            continue
        image = part[:, :, 2:].transpose(2, 3).reshape(6, 3, 5, 7)  # each head by itself
        pooled = F.conv2d(image, pool.weight, stride=pool.stride, padding=1, groups=3)
        pooled = pooled.flatten(2).transpose(1, 2).unflatten(0, (3, 2))
        expected = pool.norm(torch.cat((part[:, :, :2], pooled), dim=2))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(recorded.weights, (steps.query @ steps.key.mT / 3**0.5).softmax(-1))
    expected = attention.projection((recorded.weights @ steps.value).transpose(1, 2).flatten(2))
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
