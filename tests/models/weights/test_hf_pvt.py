"""PVT computes what that of transformers does from the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import PvtConfig, PvtForImageClassification

from making.published_tables import key_table, published_names
from making.random_weights import randomise
from vitrail.interpret import record_attention
from vitrail.models import MODELS
from vitrail.models.pvt import PVTConfig
from vitrail.models.weights.table import to_ours, to_theirs

entries = key_table("hf", "pvt")
NAMES = published_names("hf", "pvt")

TOLERANCE = 1e-4  # of logits of a scale of about one, in float32
SHRUNKEN = {"widths": (8, 12, 15, 16), "num_heads": (1, 2, 3, 4), "num_classes": 7, "image_size": (64, 64)}


def _reference(config: PVTConfig) -> nn.Module:
    torch.manual_seed(7)
    return randomise(
        PvtForImageClassification(
            PvtConfig(
                image_size=config.image_size[0],
                depths=config.depths,
                hidden_sizes=config.widths,
                num_attention_heads=config.num_heads,
                sequence_reduction_ratios=config.reductions,
                mlp_ratios=[int(ratio) for ratio in config.mlp_ratios],
                num_labels=config.num_classes,
            )
        )
    )


def _ours(config: PVTConfig, reference: nn.Module) -> nn.Module:
    model = config.build().eval()
    model.load_state_dict(to_ours(entries(config), reference.state_dict()))
    return model


@pytest.mark.parametrize("name", sorted(NAMES.values()))
def test_logits_of_a_shrunken_variant_equal_those_of_transformers(name):
    config = MODELS[name].with_changes(SHRUNKEN)
    reference, images = _reference(config), torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected, logits = reference(images).logits, _ours(config, reference)(images)

    assert 0.3 < expected.std() < 3
    assert (logits - expected).abs().max() <= TOLERANCE


def test_logits_and_maps_of_the_tiny_variant_equal_those_of_transformers_at_its_size():
    config = MODELS["pvt_t"]
    reference, images = _reference(config), torch.randn(1, 3, 224, 224)
    model = _ours(config, reference)
    with torch.no_grad(), record_attention(model) as maps:
        expected, logits = reference(images, output_attentions=True), model(images)

    assert 0.3 < expected.logits.std() < 3
    assert (logits - expected.logits).abs().max() <= TOLERANCE
    assert len(maps) == len(expected.attentions) == sum(config.depths)
    for each, weights in zip(maps, expected.attentions, strict=True):
        torch.testing.assert_close(each.weights, weights, rtol=1e-3, atol=1e-5)


def test_conversion_can_be_reversed():
    config = MODELS["pvt_t"].with_changes(SHRUNKEN)
    state = _reference(config).state_dict()
    back = to_theirs(entries(config), to_ours(entries(config), state))

    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)
