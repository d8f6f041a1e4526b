"""Image models compute what timm's do from the same weights, forward and backward."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import timm
import torch
from timm.layers import StdConv2d
from timm.models.mlp_mixer import MlpMixer
from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg
from timm.models.pvt_v2 import PyramidVisionTransformerV2
from timm.models.resnetv2 import ResNetV2
from timm.models.sequencer import Sequencer2d
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from torch import Tensor, nn

from making.random_weights import randomise
from making.references import (
    assert_reversible,
    assert_same,
    assert_same_gradients,
    assert_same_shapes,
    build_ours,
    key_table,
)
from making.settled_norms import randomise_with_statistics
from vitrail.models import MODELS, build
from vitrail.models.weights.conversion import SOURCES, export
from vitrail.models.weights.table import to_ours, to_theirs

NAMES = SOURCES["timm"].names
CONVOLUTIONAL = ("resnet", "bit", "efficientnet")


def _settle(reference: nn.Module, family: str, size: int = 128) -> nn.Module:
    """Draw every parameter, so that logits are of scale one."""
    torch.manual_seed(7)
    if family in CONVOLUTIONAL:
        return randomise_with_statistics(reference, torch.randn(4, 3, size, size))
    randomise(reference, spread=0.1 if family in ("mlp_mixer", "sequencer2d", "mvitv2") else 0.2)
    if family in ("mlp_mixer", "sequencer2d"):  # the mean over the patches shrinks what the head reads
        head = getattr(reference.head, "fc", reference.head)
        nn.init.normal_(head.weight, std=3 * head.in_features**-0.5)
    return reference


def _published(name: str, **changes: object) -> tuple[nn.Module, nn.Module]:
    """Return a published architecture and ours, with the same weights."""
    config: Any = MODELS[NAMES[name]]
    if name.endswith("_bit"):
        changes["num_classes"] = 1000
    reference = _settle(timm.create_model(name, **changes), config.family)
    return reference, build_ours("timm", config, reference)


def _run(model: nn.Module, images: Tensor) -> list[Tensor]:
    """Return logits, and feature maps or tokens."""
    with torch.no_grad():
        if hasattr(model, "features") and model.config.family in ("vit", "mlp_mixer"):
            return [model(images), model.tokens(images)]
        if hasattr(model, "features"):
            return [model(images), *model.features(images)]
        if hasattr(model, "forward_intermediates") and type(model).__name__ not in (
            "VisionTransformer",
            "VisionTransformerDistilled",
            "MlpMixer",
        ):
            maps = model.forward_intermediates(images)[1]
            stem = 1 if type(model).__name__ in ("ResNet", "ResNetV2") else 0
            return [model(images), *maps[stem:]]
        return [model(images), model.forward_features(images)]


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("vit_tiny_patch16_224", (224, 224)),
        ("deit_tiny_distilled_patch16_224", (224, 224)),
        ("vit_tiny_r_s16_p8_224", (224, 224)),
        ("vit_small_r26_s32_224", (224, 224)),
        ("mixer_s16_224", (224, 224)),
        ("mixer_b32_224", (224, 224)),
        ("sequencer2d_s", (224, 224)),
        ("swin_tiny_patch4_window7_224", (224, 224)),
        ("swinv2_tiny_window8_256", (256, 256)),
        ("swinv2_tiny_window16_256", (256, 256)),
        ("pvt_v2_b0", (224, 224)),
        ("pvt_v2_b0", (256, 192)),
        ("pvt_v2_b2_li", (224, 224)),
        ("pvt_v2_b2_li", (256, 192)),
        ("mvitv2_tiny", (224, 224)),
        ("mvitv2_small", (224, 224)),
        ("resnet18", (224, 224)),
        ("resnet50", (224, 224)),
    ],
)
def test_logits_and_features_equal_those_of_timm(name, size):
    reference, model = _published(name)
    images = torch.randn(2, 3, *size)
    assert_same(_run(model, images), _run(reference, images))


@pytest.mark.parametrize("name", ["efficientnet_b0", "tf_efficientnet_b0", "resnetv2_50x1_bit"])
def test_logits_at_the_native_size_equal_those_of_timm(name):
    reference, model = _published(name)
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        assert_same([model(images)], [reference(images)])


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((f"resnet{depth}", size) for depth in (34, 101, 152) for size in ((64, 64), (37, 53))),
        ("tf_efficientnet_b0", (37, 53)),
        ("tf_efficientnet_b1", (64, 80)),
        ("tf_efficientnet_b4", (75, 75)),
        ("efficientnet_b1", (37, 53)),
        ("efficientnet_b4", (64, 80)),
    ],
)
def test_logits_and_features_at_other_sizes_are_equal_in_float64(name, size):
    reference, model = (side.double() for side in _published(name))
    images = torch.randn(2, 3, *size).double()
    if model.config.family == "resnet":
        assert_same(_run(model, images), _run(reference, images), tolerance=1e-9, scale=math.inf)
    else:
        with torch.no_grad():
            assert (model(images) - reference(images)).abs().max() <= 1e-9


# Maps of 24x12, 12x6, 6x3 and 3x2 positions: many windows, and windows that cover an axis or all.
SMALL_SWIN = {
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
SMALL: dict[str, dict[str, Any]] = {
    "vit": {"image_size": (32, 48), "width": 24, "depth": 3, "num_heads": 3, "num_classes": 7},
    "mlp_mixer": {
        "patch_size": 4,
        "width": 24,
        "depth": 3,
        "token_hidden_dim": 12,
        "channel_hidden_dim": 60,
        "image_size": (16, 24),
        "num_classes": 7,
    },
    "sequencer2d": {
        "patch_sizes": (4, 2, 1),
        "widths": (12, 20, 28),
        "hidden_dims": (3, 5, 7),
        "depths": (1, 2, 1),
        "image_size": (32, 48),
        "num_classes": 7,
    },
    "swin": SMALL_SWIN,
    "swinv2": SMALL_SWIN,
    "pvtv2": {"widths": (8, 12, 15, 16), "num_heads": (1, 2, 3, 4), "num_classes": 7, "image_size": (64, 64)},
    "mvitv2": {"depths": (2, 1, 3), "width": 24, "num_classes": 7, "image_size": (64, 64)},
    "bit": {"depths": (1, 2, 1), "num_classes": 7, "image_size": (64, 64)},
}


def _small(name: str, **changes: Any) -> tuple[nn.Module, nn.Module]:
    """Return a small model of timm, and ours with its weights."""
    config: Any = MODELS[name].with_changes({**SMALL[MODELS[name].family], **changes})
    size, classes = config.image_size, config.num_classes
    if config.family == "vit":
        published = {"vit_b16": "vit_base_patch16_224", "deit_b16": "deit_base_patch16_224"}.get(
            name, "deit_base_distilled_patch16_224"
        )
        sizes = {"img_size": size, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 7}
        scaled = {} if config.layer_scale is None else {"init_values": config.layer_scale}
        reference = timm.create_model(published, **sizes, **scaled, dynamic_img_size=name == "vit_b16")
    elif config.family == "mlp_mixer":
        ratios = config.token_hidden_dim / config.width, config.channel_hidden_dim / config.width
        reference = MlpMixer(
            classes, img_size=size, patch_size=4, num_blocks=3, embed_dim=config.width, mlp_ratio=ratios
        )
    elif config.family == "sequencer2d":
        reference = Sequencer2d(
            classes,
            layers=config.depths,
            patch_sizes=config.patch_sizes,
            embed_dims=config.widths,
            hidden_sizes=config.hidden_dims,
            mlp_ratios=(3.0, 3.0, 3.0),
        )
    elif config.family in ("swin", "swinv2"):
        settings = {
            "img_size": size,
            "patch_size": config.patch_size,
            "num_classes": classes,
            "embed_dim": config.width,
            "depths": config.depths,
            "num_heads": config.num_heads,
            "window_size": config.window_size,
            "mlp_ratio": config.mlp_ratio,
            "drop_path_rate": 0.0,
        }
        if config.family == "swinv2":
            windows = config.trained_windows or (0,) * 4
            reference = SwinTransformerV2(**settings, pretrained_window_sizes=windows)
        else:
            reference = SwinTransformer(**settings)
    elif config.family == "pvtv2":
        reference = PyramidVisionTransformerV2(
            num_classes=classes,
            depths=config.depths,
            embed_dims=config.widths,
            num_heads=config.num_heads,
            sr_ratios=config.reductions,
            mlp_ratios=config.mlp_ratios,
            linear=config.pooled_keys is not None,
        )
    elif config.family == "mvitv2":
        architecture = MultiScaleVitCfg(
            depths=config.depths,
            embed_dim=config.width,
            num_heads=config.num_heads,
            expand_attn=config.expansion == "attention",
            stride_q=((1, 1), (2, 2), (2, 2)),
        )
        reference = MultiScaleVit(architecture, img_size=size, num_classes=classes)
    else:
        reference = ResNetV2(
            layers=config.depths,
            channels=(256, 512, 1024),
            num_classes=classes,
            width_factor=config.width // 64,
            stem_type="fixed",
            conv_layer=partial(StdConv2d, eps=1e-8),  # as the registered models have it
        )
    reference = _settle(reference, config.family, 64)
    return reference, build_ours("timm", config, reference)


GRADIENTS: dict[str, dict[str, Any]] = {
    "vit": {"rtol": 1e-3, "atol": 1e-4, "by_scale": True},
    "swin": {"rtol": 0, "atol": 1e-4, "by_scale": True},
    "swinv2": {"rtol": 0, "atol": 1e-4, "by_scale": True},
    "pvtv2": {"rtol": 1e-3, "atol": 1e-5},
    "bit": {"rtol": 1e-6, "atol": 1e-6},
    **{family: {"rtol": 1e-4, "atol": 1e-4} for family in ("mlp_mixer", "sequencer2d", "mvitv2")},
}
"""What gradients may differ by."""


@pytest.mark.parametrize(
    ("name", "changes", "size"),
    [
        *((name, {}, None) for name in ("vit_b16", "deit_b16_distilled", "mixer_b16", "sequencer2d_m")),
        ("deit_b16", {"layer_scale": 0.3}, None),  # as DeiT III has it
        ("sequencer2d_m", {}, (40, 24)),
        *((name, {}, None) for name in ("swin_s", "swin_l", "swinv2_b", "swinv2_b_w12to16")),
        *((name, {}, None) for theirs, name in NAMES.items() if theirs.startswith("pvt_v2")),
        *((name, {}, None) for name in ("mvitv2_b", "mvitv2_l")),
        *(("bit_r50x1", {"width": width}, size) for width in (64, 128) for size in ((64, 64), (37, 53))),
    ],
)
def test_logits_and_all_gradients_of_a_small_model_equal_those_of_timm(name, changes, size):
    reference, model = _small(name, **changes)
    assert_reversible("timm", model.config, reference.state_dict())
    if model.config.family == "swinv2":
        # A scale ends at 100. Not where windows are shifted: timm's masks subtract 100, which such a scale
        # can make up for, so that there the two differ.
        nn.init.constant_(reference.layers[0].blocks[0].attn.logit_scale[0], math.log(150))
        model = build_ours("timm", model.config, reference)
    images, target = torch.randn(2, 3, *(size or model.config.image_size)), torch.randn(2, 7)
    exact = model.config.family == "bit"
    if exact:
        reference, model, images, target = (each.double() for each in (reference, model, images, target))

    expected, logits = reference(images), model(images)
    (expected * target).sum().backward()
    (logits * target).sum().backward()

    assert_same([logits], [expected], tolerance=1e-9 if exact else 1e-4, scale=math.inf if exact else 3)
    if exact:
        assert_same(_run(model, images), _run(reference, images), tolerance=1e-9, scale=math.inf)
    assert_same_gradients("timm", model, reference, **GRADIENTS[model.config.family])


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "tf_efficientnet_b0"])
@pytest.mark.parametrize("training", [False, True])
def test_all_gradients_and_statistics_equal_those_of_timm(name, training):
    reference, model = (side.double().train(training) for side in _published(name))
    if name == "tf_efficientnet_b0":
        for norm in (module for module in reference.modules() if isinstance(module, nn.BatchNorm2d)):
            norm.momentum = model.config.norm_momentum  # timm keeps PyTorch's, the authors have another
        model.head.dropout.p = 0.0
        for block in (module for module in model.modules() if hasattr(module, "probability")):
            block.probability = 0.0
    images, target = torch.randn(3, 3, 64, 64).double(), torch.randn(3, 1000).double()

    expected, logits = reference(images), model(images)
    (expected * target).sum().backward()
    (logits * target).sum().backward()

    assert (logits - expected).abs().max() <= 1e-4
    assert_same_gradients("timm", model, reference, rtol=1e-6, atol=1e-6)
    wanted = to_ours(key_table("timm", model.config), reference.state_dict())
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, wanted[key], msg=key)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("vit_tiny_r_s16_p8_224", (96, 64)),
        ("vit_small_r26_s32_224", (96, 64)),
        ("vit_small_r26_s32_224", (75, 101)),
        ("vit_base_r50_s16_224", (75, 101)),
    ],
)
def test_logits_and_gradients_of_hybrids_at_another_size_equal_those_of_timm(name, size):
    changes = {"embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 7}
    reference = _settle(timm.create_model(name, img_size=size, **changes), "vit").double()
    ours = {"width": 24, "depth": 2, "num_heads": 3, "num_classes": 7, "image_size": size}
    model = build_ours("timm", MODELS[NAMES[name]].with_changes(ours), reference).double()
    assert_reversible("timm", model.config, reference.state_dict())
    images, target = torch.randn(2, 3, *size).double(), torch.randn(2, 7).double()

    expected, logits = reference(images), model(images)
    (expected * target).sum().backward()
    (logits * target).sum().backward()

    assert_same(
        [logits, model.tokens(images)], [expected, reference.forward_features(images)], tolerance=1e-9
    )
    assert_same_gradients("timm", model, reference, rtol=1e-6, atol=1e-6)


def test_gradients_of_swin_t_at_the_native_size_equal_those_of_timm():
    reference, model = _published("swin_tiny_patch4_window7_224")
    images = torch.randn(1, 3, 224, 224)
    for each in (model, reference):
        nn.functional.cross_entropy(each(images), torch.tensor([3])).backward()
    assert_same_gradients("timm", model, reference, **GRADIENTS["swin"])


def test_the_dilated_last_stage_equals_that_of_timm():
    reference, _ = _published("resnet50", output_stride=16)
    model = build_ours("timm", build("resnet50", dilated=True).config, reference)
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        assert model.features(images)[-1].shape[-2:] == (4, 6)
        assert (model(images) - reference(images)).abs().max() <= 1e-4


def test_positions_at_another_size_are_those_that_timm_resizes():
    reference, model = _small("vit_b16")
    images = torch.randn(2, 3, 80, 48)
    assert (model(images) - reference(images)).abs().max() <= 1e-4


@pytest.mark.parametrize("name", ["mvitv2_b", "mvitv2_l"])
@pytest.mark.parametrize("size", [(64, 56), (40, 64), (53, 37), (96, 75)])
def test_another_size_equals_timm_whose_tables_were_resized_to_it(name, size):
    reference, model = _small(name)
    resized_model = build(name, **{**SMALL["mvitv2"], "image_size": size})
    lengths = to_theirs(key_table("timm", model.config), resized_model.state_dict())
    for key, table in reference.state_dict().items():
        if "rel_pos" in key:  # as timm resizes those of a checkpoint
            resized = nn.functional.interpolate(table.T[None], size=len(lengths[key]), mode="linear")[0].T
            owner, _, attribute = key.rpartition(".")
            setattr(reference.get_submodule(owner), attribute, nn.Parameter(resized))

    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        assert (model(images) - reference(images)).abs().max() <= 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_every_published_name_is_of_a_model_with_the_tensors_of_ours(name):
    changes = {}
    if MODELS[NAMES[name]].family == "vit":
        pixels = int(name.rpartition("_")[2])
        changes["image_size"] = (pixels, pixels)
    with torch.device("meta"):
        reference = timm.create_model(name, num_classes=1000)
        assert_same_shapes("timm", reference, NAMES[name], **changes)
    config: Any = MODELS[NAMES[name]]
    if config.family == "vit":
        assert config.num_heads == reference.blocks[0].attn.num_heads
        assert config.norm_eps == reference.norm.eps
    if config.family == "efficientnet":
        assert reference.bn1.eps == config.norm_eps
        assert ("Same" in type(reference.conv_stem).__name__) == (config.padding == "same")


def test_every_variant_of_these_families_has_a_published_name():
    named = set(NAMES.values())
    for family in ("mvitv2", "resnet", "bit"):
        assert {key for key in MODELS if MODELS[key].family == family} <= named
    authors = {key for key in MODELS if key.startswith("efficientnet_") and not key.endswith("_symmetric")}
    assert {ours for theirs, ours in NAMES.items() if theirs.startswith("tf_")} == authors


@pytest.mark.parametrize("name", ["resnet18", "efficientnet_b0"])
def test_converting_there_and_back_changes_nothing(name):
    reference, model = _published(name)
    assert_reversible("timm", model.config, reference.state_dict())


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_tiny_r_s16_p8_224", "vit_small_r26_s32_224"])
def test_a_jax_file_of_ours_is_read_by_timm_as_the_same_model(name, tmp_path):
    """timm reads the JAX files too, by code of its own."""
    model = build(NAMES[name], num_classes=1000).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    arrays = export(model.state_dict(), source="jax", config=model.config)
    np.savez(tmp_path / "weights.npz", **{name: tensor.numpy() for name, tensor in arrays.items()})
    reference = timm.create_model(name).eval()
    reference.load_pretrained(str(tmp_path / "weights.npz"))
    images = torch.randn(2, 3, 224, 224)

    with torch.no_grad():
        expected = reference(images)
        torch.testing.assert_close(model(images), expected, rtol=0, atol=1e-4 * float(expected.abs().max()))
