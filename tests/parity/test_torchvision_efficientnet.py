"""EfficientNets with symmetric padding compute what torchvision's do from the same weights."""

from __future__ import annotations

import pytest
import torch
import torchvision
from torch import nn

from making.published_tables import key_table, published_names
from making.settled_norms import randomise_with_statistics
from vitrail.models import build
from vitrail.models.weights.table import to_ours, to_theirs

entries = key_table("torchvision", "efficientnet")
NAMES = published_names("torchvision", "efficientnet")

TOLERANCE = 1e-4  # of logits of a scale of about one, in float32


def _pair(name: str) -> tuple[nn.Module, nn.Module]:
    reference = torchvision.models.get_model(name)
    randomise_with_statistics(reference, torch.randn(4, 3, 128, 128))
    model = build(NAMES[name]).eval()
    model.load_state_dict(to_ours(entries(model.config), reference.state_dict()))
    return reference, model


def test_logits_at_the_native_size_equal_those_of_torchvision():
    reference, model = _pair("efficientnet_b0")
    images = torch.randn(2, 3, 224, 224)

    with torch.no_grad():
        logits, expected = model(images), reference(images)

    assert 0.3 < expected.std() < 3
    assert (logits - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("name", ["efficientnet_b2", "efficientnet_b5"])
def test_logits_at_another_size_equal_those_of_torchvision(name):
    reference, model = (side.double() for side in _pair(name))
    images = torch.randn(2, 3, 37, 53).double()

    with torch.no_grad():
        assert (model(images) - reference(images)).abs().max() <= 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_the_table_names_every_tensor_of_both_sides_and_the_epsilon_is_theirs(name):
    with torch.device("meta"):
        reference, model = torchvision.models.get_model(name), build(NAMES[name])
    ours = to_ours(entries(model.config), reference.state_dict())
    assert {key: value.shape for key, value in ours.items()} == {
        key: value.shape for key, value in model.state_dict().items()
    }
    assert to_theirs(entries(model.config), ours).keys() == reference.state_dict().keys()
    assert reference.features[0][1].eps == model.config.norm_eps


def test_converting_there_and_back_changes_nothing():
    reference, model = _pair("efficientnet_b0")
    state = reference.state_dict()
    back = to_theirs(entries(model.config), to_ours(entries(model.config), state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[key], value) for key, value in state.items())
