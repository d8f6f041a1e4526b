"""Big Transfer networks compute what those of transformers do from the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import BitConfig, BitForImageClassification

from making.published_tables import key_table, published_names
from making.settled_norms import randomise_with_statistics
from vitrail.models import MODELS, build
from vitrail.models.weights.table import to_ours, to_theirs

entries = key_table("hf", "bit")
NAMES = published_names("hf", "bit")

TOLERANCE = 1e-4  # of logits of a scale of about one, in float32


def _reference(config) -> nn.Module:
    return BitForImageClassification(
        BitConfig(
            embedding_size=config.width,
            hidden_sizes=list(config.channels),
            depths=list(config.depths),
            num_labels=config.num_classes,
        )
    )


def _pair(name: str, **changes: object) -> tuple[nn.Module, nn.Module]:
    model = build(name, **changes).eval()
    reference = randomise_with_statistics(_reference(model.config), torch.randn(2, 3, 64, 64))
    model.load_state_dict(to_ours(entries(model.config), reference.state_dict()))
    return reference, model


def test_logits_of_the_smallest_variant_equal_those_of_transformers_at_its_size():
    reference, model = _pair("bit_r50x1")
    images = torch.randn(1, 3, 224, 224)

    with torch.no_grad():
        logits, expected = model(images), reference(images).logits

    assert 0.3 < expected.std() < 3
    assert (logits - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("size", [(64, 64), (37, 53)])
def test_logits_of_a_narrow_variant_equal_those_of_transformers(size):
    reference, model = (side.double() for side in _pair("bit_r101x1", width=32, num_classes=7))
    images = torch.randn(2, 3, *size).double()

    with torch.no_grad():
        assert (model(images) - reference(images).logits).abs().max() <= 1e-9


@pytest.mark.parametrize("name", NAMES.values())
def test_conversion_can_be_reversed(name):
    config = MODELS[name]
    with torch.device("meta"):
        state = _reference(config).state_dict()
    back = to_theirs(entries(config), to_ours(entries(config), state))
    assert {key: value.shape for key, value in back.items()} == {
        key: value.shape for key, value in state.items()
    }
