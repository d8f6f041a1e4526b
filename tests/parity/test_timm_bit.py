"""Big Transfer networks compute what timm's do from the same weights."""

from __future__ import annotations

from functools import partial

import pytest
import timm
import torch
from timm.layers import StdConv2d
from timm.models.resnetv2 import ResNetV2
from torch import nn

from making.published_tables import key_table, published_names
from making.settled_norms import randomise_with_statistics
from vitrail.models import MODELS, build
from vitrail.models.weights.table import to_ours, to_theirs

entries = key_table("timm", "bit")
NAMES = published_names("timm", "bit")

TOLERANCE = 1e-4  # of logits of a scale of about one, in float32


def _filled(reference: nn.Module, model: nn.Module) -> nn.Module:
    randomise_with_statistics(reference, torch.randn(2, 3, 64, 64))
    model.load_state_dict(to_ours(entries(model.config), reference.state_dict()))
    return model.eval()


def _shrunken(width: int) -> tuple[nn.Module, nn.Module]:
    reference = ResNetV2(
        layers=(1, 2, 1),
        channels=(256, 512, 1024),
        num_classes=7,
        width_factor=width,
        stem_type="fixed",
        conv_layer=partial(StdConv2d, eps=1e-8),  # as the registered models have it
    )
    model = build("bit_r50x1", width=64 * width, depths=(1, 2, 1), num_classes=7)
    return reference, _filled(reference, model)


def test_logits_at_the_native_size_equal_those_of_timm():
    reference = timm.create_model("resnetv2_50x1_bit", num_classes=1000)
    model = _filled(reference, build("bit_r50x1"))
    images = torch.randn(2, 3, 224, 224)

    with torch.no_grad():
        logits, expected = model(images), reference(images)

    assert 0.3 < expected.std() < 3
    assert (logits - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("size", [(64, 64), (37, 53)])
@pytest.mark.parametrize("width", [1, 2])
def test_logits_features_and_gradients_of_a_small_model_equal_those_of_timm(width, size):
    reference, model = (side.double() for side in _shrunken(width))
    images, target = torch.randn(2, 3, *size).double(), torch.randn(2, 7).double()

    expected, logits = reference(images), model(images)
    features, expected_features = model.features(images), reference.forward_intermediates(images)[1]
    (expected * target).sum().backward()
    (logits * target).sum().backward()

    assert (logits - expected).abs().max() <= 1e-9
    for stage, expected_stage in zip(features, expected_features[1:], strict=True):
        torch.testing.assert_close(stage, expected_stage, rtol=1e-9, atol=1e-9)
    theirs = to_ours(entries(model.config), {key: value.grad for key, value in reference.named_parameters()})
    for key, parameter in model.named_parameters():
        assert theirs[key].abs().max() > 0, key
        torch.testing.assert_close(parameter.grad, theirs[key], rtol=1e-6, atol=1e-6, msg=key)


@pytest.mark.parametrize("name", NAMES)
def test_the_table_names_every_tensor_of_both_sides(name):
    with torch.device("meta"):
        reference, model = timm.create_model(name, num_classes=1000), build(NAMES[name])
    ours = to_ours(entries(model.config), reference.state_dict())
    assert {key: value.shape for key, value in ours.items()} == {
        key: value.shape for key, value in model.state_dict().items()
    }
    back = to_theirs(entries(model.config), ours)
    assert {key: value.shape for key, value in back.items()} == {
        key: value.shape for key, value in reference.state_dict().items()
    }
    assert set(NAMES.values()) == {key for key in MODELS if key.startswith("bit_")}


def test_converting_there_and_back_changes_nothing():
    reference, model = _shrunken(1)
    state = reference.state_dict()
    back = to_theirs(entries(model.config), to_ours(entries(model.config), state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[key], value) for key, value in state.items())
