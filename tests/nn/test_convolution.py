"""Folded norms compute what norms do, frozen ones never change, and padding follows its rules."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitrail.nn.convolution import FrozenBatchNorm, NormedConvolution, pad_same


def _settled(layer: NormedConvolution) -> NormedConvolution:
    """Give the norm factors, offsets and statistics that differ from those it starts with."""
    for tensor in (layer.norm.weight, layer.norm.bias, layer.norm.running_mean):
        nn.init.normal_(tensor, mean=0.5)
    nn.init.uniform_(layer.norm.running_var, 0.5, 2.0)
    return layer


def _unfolded(layer: NormedConvolution, x: torch.Tensor) -> torch.Tensor:
    """Compute step by step what a layer does; the input channels of its kernel stand last."""
    kernel, padding = layer.weight.movedim(-1, 1), layer.weight.shape[1] // 2
    x = F.conv2d(x, kernel, stride=layer.stride, padding=padding, groups=layer.groups)
    shape = (-1, 1, 1)
    mean, variance = layer.norm.running_mean.view(shape), layer.norm.running_var.view(shape)
    x = (x - mean) / (variance + layer.norm.eps).sqrt()
    return F.relu(x * layer.norm.weight.view(shape) + layer.norm.bias.view(shape))


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, FrozenBatchNorm])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kernel_size", [1, 3])
@pytest.mark.parametrize("size", [(9, 7), (1, 2)])  # the norm is folded for the larger one only
def test_convolution_and_norm_with_stored_statistics_equal_their_equations(norm, groups, kernel_size, size):
    layer = _settled(NormedConvolution(6, 4, kernel_size, stride=2, groups=groups, norm=norm)).eval()
    images = torch.randn(2, 6, *size)

    expected = _unfolded(layer, images)

    torch.testing.assert_close(layer(images), expected)


def test_in_training_the_norm_uses_and_stores_the_statistics_of_the_batch():
    layer = NormedConvolution(3, 5, 1, activation=None)
    x = layer(torch.randn(4, 3, 7, 6))

    torch.testing.assert_close(x.mean(dim=(0, 2, 3)), torch.zeros(5), rtol=0, atol=1e-5)
    assert layer.norm.num_batches_tracked == 1
    assert not torch.equal(layer.norm.running_var, torch.ones(5))


def test_a_frozen_norm_has_no_parameters_and_keeps_its_statistics_in_training():
    layer = _settled(NormedConvolution(3, 5, 3, norm=FrozenBatchNorm)).train()
    before = {name: value.clone() for name, value in layer.norm.state_dict().items()}
    x = layer(torch.randn(2, 3, 7, 5))

    assert not list(layer.norm.parameters())
    assert sorted(before) == ["bias", "running_mean", "running_var", "weight"]
    assert all(torch.equal(value, before[name]) for name, value in layer.norm.state_dict().items())
    assert x.requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_result_has_the_type_of_the_weights(dtype):
    layer = _settled(NormedConvolution(3, 5, 3)).to(dtype).eval()
    assert layer(torch.randn(2, 3, 7, 5, dtype=dtype)).dtype == dtype


def test_maps_stay_in_channels_last_memory():
    layer = NormedConvolution(3, 5, 3, stride=2, padding="same").eval()
    images = torch.randn(2, 3, 8, 6).contiguous(memory_format=torch.channels_last)
    assert layer(images).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("size", [(7, 5), (8, 6), (1, 2), (9, 4)])
@pytest.mark.parametrize("kernel_size", [3, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_same_padding_gives_one_window_for_each_stride_that_began(size, kernel_size, stride):
    padded = pad_same(torch.ones(1, 1, *size), kernel_size, stride)
    windows = F.avg_pool2d(padded, kernel_size, stride)

    assert windows.shape[-2:] == tuple(-(-length // stride) for length in size)
    for axis in (-2, -1):  # at most one zero more behind than in front
        filled = padded.amax(dim=(0, 1, -3 - axis)).nonzero().flatten()
        front, behind = int(filled[0]), padded.shape[axis] - 1 - int(filled[-1])
        assert behind - front in (0, 1)


def test_same_padding_differs_from_symmetric_padding_only_where_an_even_map_is_halved():
    same, symmetric = (
        NormedConvolution(3, 5, 3, stride=2, padding=padding, activation=None).eval()
        for padding in ("same", "symmetric")
    )
    symmetric.load_state_dict(same.state_dict())
    odd, even = torch.randn(1, 3, 7, 9), torch.randn(1, 3, 8, 6)

    torch.testing.assert_close(same(odd), symmetric(odd))
    assert not torch.allclose(same(even), symmetric(even))


@pytest.mark.parametrize("groups", [1, 6])
def test_kernels_start_with_variance_two_over_what_reads_an_input(groups):
    layer = NormedConvolution(60, 60, 5, groups=groups)
    fan_out = 25 * 60 / groups
    assert layer.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)
