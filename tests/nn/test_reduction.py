"""Fewer patches of many, and attention to them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from vitrail.interpret import record_attention
from vitrail.nn.reduction import PooledReduction, ReducedAttention, StridedReduction


def _attention(*, ratio: int = 2) -> ReducedAttention:
    torch.manual_seed(0)
    return ReducedAttention(6, 3, reduction=StridedReduction(6, 6, ratio=ratio)).eval()


def test_a_strided_reduction_projects_each_square():
    torch.manual_seed(0)
    reduction, x = StridedReduction(3, 5, ratio=2), torch.randn(2, 3, 4, 6)
    weight, bias = reduction.convolution.weight, reduction.convolution.bias
    reduced = reduction(x)

    assert reduced.shape == (2, 5, 2, 3)
    square = x[1, :, 2:4, 4:6].flatten()
    expected = F.layer_norm(weight.flatten(1) @ square + bias, (5,), eps=1e-5)
    torch.testing.assert_close(reduced[1, :, 1, 2], expected)


def test_a_strided_reduction_completes_squares_with_zeros():
    reduction, x = StridedReduction(3, 5, ratio=4), torch.randn(2, 3, 3, 5)
    assert reduction(x).shape == (2, 5, 1, 2)
    assert torch.equal(reduction(x), reduction(F.pad(x, (0, 3, 0, 1))))


def test_a_pooled_reduction_averages_then_transforms_each_patch():
    torch.manual_seed(0)
    reduction, x = PooledReduction(3, size=2), torch.randn(2, 3, 4, 6)
    mean = x[1, :, 2:, :3].mean(dim=(-2, -1))
    torch.testing.assert_close(reduction(x)[1, :, 1, 0], F.gelu(reduction.norm(reduction.projection(mean))))


@pytest.mark.parametrize("grid", [(1, 1), (2, 3), (7, 5), (9, 11)])
def test_a_pooled_reduction_has_its_size_whatever_the_map(grid):
    assert PooledReduction(3, size=4)(torch.randn(2, 3, *grid)).shape == (2, 3, 4, 4)


def test_attention_to_reduced_patches_follows_the_equation():
    attention, x, grid = _attention(), torch.randn(2, 20, 6), (4, 5)
    keys = attention.reduction(x.transpose(1, 2).reshape(2, 6, 4, 5)).flatten(2).transpose(1, 2)  # b 6 d
    query, (key, value) = attention.query(x), attention.key_value(keys).chunk(2, dim=-1)
    heads = []
    for head in range(3):
        part = slice(2 * head, 2 * head + 2)
        scores = query[..., part] @ key[..., part].transpose(1, 2) / 2**0.5
        heads.append(scores.softmax(dim=-1) @ value[..., part])
    expected = attention.projection(torch.cat(heads, dim=-1))

    torch.testing.assert_close(attention(x, grid=grid), expected)


def test_a_ratio_of_one_sees_every_patch():
    attention, x = _attention(ratio=1), torch.randn(1, 6, 6)
    with record_attention(attention) as maps:
        attention(x, grid=(2, 3))
    assert maps[0].grid == maps[0].query_grid == (2, 3)


def test_recorded_rows_are_those_of_the_whole_map():
    attention, x = _attention(), torch.randn(2, 35, 6)
    with torch.no_grad(), record_attention(attention) as whole:
        attention(x, grid=(5, 7))
    with torch.no_grad(), record_attention(attention, queries=[0, 34]) as rows:
        attention(x, grid=(5, 7))

    assert whole[0].weights.shape == (2, 3, 35, 12)
    assert (whole[0].query_grid, whole[0].grid) == ((5, 7), (3, 4))
    torch.testing.assert_close(rows[0].weights, whole[0].weights[:, :, [0, 34]])
