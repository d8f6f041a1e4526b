"""PVTv2 computes what that of transformers does from the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import PvtV2Config, PvtV2ForImageClassification

from making.published_tables import key_table, published_names
from making.random_weights import randomise
from vitrail.models import MODELS
from vitrail.models.pvtv2 import PVTv2Config
from vitrail.models.weights.table import to_ours, to_theirs

entries = key_table("hf", "pvtv2")
NAMES = published_names("hf", "pvtv2")

TOLERANCE = 1e-4  # of logits of a scale of about one, in float32
SHRUNKEN = {"widths": (8, 12, 15, 16), "num_heads": (1, 2, 3, 4), "num_classes": 7, "image_size": (64, 64)}


def _reference(config: PVTv2Config) -> nn.Module:
    torch.manual_seed(7)
    return randomise(
        PvtV2ForImageClassification(
            PvtV2Config(
                depths=config.depths,
                hidden_sizes=config.widths,
                num_attention_heads=config.num_heads,
                sr_ratios=config.reductions,
                mlp_ratios=[int(ratio) for ratio in config.mlp_ratios],
                linear_attention=config.pooled_keys is not None,
                num_labels=config.num_classes,
            )
        )
    )


@pytest.mark.parametrize("name", sorted(NAMES.values()))
def test_logits_of_a_shrunken_variant_equal_those_of_transformers(name):
    config = MODELS[name].with_changes(SHRUNKEN)
    reference, images = _reference(config), torch.randn(2, 3, 64, 64)
    _assert_equal(config, reference, images)


def test_logits_of_the_smallest_variant_equal_those_of_transformers_at_its_size():
    config = MODELS["pvtv2_b0"]
    _assert_equal(config, _reference(config), torch.randn(1, 3, 224, 224))


@pytest.mark.parametrize("name", ["pvtv2_b0", "pvtv2_b2_li"])
def test_conversion_can_be_reversed(name):
    config = MODELS[name].with_changes(SHRUNKEN)
    state = _reference(config).state_dict()
    back = to_theirs(entries(config), to_ours(entries(config), state))

    assert back.keys() == state.keys()
    assert all(torch.equal(back[key], state[key]) for key in state)


def _assert_equal(config: PVTv2Config, reference: nn.Module, images: torch.Tensor) -> None:
    model = config.build().eval()
    model.load_state_dict(to_ours(entries(config), reference.state_dict()))
    with torch.no_grad():
        logits, expected = model(images), reference(images).logits

    assert 0.3 < expected.std() < 3
    assert (logits - expected).abs().max() <= TOLERANCE
