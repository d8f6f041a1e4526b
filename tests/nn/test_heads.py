from __future__ import annotations

import pytest
import torch
from torch import nn

from vitrail.nn.heads import DistilledHead, FlattenPool, MeanPool, MLPHead, PrefixPool


def test_a_prefix_pool_reads_the_class_token_or_the_first_few():
    x = torch.randn(2, 7, 3)
    assert torch.equal(PrefixPool()(x, grid=(2, 3)), x[:, 0])
    assert torch.equal(PrefixPool(2)(x, grid=(1, 5)), x[:, :2])


def test_a_mean_pool_leaves_the_prefix_out():
    x = torch.randn(2, 7, 3)
    torch.testing.assert_close(MeanPool(num_prefix=1)(x, grid=(2, 3)), x[:, 1:].sum(1) / 6)


def test_a_flatten_pool_puts_the_patches_of_its_own_grid_side_by_side():
    x = torch.randn(2, 7, 3)
    pooled = FlattenPool((2, 3), num_prefix=1)(x, grid=(2, 3))
    assert torch.equal(pooled, x[:, 1:].reshape(2, 18))


def test_a_flatten_pool_keeps_the_places_of_another_grid():
    rows, columns = torch.meshgrid(torch.arange(8.0), torch.arange(12.0), indexing="ij")
    patches = torch.stack((rows, columns), dim=-1).flatten(0, 1)[None]  # 1 96 2

    pooled = FlattenPool((2, 3))(patches, grid=(8, 12)).unflatten(1, (2, 3, 2))[0]

    # The centres of a 2 x 3 grid's patches; at the border the filter is cut, and its mean moves inwards.
    torch.testing.assert_close(pooled[:, 1, 1], torch.tensor([5.5] * 2))
    assert pooled[0, 0].tolist() == pytest.approx([1.5, 1.5], abs=0.5)
    assert pooled[1, 2].tolist() == pytest.approx([5.5, 9.5], abs=0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_flatten_pool_keeps_type_and_constants_at_another_grid(dtype):
    x = torch.tensor([2.0, -3.0, 0.5], dtype=dtype).expand(2, 5 * 7, 3)
    pooled = FlattenPool((2, 3))(x, grid=(5, 7))
    assert pooled.dtype == dtype
    torch.testing.assert_close(pooled.unflatten(1, (6, 3)), x[:, :6])


def test_an_mlp_head_has_one_hidden_layer():
    head, x = MLPHead(3, 7, 5), torch.randn(2, 3)
    expected = nn.Sequential(head.expand, nn.Tanh(), head.contract)(x)
    assert torch.equal(head(x), expected)
    assert expected.shape == (2, 5)


def test_a_distilled_head_averages_two_layers():
    head, x = DistilledHead(3, 5), torch.randn(2, 2, 3)
    torch.testing.assert_close(head(x), head.label(x[:, 0]) / 2 + head.teacher(x[:, 1]) / 2)
