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


@pytest.mark.parametrize("name", ["efficientnet_b0", "efficientnet_b0_symmetric"])
@pytest.mark.parametrize(
    ("size", "grids"),
    [
        ((32, 64), [(16, 32), (8, 16), (4, 8), (2, 4), (2, 4), (1, 2), (1, 2)]),
        ((37, 53), [(19, 27), (10, 14), (5, 7), (3, 4), (3, 4), (2, 2), (2, 2)]),
        ((1, 2), [(1, 1)] * 7),
    ],
)
def test_each_stage_with_a_stride_halves_its_map_rounded_up(name, size, grids):
    model = build(name, **EFFICIENTNET).eval()
    with torch.no_grad():
        stages = model.features(torch.randn(2, 3, *size))

    assert [tuple(stage.shape[-2:]) for stage in stages] == grids
    assert all(stage.is_contiguous(memory_format=torch.channels_last) for stage in stages)


def test_later_stages_do_not_overwrite_the_maps_of_earlier_ones():
    model, images = build("efficientnet_b0", **EFFICIENTNET).eval(), torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        stages = model.features(images)
        x = model.stem(images)
        for index, stage in enumerate(model.stages):
            x = stage(x)
            assert torch.equal(stages[index], x)


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


def test_drop_path_rises_linearly_and_stays_below_its_setting():
    model = build("efficientnet_b0", **{**EFFICIENTNET, "drop_path": 0.8})
    rates = [block.drop_path.probability for stage in model.stages for block in stage]
    torch.testing.assert_close(torch.tensor(rates), torch.arange(len(rates)) * 0.8 / len(rates))


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
