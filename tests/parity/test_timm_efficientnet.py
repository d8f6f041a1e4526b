"""EfficientNets compute what timm's do from the same weights, with either padding."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

from making.published_tables import key_table, published_names
from making.settled_norms import randomise_with_statistics
from vitrail.models import MODELS, build
from vitrail.models.weights.table import to_ours, to_theirs

entries = key_table("timm", "efficientnet")
NAMES = published_names("timm", "efficientnet")

TOLERANCE = 1e-4  # of logits of a scale of about one, in float32


def _pair(name: str) -> tuple[nn.Module, nn.Module]:
    reference = timm.create_model(name)
    randomise_with_statistics(reference, torch.randn(4, 3, 128, 128))
    model = build(NAMES[name]).eval()
    model.load_state_dict(to_ours(entries(model.config), reference.state_dict()))
    return reference, model


@pytest.mark.parametrize("name", ["efficientnet_b0", "tf_efficientnet_b0"])
def test_logits_at_the_native_size_equal_those_of_timm(name):
    reference, model = _pair(name)
    images = torch.randn(2, 3, 224, 224)

    with torch.no_grad():
        logits, expected = model(images), reference(images)

    assert 0.3 < expected.std() < 3
    assert (logits - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("tf_efficientnet_b0", (37, 53)),
        ("tf_efficientnet_b1", (64, 80)),
        ("tf_efficientnet_b4", (75, 75)),
        ("efficientnet_b1", (37, 53)),
        ("efficientnet_b4", (64, 80)),
    ],
)
def test_logits_at_other_sizes_equal_those_of_timm(name, size):
    reference, model = (side.double() for side in _pair(name))
    images = torch.randn(2, 3, *size).double()

    with torch.no_grad():
        assert (model(images) - reference(images)).abs().max() <= 1e-9


@pytest.mark.parametrize("training", [False, True])
def test_all_gradients_and_statistics_equal_those_of_timm(training):
    reference, model = (side.double().train(training) for side in _pair("tf_efficientnet_b0"))
    for norm in (module for module in reference.modules() if isinstance(module, nn.BatchNorm2d)):
        norm.momentum = model.config.norm_momentum  # timm keeps PyTorch's, the authors have another
    model.head.dropout.p = 0.0
    for block in (module for module in model.modules() if hasattr(module, "probability")):
        block.probability = 0.0
    images, target = torch.randn(3, 3, 64, 64).double(), torch.randn(3, 1000).double()

    (reference(images) * target).sum().backward()
    (model(images) * target).sum().backward()

    table = [entry for entry in entries(model.config) if "running" not in entry.ours[0]]
    table = [entry for entry in table if "num_batches" not in entry.ours[0]]
    theirs = to_ours(table, {key: value.grad for key, value in reference.named_parameters()})
    for key, parameter in model.named_parameters():
        assert theirs[key].abs().max() > 0, key
        torch.testing.assert_close(parameter.grad, theirs[key], rtol=1e-6, atol=1e-6, msg=key)
    buffers = to_ours(entries(model.config), reference.state_dict())
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, buffers[key], msg=key)


@pytest.mark.parametrize("name", NAMES)
def test_the_table_names_every_tensor_of_both_sides_and_the_epsilon_is_theirs(name):
    with torch.device("meta"):
        reference, model = timm.create_model(name, num_classes=1000), build(NAMES[name])
    ours = to_ours(entries(model.config), reference.state_dict())
    assert {key: value.shape for key, value in ours.items()} == {
        key: value.shape for key, value in model.state_dict().items()
    }
    assert to_theirs(entries(model.config), ours).keys() == reference.state_dict().keys()
    assert reference.bn1.eps == model.config.norm_eps
    assert ("Same" in type(reference.conv_stem).__name__) == (model.config.padding == "same")


def test_every_variant_of_the_authors_has_a_published_name():
    authors = {key for key in MODELS if key.startswith("efficientnet_") and not key.endswith("_symmetric")}
    assert {ours for theirs, ours in NAMES.items() if theirs.startswith("tf_")} == authors


def test_converting_there_and_back_changes_nothing():
    reference, model = _pair("efficientnet_b0")
    state = reference.state_dict()
    back = to_theirs(entries(model.config), to_ours(entries(model.config), state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[key], value) for key, value in state.items())
