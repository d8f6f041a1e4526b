from __future__ import annotations

import pytest
import torch

from vitrail.core.errors import ConfigError
from vitrail.interpret import record_attention
from vitrail.nn.masks import causal_mask, padding_mask
from vitrail.nn.mixers.pooling import PoolingMixer


def test_a_patch_gets_the_mean_of_its_neighbourhood_minus_itself():
    x = torch.randn(2, 12, 5)
    patches = x.unflatten(1, (3, 4))

    mixed = PoolingMixer()(x, grid=(3, 4)).unflatten(1, (3, 4))

    for row in range(3):
        for column in range(4):
            near = patches[:, max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2]
            torch.testing.assert_close(mixed[:, row, column], near.mean((1, 2)) - patches[:, row, column])


def test_a_token_of_a_sequence_gets_the_mean_of_three_minus_itself():
    x = torch.randn(2, 5, 3)
    mixed = PoolingMixer()(x)
    torch.testing.assert_close(mixed[:, 0], x[:, :2].mean(1) - x[:, 0])
    torch.testing.assert_close(mixed[:, 2], x[:, 1:4].mean(1) - x[:, 2])
    torch.testing.assert_close(mixed[:, 4], x[:, 3:].mean(1) - x[:, 4])


def test_padding_does_not_count_in_a_mean():
    x = torch.randn(1, 6, 3)
    mixed = PoolingMixer()(x, may_attend=padding_mask(torch.tensor([4]), 6))
    torch.testing.assert_close(mixed[:, :4], PoolingMixer()(x[:, :4]))


@pytest.mark.parametrize("grid", [None, (3, 5)])
def test_the_mixing_matrix_times_the_tokens_is_the_output(grid):
    mixer, x = PoolingMixer(), torch.randn(4, 17, 6)
    mask = padding_mask(torch.tensor([17, 3, 12, 2]), 17)

    with record_attention(mixer) as maps:
        mixed = mixer(x, may_attend=mask, grid=grid)

    torch.testing.assert_close(maps[0].weights[:, 0] @ x, mixed)
    assert (maps[0].kind, maps[0].grid, maps[0].num_prefix) == ("mixing", grid, 2 if grid else 0)


def test_a_prefix_token_gets_the_mean_of_all_and_is_seen_by_none():
    x = torch.randn(2, 1 + 12, 5)
    mixed = PoolingMixer()(x, grid=(3, 4))
    torch.testing.assert_close(mixed[:, 0], x.mean(1) - x[:, 0])
    torch.testing.assert_close(mixed[:, 1:], PoolingMixer()(x[:, 1:], grid=(3, 4)))


def test_a_mask_that_differs_by_query_is_refused():
    with pytest.raises(ConfigError, match=r"pooling.*padding mask"):
        PoolingMixer()(torch.randn(2, 5, 4), may_attend=causal_mask(5))
