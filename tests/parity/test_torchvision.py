"""Image models compute what torchvision's do from the same weights, also as a detector's backbone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchvision
from torch import nn
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2
from torchvision.ops import FrozenBatchNorm2d

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
from vitrail.models import MODELS, build
from vitrail.models.weights.conversion import SOURCES
from vitrail.models.weights.table import to_ours, to_theirs

NAMES = SOURCES["torchvision"].names


def _published(name: str) -> tuple[nn.Module, nn.Module]:
    """Return a published architecture and ours, with the same weights."""
    torch.manual_seed(7)
    config: Any = MODELS[NAMES[name]]
    reference = torchvision.models.get_model(name)
    if config.family in ("resnet", "efficientnet"):
        randomise_with_statistics(reference, torch.randn(4, 3, 128, 128))
    else:
        _randomise(reference)
    return reference, build_ours("torchvision", config, reference)


def _randomise(reference: nn.Module) -> nn.Module:
    for name, parameter in randomise(reference).named_parameters():
        if ".ln" in name and name.endswith("weight"):  # a norm, by another name
            nn.init.normal_(parameter, mean=1.0, std=0.2)
        elif name.endswith("pos_embedding"):
            nn.init.normal_(parameter, std=0.2)
    return reference


@pytest.mark.parametrize(
    "name", ["vit_b_32", "swin_t", "swin_v2_t", "resnet18", "resnet50", "efficientnet_b0"]
)
def test_logits_at_the_native_size_equal_those_of_torchvision(name):
    reference, model = _published(name)
    images = torch.randn(2, 3, *model.config.image_size)
    with torch.no_grad():
        assert_same([model(images)], [reference(images)])
    if model.config.family in ("resnet", "efficientnet"):
        assert_reversible("torchvision", model.config, reference.state_dict())


@pytest.mark.parametrize("name", ["efficientnet_b2", "efficientnet_b5"])
def test_logits_at_another_size_equal_those_of_torchvision(name):
    reference, model = (side.double() for side in _published(name))
    images = torch.randn(2, 3, 37, 53).double()
    with torch.no_grad():
        assert (model(images) - reference(images)).abs().max() <= 1e-9


@pytest.mark.parametrize(("image_size", "patch_size"), [(48, 16), (224, 32)])
def test_logits_of_a_small_vit_equal_those_of_torchvision(image_size, patch_size):
    sizes = {"image_size": image_size, "patch_size": patch_size, "num_heads": 3}
    reference = _randomise(
        torchvision.models.VisionTransformer(**sizes, num_layers=3, hidden_dim=48, mlp_dim=192, num_classes=7)
    ).eval()
    changes = {**sizes, "image_size": (image_size, image_size), "width": 48, "depth": 3, "num_classes": 7}
    model = build_ours("torchvision", build("vit_b16", **changes).config, reference)
    images = torch.randn(2, 3, image_size, image_size)
    assert_same([model(images)], [reference(images)])
    assert_reversible("torchvision", model.config, reference.state_dict())


# Maps of 24x12, 12x6 and 6x3 positions: many windows, and windows that cover an axis.
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


@pytest.mark.parametrize("name", ["swin_s", "swin_b", "swinv2_s", "swinv2_b"])
def test_logits_of_a_shrunken_swin_equal_those_of_torchvision(name):
    config: Any = MODELS[name].with_changes(SHRUNKEN)
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
    model = build_ours("torchvision", config, randomise(reference))
    images = torch.randn(2, 3, 48, 24)
    with torch.no_grad():
        assert_same([model(images)], [reference(images)])

    state, ignored = reference.state_dict(), SOURCES["torchvision"].ignored[config.family]
    for key, tensor in state.items():
        if config.family == "swinv2" and key.endswith("qkv.bias"):
            tensor.unflatten(0, (3, -1))[1] = 0  # never used, so that nothing keeps it
    table = key_table("torchvision", config)
    back = to_theirs(table, to_ours(table, state, ignored=ignored))
    assert back.keys() == {key for key in state if not key.endswith(ignored)}
    assert all(torch.equal(value, state[key]) for key, value in back.items())


@pytest.mark.parametrize("name", sorted(published_names("torchvision", "swin", "swinv2")))
def test_the_parameters_are_torchvisions_but_for_the_unused_bias_of_the_keys(name):
    with torch.device("meta"):
        reference, model = torchvision.models.get_model(name), MODELS[NAMES[name]].build()
    config = model.config
    widths = [config.width * 2**stage for stage in range(len(config.depths))]
    unused = sum(width * depth for width, depth in zip(widths, config.depths, strict=True))
    expected = sum(p.numel() for p in reference.parameters()) - (unused if config.family == "swinv2" else 0)
    assert sum(p.numel() for p in model.parameters()) == expected


@pytest.mark.parametrize("name", published_names("torchvision", "vit", "efficientnet"))
def test_every_name_is_of_a_model_with_the_tensors_of_ours(name):
    with torch.device("meta"):
        reference = torchvision.models.get_model(name)
        assert_same_shapes("torchvision", reference, NAMES[name])
    config: Any = MODELS[NAMES[name]]
    if config.family == "vit":
        assert config.num_heads == reference.encoder.layers[0].num_heads
    else:
        assert reference.features[0][1].eps == config.norm_eps


@pytest.mark.parametrize("dilated", [False, True])
def test_the_frozen_backbone_equals_that_of_the_published_detector(dilated):
    # Carion et al. 2020, published code: this backbone, with the last stage dilated for "DC5"
    reference = torchvision.models.resnet50(
        replace_stride_with_dilation=[False, False, dilated], norm_layer=FrozenBatchNorm2d
    )
    state = _published("resnet50")[0].state_dict()
    reference.load_state_dict({key: value for key, value in state.items() if "num_batches" not in key})
    stages = IntermediateLayerGetter(reference, {f"layer{number}": str(number) for number in range(1, 5)})
    config = build("resnet50", norm="frozen", dilated=dilated).config
    model = build_ours("torchvision", config, reference).train()  # frozen in training, too
    images = torch.randn(2, 3, 75, 106).double()
    stages, model = stages.double(), model.double()

    expected = list(stages(images).values())
    features = model.features(images)
    features[-1].square().mean().backward()
    expected[-1].square().mean().backward()

    for stage, expected_stage in zip(features, expected, strict=True):
        torch.testing.assert_close(stage, expected_stage, rtol=1e-9, atol=1e-9)
    gradient, expected_gradient = model.stem.first.weight.grad.movedim(-1, 1), reference.conv1.weight.grad
    assert (gradient - expected_gradient).norm() <= 1e-9 * expected_gradient.norm()


def test_weights_with_counted_batches_become_a_frozen_backbone():
    reference, _ = _published("resnet18")
    model = build_ours("torchvision", build("resnet18", norm="frozen").config, reference)
    assert torch.equal(model.stem.first.norm.running_var, reference.state_dict()["bn1.running_var"])
