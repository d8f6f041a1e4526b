"""ViT and DeiT compute what timm's do from the same weights, forward and backward."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

from making.published_tables import key_table, published_names
from vitrail.models import build
from vitrail.models.weights.table import to_ours, to_theirs

entries = key_table("timm", "vit")
NAMES = published_names("timm", "vit")

SMALL_IN_TIMM = {"img_size": (32, 48), "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 7}
SMALL_IN_OURS = {"image_size": (32, 48), "width": 24, "depth": 3, "num_heads": 3, "num_classes": 7}


def _randomised(reference: nn.Module) -> nn.Module:
    """Draw every parameter; matrices keep the scale of what they are given, so logits are of scale one."""
    for name, parameter in reference.named_parameters():
        if "norm" in name and name.endswith("weight"):
            nn.init.normal_(parameter, mean=1.0, std=0.2)
        elif parameter.ndim > 1 and "token" not in name and "pos_embed" not in name:
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
        else:
            nn.init.normal_(parameter, std=0.2)
    return reference.eval()


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"])
def test_logits_and_tokens_at_the_native_size_equal_those_of_timm(name):
    reference, model = _randomised(timm.create_model(name)), build(NAMES[name]).eval()
    model.load_state_dict(to_ours(entries(model.config), reference.state_dict()))
    images = torch.randn(2, 3, 224, 224)

    with torch.no_grad():
        expected, logits = reference(images), model(images)
        tokens, expected_tokens = model.tokens(images), reference.forward_features(images)

    assert 0.3 < expected.std() < 3
    assert (logits - expected).abs().max() <= 1e-4
    assert (tokens - expected_tokens).abs().max() <= 1e-4


@pytest.mark.parametrize("name", ["vit_base_patch16_224", "deit_base_distilled_patch16_224", "deit3"])
def test_logits_and_all_gradients_of_a_small_model_equal_those_of_timm(name):
    scaled = {"init_values": 0.3} if name == "deit3" else {}
    published = "deit_base_patch16_224" if name == "deit3" else name
    reference = _randomised(timm.create_model(published, **SMALL_IN_TIMM, **scaled))
    model = build(NAMES[published], **SMALL_IN_OURS, layer_scale=scaled.get("init_values")).eval()
    model.load_state_dict(to_ours(entries(model.config), reference.state_dict()))
    images, target = torch.randn(2, 3, 32, 48), torch.randn(2, 7)

    expected, logits = reference(images), model(images)
    (expected * target).sum().backward()
    (logits * target).sum().backward()

    assert 0.3 < expected.std() < 3
    assert (logits - expected).abs().max() <= 1e-4
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    theirs = to_theirs(entries(model.config), gradients)
    wanted = {name: parameter.grad for name, parameter in reference.named_parameters()}
    assert theirs.keys() == wanted.keys()
    for key, gradient in wanted.items():
        torch.testing.assert_close(theirs[key], gradient, rtol=1e-3, atol=1e-4 * float(gradient.abs().max()))


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_of_a_model_with_the_tensors_of_ours(name):
    size = int(name.rpartition("_")[2])
    with torch.device("meta"):
        reference = timm.create_model(name, num_classes=1000)
        model = build(NAMES[name], image_size=(size, size))

    theirs = to_theirs(entries(model.config), model.state_dict())

    shapes = {key: tensor.shape for key, tensor in reference.state_dict().items()}
    assert {key: tensor.shape for key, tensor in theirs.items()} == shapes
    assert len(model.blocks) == len(reference.blocks)
    assert model.config.num_heads == reference.blocks[0].attn.num_heads
    assert model.config.norm_eps == reference.norm.eps


def test_the_table_is_undone_by_its_reverse():
    state = _randomised(timm.create_model("deit_base_distilled_patch16_224", **SMALL_IN_TIMM)).state_dict()
    config = build("deit_b16_distilled", **SMALL_IN_OURS).config
    again = to_theirs(entries(config), to_ours(entries(config), state))
    assert again.keys() == state.keys()
    assert all(torch.equal(again[key], tensor) for key, tensor in state.items())


def test_positions_at_another_size_are_those_that_timm_resizes():
    reference = _randomised(timm.create_model("vit_base_patch16_224", **SMALL_IN_TIMM, dynamic_img_size=True))
    model = build("vit_b16", **SMALL_IN_OURS).eval()
    model.load_state_dict(to_ours(entries(model.config), reference.state_dict()))
    images = torch.randn(2, 3, 80, 48)
    assert (model(images) - reference(images)).abs().max() <= 1e-4
