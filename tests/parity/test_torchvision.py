"""Image models compute what torchvision's do from the same weights, also as a detector's backbone."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torchvision
from torch import nn
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2
from torchvision.models.video.mvit import MSBlockConfig, MViT
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


# The authors' names by those of torchvision's MViT, whose video of one frame is an image.
MVIT_NAMES = {
    r"^conv_proj\.": "patch_embed.proj.",
    r"^head\.1\.": "head.projection.",
    r"attn\.pool_(.)\.pool\.": r"attn.pool_\1.",
    r"attn\.pool_(.)\.norm_act\.0\.": r"attn.norm_\1.",
    r"attn\.project\.0\.": "attn.proj.",
    r"\.project\.": ".proj.",
    r"mlp\.0\.": "mlp.fc1.",
    r"mlp\.3\.": "mlp.fc2.",
}


@pytest.mark.parametrize("depths", [(1, 2, 3), (2, 1, 2)])
def test_mvit_is_that_of_torchvision_for_videos_of_one_frame(depths):
    size, width = (48, 80), 24
    config: Any = MODELS["mvit_b16"].with_changes(
        {"depths": depths, "width": width, "num_classes": 7, "image_size": size, "drop_path": 0.0}
    )
    reference = _mvit_of_torchvision(depths, width, size)
    model = config.build().eval()
    table = key_table("slowfast", config)
    model.load_state_dict(to_ours(table, _names_of_the_authors(reference)))

    images = torch.randn(2, 3, *size, requires_grad=True)
    frames = images.detach().clone().requires_grad_()
    expected, logits = reference(frames), model(images)
    assert_same([logits], [expected])
    target = torch.randn(2, 7)
    (expected * target).sum().backward()
    (logits * target).sum().backward()
    torch.testing.assert_close(images.grad, frames.grad, rtol=1e-4, atol=1e-4)
    back = to_theirs(table, model.state_dict())
    assert all(torch.equal(back[name], each) for name, each in _names_of_the_authors(reference).items())


@pytest.mark.parametrize("name", ["mvit_b16", "mvit_b24", "mvit_b24_wide"])
def test_mvit_of_the_published_sizes_has_the_tensors_of_torchvisions(name):
    config: Any = MODELS[name]
    with torch.device("meta"):
        reference = _mvit_of_torchvision(config.depths, config.width, config.image_size, num_classes=1000)
        ours = to_ours(key_table("slowfast", config), _names_of_the_authors(reference))
        expected = config.build().state_dict()
    assert {key: each.shape for key, each in ours.items()} == {
        key: each.shape for key, each in expected.items()
    }


def _mvit_of_torchvision(
    depths: tuple[int, ...], width: int, size: tuple[int, int], num_classes: int = 7
) -> nn.Module:
    blocks = []
    for stage, depth in enumerate(depths):
        for index in range(depth):
            dim, is_last = width * 2**stage, index == depth - 1 and stage < len(depths) - 1
            is_pooled, stride = stage > 0 and index == 0, max(4 // 2**stage, 1)
            blocks.append(
                MSBlockConfig(
                    num_heads=2**stage,
                    input_channels=dim,
                    output_channels=2 * dim if is_last else dim,
                    kernel_q=[1, 3, 3] if is_pooled else [],
                    kernel_kv=[1, 3, 3],
                    stride_q=[1, 2, 2] if is_pooled else [],
                    stride_kv=[1, stride, stride],
                )
            )
    return randomise(
        MViT(
            size,
            1,
            blocks,
            residual_pool=False,
            residual_with_cls_embed=False,
            rel_pos_embed=False,
            proj_after_attn=False,
            num_classes=num_classes,
            patch_embed_kernel=(1, 7, 7),
            patch_embed_stride=(1, 4, 4),
            patch_embed_padding=(0, 3, 3),
        )
    )


def _names_of_the_authors(reference: nn.Module) -> dict[str, torch.Tensor]:
    """Return its tensors under the authors' names, who have one table of positions for images."""
    state = dict(reference.state_dict())
    positions = [state.pop(f"pos_encoding.{part}_pos") for part in ("class", "spatial", "temporal")]
    state["pos_embed"] = torch.cat((positions[0][None], positions[1] + positions[2]))[None]
    state["cls_token"] = state.pop("pos_encoding.class_token")[None, None]
    state["conv_proj.weight"] = state["conv_proj.weight"][:, :, 0]
    for pattern, replacement in MVIT_NAMES.items():
        state = {re.sub(pattern, replacement, name): each for name, each in state.items()}
    return state
