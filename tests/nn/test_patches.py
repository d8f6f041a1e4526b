from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from vitrail.models.swin import PatchMerging, merge_squares
from vitrail.models.swinv2 import PostNormPatchMerging
from vitrail.nn.convolution import ChannelLayerNorm, widen_to_stride
from vitrail.nn.patches import PatchEmbed, pad_to_multiple, split_patches
from vitrail.nn.stems import ConvStem, PatchMLP
from vitrail.nn.windows import split_windows

PAIRS = st.tuples(st.integers(1, 4), st.integers(1, 4))


@settings(max_examples=25, deadline=None)
@given(grid=PAIRS, size=PAIRS)
def test_joining_undoes_splitting_into_patches(grid, size):
    images = torch.randn(2, 3, grid[0] * size[0], grid[1] * size[1])
    patches = split_patches(images, size)

    assert patches.shape == (2, grid[0] * grid[1], 3 * size[0] * size[1])
    joined = F.fold(patches.mT, images.shape[2:], kernel_size=size, stride=size)
    assert torch.equal(joined, images)


def test_a_patch_holds_its_own_pixels_channel_by_channel():
    images = torch.randn(2, 3, 4, 15)
    patches = split_patches(images, (2, 5))
    assert torch.equal(patches[1, 4], images[1, :, 2:4, 5:10].flatten())


@settings(max_examples=25, deadline=None)
@given(grid=PAIRS, window=PAIRS)
def test_windows_are_the_rectangles_of_the_grid_row_by_row(grid, window):
    size = (grid[0] * window[0], grid[1] * window[1])
    x = torch.randn(2, *size, 3)
    windows = split_windows(x, window)

    assert windows.shape == (2 * grid[0] * grid[1], window[0] * window[1], 3)
    assert torch.equal(windows[-1], x[1, -window[0] :, -window[1] :].flatten(0, 1))
    cut = rearrange(x, "b (r y) (c x) d -> (b r c) (y x) d", y=window[0], x=window[1])
    assert torch.equal(windows, cut)


@settings(max_examples=25, deadline=None)
@given(height=st.integers(1, 9), width=st.integers(1, 9), multiple=PAIRS)
def test_padding_is_the_least_that_fits_and_only_below_and_right(height, width, multiple):
    images = torch.randn(2, 3, height, width)
    padded = pad_to_multiple(images, multiple)

    assert [length % size for length, size in zip(padded.shape[-2:], multiple, strict=True)] == [0, 0]
    assert padded.shape[-2] - height < multiple[0]
    assert padded.shape[-1] - width < multiple[1]
    assert torch.equal(padded[..., :height, :width], images)
    assert padded.count_nonzero() == images.count_nonzero()


def test_patch_embedding_equals_a_convolution():
    embed, images = PatchEmbed(3, 7, patch_size=5), torch.randn(2, 3, 10, 15)
    expected = F.conv2d(images, embed.weight, embed.bias, stride=5)
    torch.testing.assert_close(embed(images), expected, rtol=1e-5, atol=1e-5)


def test_patch_embedding_completes_the_last_patches_with_zeros():
    embed, images = PatchEmbed(3, 7, patch_size=5), torch.randn(2, 3, 11, 13)
    assert torch.equal(embed(images), embed(F.pad(images, (0, 2, 0, 4))))


def test_a_patch_mlp_transforms_each_patch_alone():
    embed, images = PatchMLP(3, 7, patch_size=5), torch.randn(2, 3, 11, 13)
    patch = F.pad(images, (0, 2, 0, 4))[:, :, 5:10, 10:15]
    hidden = F.gelu(embed.hidden.weight.flatten(1) @ patch.flatten(1).T + embed.hidden.bias[:, None])
    expected = embed.projection.weight @ hidden + embed.projection.bias[:, None]
    torch.testing.assert_close(embed(images)[:, :, 1, 2], expected.T, rtol=1e-5, atol=1e-5)
    assert embed(images).is_contiguous(memory_format=torch.channels_last)


def test_channel_layer_norm_normalises_each_pixel():
    x = ChannelLayerNorm(7)(torch.randn(2, 7, 3, 5))
    torch.testing.assert_close(x.mean(dim=1), torch.zeros(2, 3, 5), rtol=0, atol=1e-6)
    torch.testing.assert_close(x.square().mean(dim=1), torch.ones(2, 3, 5), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "norm", [ChannelLayerNorm, nn.BatchNorm2d, lambda channels: nn.GroupNorm(1, channels)]
)
@pytest.mark.parametrize("strides", [(), (1, 2), (2, 2), (2, 1, 3)])
def test_a_convolutional_stem_makes_one_token_for_each_patch(norm, strides):
    stem = ConvStem(3, 7, patch_size=12, channels=(5, 4, 6)[: len(strides)], strides=strides, norm=norm)
    assert stem(torch.randn(2, 3, 25, 36)).shape == (2, 7, 3, 3)
    assert sum(isinstance(layer, nn.Conv2d) for layer in stem.modules()) == len(strides)


@pytest.mark.parametrize(("size", "stride", "kernel_size"), [((3, 1), 2, 3), ((2, 3), 4, 7), ((1, 1), 3, 5)])
def test_a_widened_map_has_the_same_convolution(size, stride, kernel_size):
    x, kernel = torch.randn(2, 4, *size), torch.randn(6, 4, kernel_size, kernel_size)
    convolve = partial(F.conv2d, weight=kernel, stride=stride, padding=kernel_size // 2)
    widened = widen_to_stride(x, stride)

    assert widened.shape == (2, 4, size[0], stride)
    torch.testing.assert_close(convolve(widened), convolve(x))
    assert widen_to_stride(widened, stride) is widened


def test_the_bfloat16_gradient_of_a_strided_kernel_is_right_over_a_map_of_one_column():
    torch.manual_seed(0)
    x, kernel = torch.randn(16, 64, 3, 1), torch.randn(128, 64, 3, 3)
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        weight = kernel.to(dtype).clone().requires_grad_()
        # what is freed here is what an unset gradient would hold
        rubbish = [torch.full(kernel.shape, 1e30, dtype=dtype) for _ in range(3)]
        del rubbish
        F.conv2d(widen_to_stride(x.to(dtype), 2), weight, stride=2, padding=1).sum().backward()
        gradients.append(weight.grad.float())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0.05, atol=0.1)  # sums in 8 bits


def test_merged_patches_are_those_of_a_square_column_by_column():
    x = torch.arange(2 * 4 * 6 * 3.0).reshape(2, 4, 6, 3)
    merged = merge_squares(x)
    assert merged.shape == (2, 2, 3, 12)
    expected = torch.cat((x[1, 2, 4], x[1, 3, 4], x[1, 2, 5], x[1, 3, 5]))
    assert torch.equal(merged[1, 1, 2], expected)


def test_odd_maps_are_completed_with_zeros():
    merged = merge_squares(torch.ones(1, 3, 5, 1))
    assert merged.shape == (1, 2, 3, 4)
    assert merged[0, -1, -1].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert merged.sum() == 15


@pytest.mark.parametrize(("merging", "norm_first"), [(PatchMerging, True), (PostNormPatchMerging, False)])
def test_the_norm_stands_before_or_after_the_projection(merging, norm_first):
    layer, x = merging(3, 5), torch.randn(2, 3, 4, 6)
    torch.nn.init.normal_(layer.norm.weight)
    merged = merge_squares(x.movedim(1, -1))
    expected = layer.reduction(layer.norm(merged)) if norm_first else layer.norm(layer.reduction(merged))
    out = layer(x)
    assert torch.equal(out.movedim(1, -1), expected)
    assert out.is_contiguous(memory_format=torch.channels_last)
