"""EfficientNets compute what those of transformers do from the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import EfficientNetConfig, EfficientNetForImageClassification

from making.published_tables import key_table, published_names
from making.settled_norms import randomise_with_statistics
from vitrail.models import build
from vitrail.models.weights.table import to_ours, to_theirs

entries = key_table("hf", "efficientnet")
NAMES = published_names("hf", "efficientnet")

TOLERANCE = 1e-4  # of logits of a scale of about one, in float32
# Blocks that halve a map of odd height, where transformers' paddings must be told so; its published settings.
SYMMETRIC_BLOCKS = {
    "efficientnet_b1": [16],
    "efficientnet_b2": [5, 8, 16],
    "efficientnet_b3": [5, 18],
    "efficientnet_b4": [6],
    "efficientnet_b5": [13, 27],
    "efficientnet_b6": [31],
    "efficientnet_b7": [18],
}


def _reference(config, name: str) -> nn.Module:
    return EfficientNetForImageClassification(
        EfficientNetConfig(
            width_coefficient=config.width_factor,
            depth_coefficient=config.depth_factor,
            hidden_dim=config.channels(1280),
            depthwise_padding=SYMMETRIC_BLOCKS.get(name, []),
            num_labels=config.num_classes,
        )
    )


def _pair(name: str, **changes: object) -> tuple[nn.Module, nn.Module]:
    model = build(name, **changes).eval()
    reference = _reference(model.config, name)
    randomise_with_statistics(reference, torch.randn(2, 3, *model.config.image_size))
    model.load_state_dict(to_ours(entries(model.config), reference.state_dict()))
    return reference, model


def test_logits_of_the_smallest_variant_equal_those_of_transformers_at_its_size():
    reference, model = _pair("efficientnet_b0")
    images = torch.randn(1, 3, 224, 224)

    with torch.no_grad():
        logits, expected = model(images), reference(images).logits

    assert 0.3 < expected.std() < 3
    assert (logits - expected).abs().max() <= TOLERANCE


def test_logits_of_a_variant_with_odd_maps_equal_those_of_transformers_at_its_size():
    reference, model = (side.double() for side in _pair("efficientnet_b2", num_classes=7))
    images = torch.randn(1, 3, 260, 260).double()

    with torch.no_grad():
        assert (model(images) - reference(images).logits).abs().max() <= 1e-9


@pytest.mark.parametrize("name", NAMES.values())
def test_the_table_names_every_tensor_of_both_sides(name):
    with torch.device("meta"):
        model = build(name)
        reference = _reference(model.config, name)
    ours = to_ours(entries(model.config), reference.state_dict())
    assert {key: value.shape for key, value in ours.items()} == {
        key: value.shape for key, value in model.state_dict().items()
    }
    assert to_theirs(entries(model.config), ours).keys() == reference.state_dict().keys()


def test_conversion_can_be_reversed():
    reference, model = _pair("efficientnet_b0", num_classes=7, image_size=(64, 64))
    state = reference.state_dict()
    back = to_theirs(entries(model.config), to_ours(entries(model.config), state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[key], state[key]) for key in state)
