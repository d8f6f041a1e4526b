"""Image models compute what those of transformers do from the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from making.random_weights import randomise
from making.references import (
    assert_reversible,
    assert_same,
    assert_same_shapes,
    build_ours,
    key_table,
    published_names,
)
from making.settled_norms import randomise_with_statistics
from vitrail.interpret import record_attention
from vitrail.models import MODELS, build
from vitrail.models.weights.conversion import SOURCES
from vitrail.models.weights.table import to_ours, to_theirs

CONVOLUTIONAL = ("resnet", "bit", "efficientnet")
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


def _vit(config: Any) -> nn.Module:
    settings = {
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "intermediate_size": 4 * config.width,
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        "num_labels": config.num_classes,
    }
    if config.distilled:
        return transformers.DeiTForImageClassificationWithTeacher(transformers.DeiTConfig(**settings))
    return transformers.ViTForImageClassification(transformers.ViTConfig(**settings))


def _swin(config: Any) -> nn.Module:
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
    if config.family == "swin":
        return transformers.SwinForImageClassification(transformers.SwinConfig(**settings))
    trained = config.trained_windows or (0,) * len(config.depths)
    described = transformers.Swinv2Config(**settings, pretrained_window_sizes=trained)
    return transformers.Swinv2ForImageClassification(described)


def _pvt(config: Any) -> nn.Module:
    settings = {
        "depths": config.depths,
        "hidden_sizes": config.widths,
        "num_attention_heads": config.num_heads,
        "mlp_ratios": [int(ratio) for ratio in config.mlp_ratios],
        "num_labels": config.num_classes,
    }
    if config.family == "pvt":
        described = transformers.PvtConfig(
            image_size=config.image_size[0], sequence_reduction_ratios=config.reductions, **settings
        )
        return transformers.PvtForImageClassification(described)
    described = transformers.PvtV2Config(
        sr_ratios=config.reductions, linear_attention=config.pooled_keys is not None, **settings
    )
    return transformers.PvtV2ForImageClassification(described)


def _convolutional(config: Any, name: str) -> nn.Module:
    if config.family == "efficientnet":
        described = transformers.EfficientNetConfig(
            width_coefficient=config.width_factor,
            depth_coefficient=config.depth_factor,
            hidden_dim=config.channels(1280),
            depthwise_padding=SYMMETRIC_BLOCKS.get(name, []),
            num_labels=config.num_classes,
        )
        return transformers.EfficientNetForImageClassification(described)
    settings = {
        "embedding_size": config.width,
        "hidden_sizes": list(config.channels),
        "depths": list(config.depths),
        "num_labels": config.num_classes,
    }
    if config.family == "bit":
        return transformers.BitForImageClassification(transformers.BitConfig(**settings))
    described = transformers.ResNetConfig(layer_type=config.block, **settings)
    return transformers.ResNetForImageClassification(described)


MAKERS = {"vit": _vit, "swin": _swin, "swinv2": _swin, "pvt": _pvt, "pvtv2": _pvt}


def _pair(name: str, **changes: object) -> tuple[nn.Module, nn.Module]:
    """Return a random model of transformers, and ours with its weights."""
    torch.manual_seed(7)
    config: Any = MODELS[name].with_changes(changes)
    if config.family in CONVOLUTIONAL:
        size = config.image_size if config.family == "efficientnet" else (64, 64)
        reference = randomise_with_statistics(_convolutional(config, name), torch.randn(2, 3, *size))
    else:
        reference = randomise(MAKERS[config.family](config))
    return reference, build_ours("hf", config, reference)


def _run(model: nn.Module, images: Tensor) -> list[Tensor]:
    with torch.no_grad():
        output = model(images)
    return [getattr(output, "logits", output)]


THEIR_EPS = {"norm_eps": 1e-12}  # the default of transformers, and of its published ViTs
SMALL_VIT = {"width": 48, "depth": 3, "num_heads": 3, "image_size": (32, 48), "num_classes": 7}
SMALL_SWIN = {  # maps of 24x24, 12x12, 6x6 and 3x3 positions, of which a window covers the last
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
SMALL_PVT = {"widths": (8, 12, 15, 16), "num_heads": (1, 2, 3, 4), "num_classes": 7, "image_size": (64, 64)}
NARROW = {"num_classes": 7, "image_size": (64, 64)}
SWINS = sorted(set(published_names("hf", "swin", "swinv2").values()))
PVTS = sorted(published_names("hf", "pvt", "pvtv2").values())


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *(
            (name, {**SMALL_VIT, **eps})
            for name in ("vit_b16", "deit_b16_distilled")
            for eps in (THEIR_EPS, {})
        ),
        *((name, SMALL_SWIN) for name in SWINS),
        *((name, SMALL_PVT) for name in PVTS),
        # their native size
        *((name, {"num_classes": 7, **THEIR_EPS}) for name in ("vit_ti16", "deit_ti16_distilled")),
        *(
            (name, {})
            for name in ("swin_t", "swinv2_t", "pvtv2_b0", "resnet18", "bit_r50x1", "efficientnet_b0")
        ),
    ],
)
def test_logits_equal_those_of_transformers_and_weights_go_back_unchanged(name, changes):
    reference, model = _pair(name, **changes)
    images = torch.randn(2 if changes else 1, 3, *model.config.image_size)
    assert_same(_run(model, images), _run(reference, images))
    assert_reversible("hf", model.config, reference.state_dict())


@pytest.mark.parametrize(
    ("name", "changes", "size"),
    [
        *(
            (name, {"width": width, **NARROW}, size)
            for name, width in (("resnet34", 8), ("resnet50", 8), ("bit_r101x1", 32))
            for size in ((64, 64), (37, 53))
        ),
        ("efficientnet_b2", {"num_classes": 7}, (260, 260)),  # has maps of odd height
    ],
)
def test_logits_of_convolutional_models_are_equal_in_float64(name, changes, size):
    reference, model = (side.double() for side in _pair(name, **changes))
    images = torch.randn(2, 3, *size).double()
    (logits,), (expected,) = _run(model, images), _run(reference, images)
    assert (logits - expected).abs().max() <= 1e-9
    assert_reversible("hf", model.config, reference.state_dict())


def test_maps_of_pvt_equal_those_of_transformers_at_its_size():
    reference, model = _pair("pvt_t")
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad(), record_attention(model) as maps:
        expected, logits = reference(images, output_attentions=True), model(images)

    assert_same([logits], [expected.logits])
    assert len(maps) == len(expected.attentions) == sum(model.config.depths)
    for each, weights in zip(maps, expected.attentions, strict=True):
        torch.testing.assert_close(each.weights, weights, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", published_names("hf", *CONVOLUTIONAL).values())
def test_the_table_names_every_tensor_of_both_sides(name):
    with torch.device("meta"):
        assert_same_shapes("hf", _convolutional(MODELS[name], name), name)


def test_published_names_are_of_our_variants():
    assert set(published_names("hf", "resnet").values()) == {
        key for key in MODELS if key.startswith("resnet")
    }
    for name, variant in published_names("hf", "vit").items():
        config = MODELS[variant]
        assert f"-patch{config.patch_size}-" in name
        assert config.distilled == ("-distilled-" in name)


@pytest.mark.parametrize("name", ["swin_t", "swinv2_t"])
def test_the_index_tables_of_older_files_are_passed_over(name):
    config = MODELS[name].with_changes(SMALL_SWIN)
    state, ignored = _swin(config).state_dict(), SOURCES["hf"].ignored[config.family]
    older = state | {f"{config.family}.encoder.layers.0.{end}": torch.zeros(1) for end in ignored}
    table = key_table("hf", config)
    back = to_theirs(table, to_ours(table, older, ignored=ignored))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[key], value) for key, value in state.items())


def test_weights_with_counted_batches_become_a_frozen_backbone():
    reference, counted = _pair("resnet50", width=8, **NARROW)
    frozen = build("resnet50", width=8, **NARROW, norm="frozen").config
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(build_ours("hf", frozen, reference)(images), counted(images))
