"""The ViT computes what torchvision's does from the same weights."""

from __future__ import annotations

import pytest
import torch
import torchvision
from torch import nn

from making.published_tables import key_table, published_names
from vitrail.models import build
from vitrail.models.weights.table import to_ours, to_theirs

entries = key_table("torchvision", "vit")
NAMES = published_names("torchvision", "vit")


def _randomised(reference: nn.Module) -> nn.Module:
    """Draw every parameter; matrices keep the scale of what they are given, so logits are of scale one."""
    for name, parameter in reference.named_parameters():
        if ("ln" in name) and name.endswith("weight"):
            nn.init.normal_(parameter, mean=1.0, std=0.2)
        elif parameter.ndim > 1 and "token" not in name and "pos_embedding" not in name:
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
        else:
            nn.init.normal_(parameter, std=0.2)
    return reference.eval()


@pytest.mark.parametrize(("image_size", "patch_size"), [(48, 16), (224, 32)])
def test_logits_equal_those_of_torchvision(image_size, patch_size):
    sizes = {"image_size": image_size, "patch_size": patch_size, "num_heads": 3}
    reference = _randomised(
        torchvision.models.VisionTransformer(**sizes, num_layers=3, hidden_dim=48, mlp_dim=192, num_classes=7)
    )
    changes = {**sizes, "image_size": (image_size, image_size), "width": 48, "depth": 3, "num_classes": 7}
    model = build("vit_b16", **changes).eval()
    state = reference.state_dict()
    model.load_state_dict(to_ours(entries(model.config), state))
    images = torch.randn(2, 3, image_size, image_size)

    expected = reference(images)

    assert 0.3 < expected.std() < 3
    assert (model(images) - expected).abs().max() <= 1e-4
    again = to_theirs(entries(model.config), model.state_dict())
    assert again.keys() == state.keys()
    assert all(torch.equal(again[key], tensor) for key, tensor in state.items())


def test_logits_of_the_published_architecture_equal_those_of_torchvision():
    reference = _randomised(torchvision.models.vit_b_32())
    model = build("vit_b32").eval()
    model.load_state_dict(to_ours(entries(model.config), reference.state_dict()))
    images = torch.randn(1, 3, 224, 224)

    with torch.no_grad():
        expected, logits = reference(images), model(images)

    assert 0.3 < expected.std() < 3
    assert (logits - expected).abs().max() <= 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_of_a_model_with_the_tensors_of_ours(name):
    with torch.device("meta"):
        reference, model = getattr(torchvision.models, name)(), build(NAMES[name])

    theirs = to_theirs(entries(model.config), model.state_dict())

    shapes = {key: tensor.shape for key, tensor in reference.state_dict().items()}
    assert {key: tensor.shape for key, tensor in theirs.items()} == shapes
    assert model.config.num_heads == reference.encoder.layers[0].num_heads
