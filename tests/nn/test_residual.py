"""Residual blocks add what their branch makes to what came in."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitrail.engines.cpu import accelerate
from vitrail.nn.residual import (
    ConvolutionPoolStem,
    ResidualBlock,
    make_basic_branch,
    make_bottleneck_branch,
    make_shortcut,
)


def _block(
    in_channels: int, out_channels: int, stride: int, make_branch, drop_path=0.0, overwrites=False
) -> ResidualBlock:
    norm = nn.BatchNorm2d
    return ResidualBlock(
        branch=make_branch(in_channels, out_channels, stride=stride, dilation=1, norm=norm),
        shortcut=make_shortcut(in_channels, out_channels, stride=stride, norm=norm),
        drop_path=drop_path,
        overwrites=overwrites,
    )


@pytest.mark.parametrize("make_branch", [make_basic_branch, make_bottleneck_branch])
@pytest.mark.parametrize(("out_channels", "stride"), [(8, 1), (8, 2), (12, 1)])
def test_a_block_is_the_activated_sum_and_leaves_its_input_alone(make_branch, out_channels, stride):
    block = _block(8, out_channels, stride, make_branch).eval()
    x = torch.randn(2, 8, 7, 5)
    kept = x.clone()

    with torch.no_grad():
        result = block(x)
        expected = F.relu(block.shortcut(kept) + block.branch(kept))

    torch.testing.assert_close(result, expected)
    assert torch.equal(x, kept)
    assert result.shape == (2, out_channels, -(-7 // stride), -(-5 // stride))


@pytest.mark.parametrize("stride", [1, 2])
def test_a_block_that_may_overwrite_gives_the_same_and_saves_a_map(stride):
    shape, layout = (2, 8, 7, 5), torch.channels_last
    block = _block(8, 8, stride, make_bottleneck_branch, overwrites=True).eval()
    accelerate(block)
    x = torch.randn(shape).contiguous(memory_format=layout)
    expected = block(x)
    kept = x.clone(memory_format=torch.preserve_format)
    with torch.no_grad():
        result = block(x)
    torch.testing.assert_close(result, expected)
    assert (result.data_ptr() == x.data_ptr()) == (stride == 1)
    assert torch.equal(x, kept) == (stride == 2)


@pytest.mark.parametrize("make_branch", [make_basic_branch, make_bottleneck_branch])
def test_a_zeroed_branch_passes_on_what_is_positive(make_branch):
    block = _block(8, 8, 1, make_branch)
    block.zero_branch()
    x = torch.randn(2, 8, 7, 5)
    assert torch.equal(block(x), F.relu(x))


def test_a_dropped_branch_passes_on_what_is_positive():
    torch.manual_seed(3)
    block = _block(8, 8, 1, make_basic_branch, drop_path=0.5)
    x = torch.randn(16, 8, 3, 3)
    passed = [torch.equal(after, F.relu(before)) for before, after in zip(x, block(x), strict=True)]
    assert 0 < sum(passed) < 16


def test_a_dilated_convolution_keeps_the_size_and_reaches_twice_as_far():
    branch = make_bottleneck_branch(8, 8, stride=1, dilation=2, norm=nn.BatchNorm2d).eval()
    x = torch.zeros(1, 8, 9, 9)
    x[..., 4, 4] = 9.0
    change = (branch(x) - branch(torch.zeros_like(x))).abs().sum(dim=(0, 1))

    assert change.shape == (9, 9)
    rows = change.sum(dim=1).nonzero().flatten().tolist()
    assert rows == [2, 4, 6]


def test_the_stem_makes_a_quarter_of_the_size_in_channels_last_memory():
    stem = ConvolutionPoolStem(3, 6, norm=nn.BatchNorm2d)
    x = stem(torch.randn(2, 3, 37, 54))
    assert x.shape == (2, 6, 10, 14)
    assert x.is_contiguous(memory_format=torch.channels_last)
