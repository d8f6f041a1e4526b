"""EfficientNet: published sizes, scaling, stages and paddings."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from making.small_models import EFFICIENTNET
from vitrail.models import MODELS, build
from vitrail.models.efficientnet import InvertedResidual, SqueezeExcite


def test_rounding_never_loses_more_than_a_tenth_of_the_channels():
    config = MODELS["efficientnet_b0"].with_changes({"width_factor": 1.1})
    for of_b0 in range(1, 200):
        channels = config.channels(of_b0)
        assert channels % 8 == 0
        assert channels >= 0.9 * 1.1 * of_b0
        assert channels <= max(8, 1.1 * of_b0 + 8)


def test_outputs_are_the_same_with_and_without_gradients():
    model, images = build("efficientnet_b0", **EFFICIENTNET).eval(), torch.randn(2, 3, 32, 40)
    expected = model(images)
    with torch.no_grad():
        assert torch.equal(model(images), expected)


def test_the_two_paddings_are_two_functions_of_the_same_weights():
    same, symmetric = (
        build(name, **EFFICIENTNET, norm_eps=1e-3).eval()
        for name in ("efficientnet_b0", "efficientnet_b0_symmetric")
    )
    symmetric.load_state_dict(same.state_dict())
    images = torch.randn(2, 3, 32, 32)
    assert not torch.allclose(same(images), symmetric(images))


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
