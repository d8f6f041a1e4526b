"""Swin and Swin V2 compute what torchvision's do from the same weights."""

from __future__ import annotations

import pytest
import torch
import torchvision
from torch import nn
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2

from making.published_tables import published_names
from making.random_weights import randomise
from vitrail.models import MODELS
from vitrail.models.swin import SwinConfig
from vitrail.models.weights.conversion import SOURCES
from vitrail.models.weights.table import to_ours, to_theirs

TOLERANCE = 1e-4  # of logits of a scale of about one, in float32
TABLES, IGNORED = SOURCES["torchvision"].tables, SOURCES["torchvision"].ignored
NAMES = published_names("torchvision", "swin", "swinv2")
# Maps of 24x12, 12x6 and 6x3 cells: many windows, and windows that cover an axis.
SHRUNKEN = {
    "patch_size": 2,
    "width": 12,
    "depths": (2, 2, 3),
    "num_heads": (2, 3, 4),
    "window_size": 3,
    "mlp_ratio": 2.0,
    "drop_path": 0.0,
    "num_classes": 7,
    "image_size": (48, 24),
}


def _shrunken(name: str) -> tuple[SwinConfig, nn.Module]:
    config = MODELS[name].with_changes(SHRUNKEN)
    torch.manual_seed(7)
    parts = {"block": SwinTransformerBlockV2, "downsample_layer": PatchMergingV2}
    reference = SwinTransformer(
        [config.patch_size] * 2,
        config.width,
        list(config.depths),
        list(config.num_heads),
        [config.window_size] * 2,
        mlp_ratio=config.mlp_ratio,
        num_classes=config.num_classes,
        **(parts if config.family == "swinv2" else {}),
    )
    return config, randomise(reference)


def _ours(config: SwinConfig, reference: nn.Module) -> nn.Module:
    model = config.build().eval()
    model.load_state_dict(
        to_ours(TABLES[config.family](config), reference.state_dict(), ignored=IGNORED[config.family])
    )
    return model


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_parameters_are_torchvisions_but_for_the_unused_bias_of_the_keys(name):
    with torch.device("meta"):
        reference, model = torchvision.models.get_model(name), MODELS[NAMES[name]].build()
    config = model.config
    widths = [config.width * 2**stage for stage in range(len(config.depths))]
    unused = sum(width * depth for width, depth in zip(widths, config.depths, strict=True))
    expected = sum(p.numel() for p in reference.parameters()) - (unused if config.family == "swinv2" else 0)
    assert sum(p.numel() for p in model.parameters()) == expected


@pytest.mark.parametrize("name", ["swin_t", "swin_v2_t"])
def test_logits_at_the_native_size_equal_those_of_torchvision(name):
    torch.manual_seed(7)
    config, reference = MODELS[NAMES[name]], randomise(torchvision.models.get_model(name))
    model, images = _ours(config, reference), torch.randn(2, 3, *config.image_size)
    with torch.no_grad():
        logits, expected = model(images), reference(images)

    assert 0.3 < expected.std() < 3
    assert (logits - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("name", ["swin_s", "swin_b", "swinv2_s", "swinv2_b"])
def test_logits_of_a_shrunken_variant_equal_those_of_torchvision(name):
    config, reference = _shrunken(name)
    model, images = _ours(config, reference), torch.randn(2, 3, 48, 24)
    with torch.no_grad():
        logits, expected = model(images), reference(images)

    assert 0.3 < expected.std() < 3
    assert (logits - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("name", ["swin_t", "swinv2_t"])
def test_the_key_table_reads_both_ways(name):
    config, reference = _shrunken(name)
    state = reference.state_dict()
    for key, tensor in state.items():
        if name == "swinv2_t" and key.endswith("qkv.bias"):
            tensor.unflatten(0, (3, -1))[1] = 0  # never used, so that nothing keeps it
    table, ignored = list(TABLES[config.family](config)), IGNORED[config.family]
    back = to_theirs(table, to_ours(table, state, ignored=ignored))
    assert back.keys() == {key for key in state if not key.endswith(ignored)}
    assert all(torch.equal(value, state[key]) for key, value in back.items())
