"""BiT: published sizes and stages."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from vitrail.models.bit import (
    GroupNormReLU,
    PreActivationBottleneck,
    StandardisedStem,
)
from vitrail.nn.convolution import StandardisedConvolution


def test_the_kernel_of_each_output_channel_has_mean_zero_and_variance_one():
    layer = StandardisedConvolution(3, 5, 3)
    x = torch.randn(2, 3, 7, 6)
    variance, mean = torch.var_mean(layer.weight, dim=(1, 2, 3), correction=0, keepdim=True)

    kernel = ((layer.weight - mean) / variance.sqrt()).movedim(-1, 1)
    expected = F.conv2d(x, kernel, padding=1)

    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)


def test_scale_and_offset_of_a_kernel_change_nothing():
    layer, x = StandardisedConvolution(3, 5, 3, stride=2), torch.randn(2, 3, 7, 6)
    before = layer(x)
    with torch.no_grad():
        layer.weight.mul_(3.0).add_(0.7)

    torch.testing.assert_close(layer(x), before, rtol=1e-4, atol=1e-4)


def test_the_group_norm_is_of_each_image_alone():
    layer, x = GroupNormReLU(64), torch.randn(3, 64, 5, 4)
    torch.testing.assert_close(layer(x)[1:2], layer(x[1:2]))
    assert layer(x).min() == 0


def test_a_block_without_projection_adds_its_branch_to_its_input():
    block, x = PreActivationBottleneck(128, 128), torch.randn(2, 128, 5, 3)
    kept = x.clone()
    nn.init.zeros_(block.branch[-2].norm.weight)  # then the last convolution reads zeros

    with torch.no_grad():
        assert torch.equal(block(x), kept)
    assert torch.equal(x, kept)


def test_a_projecting_block_changes_channels_and_size():
    block = PreActivationBottleneck(32, 128, stride=2, projects=True)
    assert block(torch.randn(2, 32, 7, 5)).shape == (2, 128, 4, 3)


def test_the_stem_takes_the_maximum_over_zeros_at_the_borders():
    stem, images = StandardisedStem(3, 32), torch.randn(5, 3, 17, 26)
    padded_by_nothing = F.max_pool2d(stem.first(images), kernel_size=3, stride=2, padding=1)
    x = stem(images)

    assert x.shape == (5, 32, 5, 7)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(x[..., 1:-1, 1:-1], padded_by_nothing[..., 1:-1, 1:-1])
    for border in ((..., 0, slice(None)), (..., -1, slice(None)), (..., 0), (..., -1)):
        assert torch.equal(x[border], padded_by_nothing[border].relu())
    assert (padded_by_nothing < 0).any()
