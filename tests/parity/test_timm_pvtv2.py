"""PVTv2 computes what timm's does from the same weights, forward and backward."""

from __future__ import annotations

import pytest
import timm
import torch
from timm.models.pvt_v2 import PyramidVisionTransformerV2
from torch import nn

from making.published_tables import key_table, published_names
from making.random_weights import randomise
from vitrail.models import MODELS
from vitrail.models.pvtv2 import PVTv2Config
from vitrail.models.weights.table import to_ours, to_theirs

entries = key_table("timm", "pvtv2")
NAMES = published_names("timm", "pvtv2")

TOLERANCE = 1e-4  # of logits of a scale of about one, in float32
SHRUNKEN = {"widths": (8, 12, 15, 16), "num_heads": (1, 2, 3, 4), "num_classes": 7, "image_size": (64, 64)}


def _shrunken(name: str) -> tuple[PVTv2Config, nn.Module]:
    config = MODELS[name].with_changes(SHRUNKEN)
    torch.manual_seed(7)
    reference = PyramidVisionTransformerV2(
        num_classes=config.num_classes,
        depths=config.depths,
        embed_dims=config.widths,
        num_heads=config.num_heads,
        sr_ratios=config.reductions,
        mlp_ratios=config.mlp_ratios,
        linear=config.pooled_keys is not None,
    )
    return config, randomise(reference)


def _ours(config: PVTv2Config, reference: nn.Module) -> nn.Module:
    model = config.build().eval()
    model.load_state_dict(to_ours(entries(config), reference.state_dict()))
    return model


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_number_of_parameters_is_timms(name):
    with torch.device("meta"):
        reference, model = timm.create_model(name), MODELS[NAMES[name]].build()
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in reference.parameters())


@pytest.mark.parametrize("name", ["pvt_v2_b0", "pvt_v2_b2_li"])
@pytest.mark.parametrize("size", [(224, 224), (256, 192)])
def test_logits_and_features_equal_those_of_timm(name, size):
    torch.manual_seed(7)
    config, reference = MODELS[NAMES[name]], randomise(timm.create_model(name))
    model, images = _ours(config, reference), torch.randn(2, 3, *size)
    with torch.no_grad():
        logits, expected = model(images), reference(images)
        features, expected_features = model.features(images), reference.forward_intermediates(images)[1]

    assert 0.3 < expected.std() < 3
    assert (logits - expected).abs().max() <= TOLERANCE
    for stage, expected_stage in zip(features, expected_features, strict=True):
        torch.testing.assert_close(stage, expected_stage, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", sorted(NAMES.values()))
def test_logits_and_gradients_of_a_shrunken_variant_equal_those_of_timm(name):
    config, reference = _shrunken(name)
    model, images, labels = _ours(config, reference), torch.randn(2, 3, 64, 64), torch.tensor([2, 5])
    logits, expected = model(images), reference(images)
    for each in (logits, expected):
        nn.functional.cross_entropy(each, labels).backward()
    gradients = {key: parameter.grad for key, parameter in reference.named_parameters()}
    expected_gradients = to_ours(entries(config), gradients)

    assert 0.3 < expected.std() < 3
    assert (logits - expected).abs().max() <= TOLERANCE
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected_gradients[key], rtol=1e-3, atol=1e-5, msg=key)


@pytest.mark.parametrize("name", ["pvtv2_b0", "pvtv2_b2_li"])
def test_conversion_can_be_reversed(name):
    config, reference = _shrunken(name)
    state = reference.state_dict()
    back = to_theirs(entries(config), to_ours(entries(config), state))

    assert back.keys() == state.keys()
    assert all(torch.equal(back[key], state[key]) for key in state)
