"""Residual networks compute what those of transformers do from the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import ResNetConfig, ResNetForImageClassification

from making.published_tables import key_table, published_names
from making.settled_norms import randomise_with_statistics
from vitrail.models import MODELS, build
from vitrail.models.weights.conversion import SOURCES
from vitrail.models.weights.table import to_ours, to_theirs

entries = key_table("hf", "resnet")
NAMES = published_names("hf", "resnet")

TOLERANCE = 1e-4  # of logits of a scale of about one, in float32


def _reference(config) -> nn.Module:
    return ResNetForImageClassification(
        ResNetConfig(
            embedding_size=config.width,
            hidden_sizes=list(config.channels),
            depths=list(config.depths),
            layer_type=config.block,
            num_labels=config.num_classes,
        )
    )


def _pair(name: str, **changes: object) -> tuple[nn.Module, nn.Module]:
    model = build(name, **changes).eval()
    reference = randomise_with_statistics(_reference(model.config), torch.randn(4, 3, 64, 64))
    model.load_state_dict(to_ours(entries(model.config), reference.state_dict()))
    return reference, model


def test_logits_of_the_smallest_variant_equal_those_of_transformers_at_its_size():
    reference, model = _pair("resnet18")
    images = torch.randn(1, 3, 224, 224)

    with torch.no_grad():
        logits, expected = model(images), reference(images).logits

    assert 0.3 < expected.std() < 3
    assert (logits - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("name", ["resnet34", "resnet50"])
@pytest.mark.parametrize("size", [(64, 64), (37, 53)])
def test_logits_of_a_narrow_variant_equal_those_of_transformers(name, size):
    reference, model = (side.double() for side in _pair(name, width=8, num_classes=7))
    images = torch.randn(2, 3, *size).double()

    with torch.no_grad():
        assert (model(images) - reference(images).logits).abs().max() <= 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_the_table_names_every_tensor_of_both_sides(name):
    with torch.device("meta"):
        model = build(NAMES[name])
        reference = _reference(model.config)
    ours = to_ours(entries(model.config), reference.state_dict())
    assert {key: value.shape for key, value in ours.items()} == {
        key: value.shape for key, value in model.state_dict().items()
    }
    assert set(NAMES.values()) == {key for key in MODELS if key.startswith("resnet")}


def test_conversion_can_be_reversed():
    reference, model = _pair("resnet50", width=8, num_classes=7)
    state = reference.state_dict()
    back = to_theirs(entries(model.config), to_ours(entries(model.config), state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[key], state[key]) for key in state)


def test_weights_with_counted_batches_become_a_frozen_backbone():
    reference, counted = _pair("resnet50", width=8, num_classes=7)
    model = build("resnet50", width=8, num_classes=7, norm="frozen")
    ignored = SOURCES["hf"].ignored["resnet"]
    model.load_state_dict(to_ours(entries(model.config), reference.state_dict(), ignored=ignored))
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(model(images), counted(images))
