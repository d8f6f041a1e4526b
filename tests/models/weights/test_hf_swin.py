"""Swin and Swin V2 compute what those of transformers do from the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import (
    SwinConfig,
    SwinForImageClassification,
    Swinv2Config,
    Swinv2ForImageClassification,
)

from making.published_tables import published_names
from making.random_weights import randomise
from vitrail.models import MODELS
from vitrail.models import swin as models
from vitrail.models.swinv2 import SwinV2Config
from vitrail.models.weights.conversion import SOURCES
from vitrail.models.weights.table import to_ours, to_theirs

TOLERANCE = 1e-4  # of logits of a scale of about one, in float32
TABLES, IGNORED = SOURCES["hf"].tables, SOURCES["hf"].ignored
# Maps of 24x24, 12x12, 6x6 and 3x3 cells, of which a window covers the last.
SHRUNKEN = {
    "patch_size": 2,
    "width": 12,
    "depths": (2, 2, 3, 2),
    "num_heads": (2, 3, 4, 6),
    "window_size": 3,
    "mlp_ratio": 2.0,
    "drop_path": 0.0,
    "num_classes": 7,
    "image_size": (48, 48),
}


def _reference(config: models.SwinConfig) -> nn.Module:
    torch.manual_seed(7)
    settings = {
        "image_size": config.image_size[0],
        "patch_size": config.patch_size,
        "embed_dim": config.width,
        "depths": config.depths,
        "num_heads": config.num_heads,
        "window_size": config.window_size,
        "mlp_ratio": config.mlp_ratio,
        "num_labels": config.num_classes,
    }
    if isinstance(config, SwinV2Config):
        trained = config.trained_windows or (0,) * len(config.depths)
        return randomise(
            Swinv2ForImageClassification(Swinv2Config(**settings, pretrained_window_sizes=trained))
        )
    return randomise(SwinForImageClassification(SwinConfig(**settings)))


def _ours(config: models.SwinConfig, reference: nn.Module) -> nn.Module:
    model = config.build().eval()
    model.load_state_dict(to_ours(TABLES[config.family](config), reference.state_dict()))
    return model


@pytest.mark.parametrize("name", sorted(set(published_names("hf", "swin", "swinv2").values())))
def test_logits_of_a_shrunken_variant_equal_those_of_transformers(name):
    config = MODELS[name].with_changes(SHRUNKEN)
    reference, images = _reference(config), torch.randn(2, 3, 48, 48)
    with torch.no_grad():
        expected, logits = reference(images).logits, _ours(config, reference)(images)

    assert 0.3 < expected.std() < 3
    assert (logits - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("name", ["swin_t", "swinv2_t"])
def test_logits_at_the_native_size_equal_those_of_transformers(name):
    config = MODELS[name]
    reference, images = _reference(config), torch.randn(1, 3, *config.image_size)
    with torch.no_grad():
        expected, logits = reference(images).logits, _ours(config, reference)(images)

    assert 0.3 < expected.std() < 3
    assert (logits - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("name", ["swin_t", "swinv2_t"])
def test_the_key_table_reads_both_ways_and_passes_over_the_tables_of_older_files(name):
    config = MODELS[name].with_changes(SHRUNKEN)
    state = _reference(config).state_dict()
    table, ignored = list(TABLES[config.family](config)), IGNORED[config.family]
    older = state | {f"{name}.encoder.layers.0.{end}": torch.zeros(1) for end in ignored}
    back = to_theirs(table, to_ours(table, older, ignored=ignored))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[key], value) for key, value in state.items())
