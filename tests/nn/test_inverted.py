"""Inverted residual blocks, and their attention over channels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vitrail.nn.inverted import InvertedResidual, SqueezeExcite


def _block(in_channels: int, out_channels: int, *, expansion: int = 3, stride: int = 1) -> InvertedResidual:
    return InvertedResidual(
        in_channels,
        out_channels,
        expansion=expansion,
        kernel_size=5,
        stride=stride,
        norm=nn.BatchNorm2d,
        padding="same",
    )


def test_squeeze_and_excitation_multiplies_each_channel_by_one_factor_below_one():
    layer, x = SqueezeExcite(6, 2), torch.rand(2, 6, 5, 3) + 0.5
    factors = layer(x) / x

    assert factors.flatten(2).std(dim=-1).max() < 1e-6
    assert factors.min() > 0
    assert factors.max() < 1


def test_squeeze_and_excitation_gives_the_same_with_and_without_gradients():
    layer, x = SqueezeExcite(6, 2), torch.randn(2, 6, 5, 3)
    expected = layer(x)
    with torch.no_grad():
        assert torch.equal(layer(x.clone()), expected)


@pytest.mark.parametrize("expansion", [1, 3])
@pytest.mark.parametrize(("out_channels", "stride"), [(8, 1), (8, 2), (12, 1)])
def test_the_input_is_added_where_it_fits_and_left_alone(expansion, out_channels, stride):
    block = _block(8, out_channels, expansion=expansion, stride=stride).eval()
    nn.init.zeros_(block.narrow.norm.weight)
    x = torch.randn(2, 8, 7, 5)
    kept = x.clone()

    with torch.no_grad():
        result = block(x)

    fits = out_channels == 8 and stride == 1
    assert torch.equal(result, x if fits else torch.zeros_like(result))
    assert torch.equal(x, kept)
    assert result.shape == (2, out_channels, -(-7 // stride), -(-5 // stride))


def test_the_hidden_layer_is_a_quarter_of_the_input_not_of_the_inside():
    assert _block(12, 8).squeeze.reduce.weight.shape == (3, 36)
