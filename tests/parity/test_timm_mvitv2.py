"""MViTv2 computes what timm's does from the same weights, forward and backward."""

from __future__ import annotations

import pytest
import timm
import torch
from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg
from torch import nn

from making.published_tables import key_table, published_names
from vitrail.models import MODELS, build
from vitrail.models.weights.table import to_ours, to_theirs

entries = key_table("timm", "mvitv2")
NAMES = published_names("timm", "mvitv2")

SHRUNKEN = {"depths": (2, 1, 3), "width": 24, "num_classes": 7}


def _randomised(reference: nn.Module) -> nn.Module:
    """Draw every parameter; the heads' norms keep scores, and the last norm keeps logits, near one."""
    for name, parameter in reference.named_parameters():
        if "norm" in name and name.endswith("weight"):
            nn.init.normal_(parameter, mean=1.0, std=0.1)
        elif parameter.ndim > 1 and "rel_pos" not in name:
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
        else:
            nn.init.normal_(parameter, std=0.1)
    return reference.eval()


def _shrunken(name: str) -> tuple[nn.Module, nn.Module]:
    settings = MODELS[name]
    architecture = MultiScaleVitCfg(
        depths=SHRUNKEN["depths"],
        embed_dim=SHRUNKEN["width"],
        num_heads=settings.num_heads,
        expand_attn=settings.expansion == "attention",
        stride_q=((1, 1), (2, 2), (2, 2)),
    )
    reference = MultiScaleVit(architecture, img_size=(64, 64), num_classes=7)
    return _randomised(reference), build(name, image_size=(64, 64), **SHRUNKEN).eval()


@pytest.mark.parametrize("name", ["mvitv2_tiny", "mvitv2_small"])
def test_logits_and_features_at_the_native_size_equal_those_of_timm(name):
    reference, model = _randomised(timm.create_model(name)), build(NAMES[name]).eval()
    model.load_state_dict(to_ours(entries(model.config), reference.state_dict()))
    images = torch.randn(2, 3, 224, 224)

    with torch.no_grad():
        logits, features = model(images), model.features(images)
        expected, expected_features = reference(images), reference.forward_intermediates(images)[1]

    assert 0.3 < expected.std() < 3
    assert (logits - expected).abs().max() <= 1e-4
    assert [stage.shape for stage in features] == [stage.shape for stage in expected_features]
    for stage, expected_stage in zip(features, expected_features, strict=True):
        torch.testing.assert_close(stage, expected_stage, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["mvitv2_b", "mvitv2_l"])
def test_logits_and_all_gradients_of_a_small_model_equal_those_of_timm(name):
    reference, model = _shrunken(name)
    model.load_state_dict(to_ours(entries(model.config), reference.state_dict()))
    images = torch.randn(2, 3, 64, 64)
    target = torch.randn(2, 7)

    expected, logits = reference(images), model(images)
    (expected * target).sum().backward()
    (logits * target).sum().backward()

    assert expected.std() > 0.3
    assert (logits - expected).abs().max() <= 1e-4
    theirs = to_ours(entries(model.config), {key: value.grad for key, value in reference.named_parameters()})
    for key, parameter in model.named_parameters():
        assert theirs[key].abs().max() > 0, key
        torch.testing.assert_close(parameter.grad, theirs[key], rtol=1e-4, atol=1e-4, msg=key)


@pytest.mark.parametrize("name", ["mvitv2_b", "mvitv2_l"])
@pytest.mark.parametrize("size", [(64, 56), (40, 64), (53, 37), (96, 75)])
def test_another_size_equals_timm_whose_tables_were_resized_to_it(name, size):
    reference, model = _shrunken(name)
    model.load_state_dict(to_ours(entries(model.config), reference.state_dict()))
    images = torch.randn(2, 3, *size)
    lengths = {
        key: len(value)
        for key, value in to_theirs(
            entries(model.config), build(name, image_size=size, **SHRUNKEN).state_dict()
        ).items()
    }
    for key, table in reference.state_dict().items():
        if "rel_pos" in key:  # as timm resizes those of a checkpoint
            resized = nn.functional.interpolate(table.T[None], size=lengths[key], mode="linear")[0].T
            owner, _, attribute = key.rpartition(".")
            setattr(reference.get_submodule(owner), attribute, nn.Parameter(resized))

    with torch.no_grad():
        assert (model(images) - reference(images)).abs().max() <= 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_the_table_names_every_tensor_of_both_sides(name):
    with torch.device("meta"):
        reference, model = timm.create_model(name), build(NAMES[name])
    ours = to_ours(entries(model.config), reference.state_dict())
    assert {key: value.shape for key, value in ours.items()} == {
        key: value.shape for key, value in model.state_dict().items()
    }
    back = to_theirs(entries(model.config), ours)
    assert {key: value.shape for key, value in back.items()} == {
        key: value.shape for key, value in reference.state_dict().items()
    }
    assert set(NAMES.values()) == {key for key in MODELS if key.startswith("mvitv2_")}


def test_converting_there_and_back_changes_nothing():
    reference, model = _shrunken("mvitv2_l")
    state = reference.state_dict()
    back = to_theirs(entries(model.config), to_ours(entries(model.config), state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[key], value) for key, value in state.items())
