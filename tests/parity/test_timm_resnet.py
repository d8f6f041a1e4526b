"""Residual networks compute what timm's do from the same weights, forward and backward."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

from making.published_tables import key_table, published_names
from making.settled_norms import randomise_with_statistics
from vitrail.models import MODELS, build
from vitrail.models.weights.table import to_ours, to_theirs

entries = key_table("timm", "resnet")
NAMES = published_names("timm", "resnet")

TOLERANCE = 1e-4  # of logits of a scale of about one, in float32


def _pair(name: str, **changes: object) -> tuple[nn.Module, nn.Module]:
    reference = timm.create_model(name, **changes)
    randomise_with_statistics(reference, torch.randn(4, 3, 128, 128))
    model = build(NAMES[name]).eval()
    model.load_state_dict(to_ours(entries(model.config), reference.state_dict()))
    return reference, model


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_logits_at_the_native_size_equal_those_of_timm(name):
    reference, model = _pair(name)
    images = torch.randn(2, 3, 224, 224)

    with torch.no_grad():
        logits, expected = model(images), reference(images)

    assert 0.3 < expected.std() < 3
    assert (logits - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("name", ["resnet34", "resnet101", "resnet152"])
@pytest.mark.parametrize("size", [(64, 64), (37, 53)])
def test_logits_and_features_at_other_sizes_equal_those_of_timm(name, size):
    reference, model = (side.double() for side in _pair(name))
    images = torch.randn(2, 3, *size).double()

    with torch.no_grad():
        logits, features = model(images), model.features(images)
        expected, expected_features = reference(images), reference.forward_intermediates(images)[1]

    assert expected.std() > 0.3
    assert (logits - expected).abs().max() <= 1e-9
    for stage, expected_stage in zip(features, expected_features[1:], strict=True):
        torch.testing.assert_close(stage, expected_stage, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
@pytest.mark.parametrize("training", [False, True])
def test_all_gradients_and_statistics_equal_those_of_timm(name, training):
    reference, model = (side.double().train(training) for side in _pair(name))
    images, target = torch.randn(3, 3, 64, 64).double(), torch.randn(3, 1000).double()

    expected, logits = reference(images), model(images)
    (expected * target).sum().backward()
    (logits * target).sum().backward()

    assert (logits - expected).abs().max() <= TOLERANCE
    table = [entry for entry in entries(model.config) if "running" not in entry.ours[0]]
    table = [entry for entry in table if "num_batches" not in entry.ours[0]]
    theirs = to_ours(table, {key: value.grad for key, value in reference.named_parameters()})
    for key, parameter in model.named_parameters():
        assert theirs[key].abs().max() > 0, key
        torch.testing.assert_close(parameter.grad, theirs[key], rtol=1e-6, atol=1e-6, msg=key)
    buffers = to_ours(entries(model.config), reference.state_dict())
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, buffers[key], msg=key)


def test_the_dilated_last_stage_equals_that_of_timm():
    reference, _ = _pair("resnet50", output_stride=16)
    model = build("resnet50", dilated=True).eval()
    model.load_state_dict(to_ours(entries(model.config), reference.state_dict()))
    images = torch.randn(2, 3, 64, 96)

    with torch.no_grad():
        assert model.features(images)[-1].shape[-2:] == (4, 6)
        assert (model(images) - reference(images)).abs().max() <= TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_the_table_names_every_tensor_of_both_sides(name):
    with torch.device("meta"):
        reference, model = timm.create_model(name), build(NAMES[name])
    ours = to_ours(entries(model.config), reference.state_dict())
    assert {key: value.shape for key, value in ours.items()} == {
        key: value.shape for key, value in model.state_dict().items()
    }
    assert to_theirs(entries(model.config), ours).keys() == reference.state_dict().keys()
    assert set(NAMES.values()) == {key for key in MODELS if key.startswith("resnet")}


def test_converting_there_and_back_changes_nothing():
    reference, model = _pair("resnet18")
    state = reference.state_dict()
    back = to_theirs(entries(model.config), to_ours(entries(model.config), state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[key], value) for key, value in state.items())
