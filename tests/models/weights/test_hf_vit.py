"""ViT and DeiT compute what those of transformers do from the same weights."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn

from making.published_tables import key_table, published_names
from vitrail.models import MODELS, build
from vitrail.models.weights.table import to_ours, to_theirs

entries = key_table("hf", "vit")
NAMES = published_names("hf", "vit")

THEIR_EPS = 1e-12  # the default of transformers, and of its published ViTs


def _reference(name: str, image_size: tuple[int, int], **changes: int) -> nn.Module:
    """Return a model with every parameter drawn so that logits are of scale one."""
    settings = MODELS[name]
    sizes = {"width": settings.width, "depth": settings.depth, "num_heads": settings.num_heads, **changes}
    plain = {
        "hidden_size": sizes["width"],
        "num_hidden_layers": sizes["depth"],
        "num_attention_heads": sizes["num_heads"],
        "intermediate_size": 4 * sizes["width"],
        "image_size": image_size,
        "patch_size": settings.patch_size,
        "num_labels": 7,
    }
    reference = (
        transformers.DeiTForImageClassificationWithTeacher(transformers.DeiTConfig(**plain))
        if settings.distilled
        else transformers.ViTForImageClassification(transformers.ViTConfig(**plain))
    )
    for key, parameter in reference.named_parameters():
        if "layernorm" in key and key.endswith("weight"):
            nn.init.normal_(parameter, mean=1.0, std=0.2)
        elif parameter.ndim > 1 and "token" not in key and "position" not in key:
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
        else:
            nn.init.normal_(parameter, std=0.2)
    return reference.eval()


@pytest.mark.parametrize("norm_eps", [THEIR_EPS, 1e-6])
@pytest.mark.parametrize("name", ["vit_b16", "deit_b16_distilled"])
def test_logits_of_a_small_model_equal_those_of_transformers(name, norm_eps):
    changes = {"width": 48, "depth": 3, "num_heads": 3}
    reference = _reference(name, (32, 48), **changes)
    model = build(name, **changes, image_size=(32, 48), num_classes=7, norm_eps=norm_eps).eval()
    state = reference.state_dict()
    model.load_state_dict(to_ours(entries(model.config), state))
    images = torch.randn(2, 3, 32, 48)

    expected = reference(images).logits

    assert 0.3 < expected.std() < 3
    assert (model(images) - expected).abs().max() <= 1e-4
    again = to_theirs(entries(model.config), model.state_dict())
    assert again.keys() == state.keys()
    assert all(torch.equal(again[key], tensor) for key, tensor in state.items())


@pytest.mark.parametrize("name", ["vit_ti16", "deit_ti16_distilled"])
def test_logits_of_a_published_model_equal_those_of_transformers(name):
    reference = _reference(name, (224, 224))
    model = build(name, num_classes=7, norm_eps=THEIR_EPS).eval()
    model.load_state_dict(to_ours(entries(model.config), reference.state_dict()))
    images = torch.randn(1, 3, 224, 224)

    with torch.no_grad():
        expected, logits = reference(images).logits, model(images)

    assert (logits - expected).abs().max() <= 1e-4


def test_every_published_name_is_of_a_variant_with_that_patch_and_kind():
    for name, variant in NAMES.items():
        config = MODELS[variant]
        assert f"-patch{config.patch_size}-" in name
        assert config.distilled == ("-distilled-" in name)
