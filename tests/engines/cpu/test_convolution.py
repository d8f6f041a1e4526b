"""Folded norms and fused operations compute what the plain layers do."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitrail.engines.cpu import accelerate, settle_norms
from vitrail.engines.cpu.convolution import norm_as_affine
from vitrail.engines.cpu.elementwise import silu
from vitrail.nn.convolution import FrozenBatchNorm, NormedConvolution

TOLERANCES = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
    torch.bfloat16: {"rtol": 0.05, "atol": 0.1},  # of kernels and maps of three digits
}


def _settled(layer: NormedConvolution) -> NormedConvolution:
    """Give the norm factors, offsets and statistics that differ from those it starts with."""
    for tensor in (layer.norm.weight, layer.norm.bias, layer.norm.running_mean):
        nn.init.normal_(tensor, mean=0.5)
    nn.init.uniform_(layer.norm.running_var, 0.5, 2.0)
    return accelerate(layer)


def _unfolded(layer: NormedConvolution, x: torch.Tensor) -> torch.Tensor:
    """Compute step by step what a layer does; the input channels of its kernel stand last."""
    kernel, padding = layer.weight.movedim(-1, 1), layer.weight.shape[1] // 2
    x = F.conv2d(x, kernel, stride=layer.stride, padding=padding, groups=layer.groups)
    shape = (-1, 1, 1)
    mean, variance = layer.norm.running_mean.view(shape), layer.norm.running_var.view(shape)
    x = (x - mean) / (variance + layer.norm.eps).sqrt()
    return F.relu(x * layer.norm.weight.view(shape) + layer.norm.bias.view(shape))


@pytest.mark.parametrize(
    ("kernel_size", "options"),
    [
        (1, {}),
        (3, {"stride": 2}),
        (3, {"dilation": 2}),
        (3, {"groups": 2}),
        (3, {"stride": 2, "padding": "same"}),
    ],
)
@pytest.mark.parametrize("size", [(9, 7), (1, 1)])
def test_without_gradients_the_fused_operation_computes_the_same(kernel_size, options, size):
    layer = _settled(NormedConvolution(6, 4, kernel_size, norm=FrozenBatchNorm, **options))
    images = torch.randn(2, 6, *size).contiguous(memory_format=torch.channels_last)
    kept = images.clone()

    expected = layer(images)
    with torch.no_grad():
        torch.testing.assert_close(layer(images), expected)
        with torch.autocast("cpu", torch.bfloat16):
            narrow = layer(images)
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow.float(), expected, rtol=0.03, atol=0.03)  # 8 bits of mantissa
    assert torch.equal(images, kept)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_sum_is_rectified_alike_with_and_without_gradients(dtype):
    layer = _settled(NormedConvolution(6, 4, 3, norm=FrozenBatchNorm, activation=None)).to(dtype)
    images, residual = torch.randn(2, 6, 9, 7).to(dtype), torch.randn(2, 4, 9, 7).to(dtype)
    kept = residual.clone()

    expected = F.relu(layer(images) + residual)
    with torch.no_grad():
        tolerance = {"rtol": 0.02, "atol": 0.02} if dtype == torch.bfloat16 else {}
        torch.testing.assert_close(layer.add_rectified(images, residual), expected, **tolerance)
    assert torch.equal(layer.add_rectified(images, residual), expected)
    assert torch.equal(residual, kept)


def test_gradients_through_the_folded_norm_equal_those_through_the_norm():
    layer = _settled(NormedConvolution(3, 5, 3)).double().eval()
    images = torch.randn(2, 3, 7, 5).double()

    folded = torch.autograd.grad(layer(images).square().sum(), list(layer.parameters()))
    expected = torch.autograd.grad(_unfolded(layer, images).square().sum(), list(layer.parameters()))

    for gradient, wanted in zip(folded, expected, strict=True):
        torch.testing.assert_close(gradient, wanted)


def test_the_norm_is_folded_where_the_kernel_is_small_beside_the_map():
    layer, called = accelerate(NormedConvolution(6, 4, 3)).eval(), []
    layer.norm.register_forward_hook(lambda *_: called.append(True))

    layer(torch.randn(2, 6, 4, 4))  # 54 values of a kernel, 16 positions of a map
    assert not called
    layer(torch.randn(2, 6, 3, 4))
    assert called


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, FrozenBatchNorm])
@pytest.mark.parametrize("size", [(9, 7), (1, 2)])  # the norm is else folded for the larger one only
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_settled_norm_computes_the_same(norm, size, dtype):
    layer = _settled(NormedConvolution(6, 4, 3, norm=norm)).eval().to(dtype)
    images = torch.randn(2, 6, *size, dtype=dtype)
    expected = _unfolded(layer.float(), images.float())
    layer.to(dtype)

    settle_norms(nn.Sequential(layer))

    for mode in (torch.enable_grad, torch.inference_mode):
        with mode():
            result = layer(images)
        torch.testing.assert_close(result.float(), expected, **TOLERANCES[dtype])


def test_a_settled_norm_is_no_part_of_what_is_saved_and_forgotten_in_training():
    layer = _settled(NormedConvolution(6, 4, 3, norm=FrozenBatchNorm)).eval()
    images, names = torch.randn(2, 6, 9, 7), list(layer.state_dict())
    before = layer(images)
    layer.settle()
    with torch.no_grad():
        layer.weight.mul_(2)

    settled, learning = layer(images), layer.train()(images)

    assert list(layer.state_dict()) == names
    torch.testing.assert_close(settled, before)
    torch.testing.assert_close(learning, _unfolded(layer, images), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer.eval()(images), learning)


def test_the_affine_form_is_wide_even_of_a_narrow_norm():
    norm = nn.BatchNorm2d(5).bfloat16()
    assert [each.dtype for each in norm_as_affine(norm)] == [torch.float32, torch.float32]
    assert norm_as_affine(nn.BatchNorm2d(5).double())[0].dtype == torch.float64


def test_silu_overwrites_its_argument_only_where_no_gradient_is_asked_for():
    x = torch.randn(3, 5)
    kept = x.clone()

    assert torch.equal(silu(x), F.silu(kept))
    assert torch.equal(x, kept)
    with torch.no_grad():
        assert silu(x) is x
    assert torch.equal(x, F.silu(kept))
