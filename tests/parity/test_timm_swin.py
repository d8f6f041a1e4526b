"""Swin and Swin V2 compute what timm's do from the same weights, forward and backward."""

from __future__ import annotations

import math

import pytest
import timm
import torch
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from torch import nn

from making.published_tables import published_names
from making.random_weights import randomise
from vitrail.models import MODELS
from vitrail.models.swin import SwinConfig
from vitrail.models.swinv2 import SwinV2Config
from vitrail.models.weights.conversion import SOURCES
from vitrail.models.weights.table import to_ours, to_theirs

TOLERANCE = 1e-4  # of logits of a scale of about one, in float32
ENTRIES = SOURCES["timm"].tables
NAMES = published_names("timm", "swin", "swinv2")
# Maps of 24x12, 12x6, 6x3 and 3x2 cells: many windows, windows that cover an axis, windows that cover all.
SHRUNKEN = {
    "patch_size": 2,
    "width": 12,
    "depths": (2, 2, 3, 2),
    "num_heads": (2, 3, 4, 6),
    "window_size": 3,
    "mlp_ratio": 2.0,
    "drop_path": 0.0,
    "num_classes": 7,
    "image_size": (48, 24),
}


def _shrunken(name: str) -> tuple[SwinConfig, nn.Module]:
    config = MODELS[name].with_changes(SHRUNKEN)
    torch.manual_seed(7)
    settings = {
        "img_size": config.image_size,
        "patch_size": config.patch_size,
        "num_classes": config.num_classes,
        "embed_dim": config.width,
        "depths": config.depths,
        "num_heads": config.num_heads,
        "window_size": config.window_size,
        "mlp_ratio": config.mlp_ratio,
        "drop_path_rate": 0.0,
    }
    if isinstance(config, SwinV2Config):
        reference = SwinTransformerV2(**settings, pretrained_window_sizes=config.trained_windows or (0,) * 4)
    else:
        reference = SwinTransformer(**settings)
    return config, randomise(reference)


def _ours(config: SwinConfig, reference: nn.Module) -> nn.Module:
    model = config.build().eval()
    model.load_state_dict(to_ours(ENTRIES[config.family](config), reference.state_dict()))
    return model


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_number_of_parameters_is_timms(name):
    with torch.device("meta"):
        reference, model = timm.create_model(name, num_classes=1000), MODELS[NAMES[name]].build()
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in reference.parameters())


@pytest.mark.parametrize(
    "name",
    [
        "swin_tiny_patch4_window7_224",
        "swinv2_tiny_window8_256",
        "swinv2_tiny_window16_256",
    ],
)
def test_logits_and_features_at_the_native_size_equal_those_of_timm(name):
    torch.manual_seed(7)
    config, reference = MODELS[NAMES[name]], randomise(timm.create_model(name))
    model, images = _ours(config, reference), torch.randn(2, 3, *config.image_size)
    with torch.no_grad():
        logits, expected = model(images), reference(images)
        features, expected_features = model.features(images), reference.forward_intermediates(images)[1]

    assert 0.3 < expected.std() < 3
    assert (logits - expected).abs().max() <= TOLERANCE
    for stage, expected_stage in zip(features, expected_features, strict=True):
        torch.testing.assert_close(stage, expected_stage, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["swin_s", "swin_l", "swinv2_b", "swinv2_b_w12to16"])
def test_logits_and_gradients_of_a_shrunken_variant_equal_those_of_timm(name):
    config, reference = _shrunken(name)
    if config.family == "swinv2":
        # A scale ends at 100. Not where windows are shifted: timm's masks subtract 100, which such a scale
        # can make up for, so that there the two differ.
        nn.init.constant_(reference.layers[0].blocks[0].attn.logit_scale[0], math.log(150))
    model, images, labels = _ours(config, reference), torch.randn(2, 3, 48, 24), torch.tensor([2, 5])
    logits, expected = model(images), reference(images)
    for each in (logits, expected):
        nn.functional.cross_entropy(each, labels).backward()

    assert 0.3 < expected.std() < 3
    assert (logits - expected).abs().max() <= TOLERANCE
    gradients = {name: parameter.grad for name, parameter in reference.named_parameters()}
    assert all(gradient is not None for gradient in gradients.values())
    for name, gradient in to_ours(ENTRIES[config.family](config), gradients).items():
        difference = (model.get_parameter(name).grad - gradient).abs().max()
        assert difference <= 1e-4 * gradient.abs().max(), name


def test_gradients_of_swin_t_at_the_native_size_equal_those_of_timm():
    torch.manual_seed(7)
    config = MODELS["swin_t"]
    reference = randomise(timm.create_model("swin_tiny_patch4_window7_224"))
    model, images = _ours(config, reference), torch.randn(1, 3, 224, 224)
    for each in (model, reference):
        nn.functional.cross_entropy(each(images), torch.tensor([3])).backward()

    gradients = {name: parameter.grad for name, parameter in reference.named_parameters()}
    for name, gradient in to_ours(ENTRIES["swin"](config), gradients).items():
        difference = (model.get_parameter(name).grad - gradient).abs().max()
        assert difference <= 1e-4 * gradient.abs().max(), name


@pytest.mark.parametrize("name", ["swin_t", "swinv2_t"])
def test_the_key_table_reads_both_ways(name):
    config, reference = _shrunken(name)
    state, table = reference.state_dict(), list(ENTRIES[config.family](config))
    back = to_theirs(table, to_ours(table, state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[key], value) for key, value in state.items())
