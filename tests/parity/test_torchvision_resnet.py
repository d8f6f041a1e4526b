"""Residual networks compute what torchvision's do from the same weights, also as a detector's backbone."""

from __future__ import annotations

import pytest
import torch
import torchvision
from torch import nn
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.ops import FrozenBatchNorm2d

from making.published_tables import key_table, published_names
from making.settled_norms import randomise_with_statistics
from vitrail.models import build
from vitrail.models.weights.conversion import SOURCES
from vitrail.models.weights.table import to_ours, to_theirs

entries = key_table("torchvision", "resnet")
NAMES = published_names("torchvision", "resnet")

TOLERANCE = 1e-4  # of logits of a scale of about one, in float32


def _reference(name: str) -> nn.Module:
    return randomise_with_statistics(torchvision.models.get_model(name), torch.randn(4, 3, 128, 128))


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_logits_equal_those_of_torchvision(name):
    reference, model = _reference(name), build(NAMES[name]).eval()
    state, table = reference.state_dict(), list(entries(model.config))
    model.load_state_dict(to_ours(table, state))
    images = torch.randn(2, 3, 224, 224)

    with torch.no_grad():
        logits, expected = model(images), reference(images)

    assert 0.3 < expected.std() < 3
    assert (logits - expected).abs().max() <= TOLERANCE
    back = to_theirs(table, to_ours(table, state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[key], value) for key, value in state.items())


@pytest.mark.parametrize("dilated", [False, True])
def test_the_frozen_backbone_equals_that_of_the_published_detector(dilated):
    # Carion et al. 2020, published code: this backbone, with the last stage dilated for "DC5"
    reference = torchvision.models.resnet50(
        replace_stride_with_dilation=[False, False, dilated], norm_layer=FrozenBatchNorm2d
    )
    reference.load_state_dict(
        {key: value for key, value in _reference("resnet50").state_dict().items() if "num_batches" not in key}
    )
    stages = IntermediateLayerGetter(reference, {f"layer{number}": str(number) for number in range(1, 5)})
    model = build("resnet50", norm="frozen", dilated=dilated).train()  # frozen in training, too
    model.load_state_dict(to_ours(entries(model.config), reference.state_dict()))
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
    state = _reference("resnet18").state_dict()
    model = build("resnet18", norm="frozen")
    ignored = SOURCES["torchvision"].ignored["resnet"]
    model.load_state_dict(to_ours(entries(model.config), state, ignored=ignored))
    assert torch.equal(model.stem.first.norm.running_var, state["bn1.running_var"])
