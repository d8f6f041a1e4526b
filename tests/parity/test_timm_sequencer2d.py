"""Sequencer2Ds compute what timm's do from the same weights, forward and backward."""

from __future__ import annotations

import pytest
import timm
import torch
from timm.models.sequencer import Sequencer2d
from torch import nn

from making.published_tables import key_table, published_names
from vitrail.models import build
from vitrail.models.weights.table import to_ours, to_theirs

entries = key_table("timm", "sequencer2d")
NAMES = published_names("timm", "sequencer2d")

SMALL = {
    "patch_sizes": (4, 2, 1),
    "widths": (12, 20, 28),
    "hidden_dims": (3, 5, 7),
    "depths": (1, 2, 1),
    "image_size": (32, 48),
    "num_classes": 7,
}


def _randomised(reference: nn.Module) -> nn.Module:
    for name, parameter in reference.named_parameters():
        if "norm" in name and name.endswith("weight"):
            nn.init.normal_(parameter, mean=1.0, std=0.1)
        elif parameter.ndim > 1:
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
        else:
            nn.init.normal_(parameter, std=0.1)
    # The mean over the cells shrinks what the head reads; keep the logits near one.
    nn.init.normal_(reference.head.fc.weight, std=3 * reference.head.fc.in_features**-0.5)
    return reference.eval()


def _small() -> nn.Module:
    return _randomised(
        Sequencer2d(
            7,
            layers=SMALL["depths"],
            patch_sizes=SMALL["patch_sizes"],
            embed_dims=SMALL["widths"],
            hidden_sizes=SMALL["hidden_dims"],
            mlp_ratios=(3.0, 3.0, 3.0),
        )
    )


def test_logits_and_features_at_the_native_size_equal_those_of_timm():
    reference, model = _randomised(timm.create_model("sequencer2d_s")), build("sequencer2d_s").eval()
    model.load_state_dict(to_ours(entries(model.config), reference.state_dict()))
    images = torch.randn(2, 3, 224, 224)

    with torch.no_grad():
        logits, features = model(images), model.features(images)
        expected, expected_features = reference(images), reference.forward_intermediates(images)[1]

    assert 0.3 < expected.std() < 3
    assert (logits - expected).abs().max() <= 1e-4
    assert [stage.shape for stage in features] == [stage.shape for stage in expected_features]
    for stage, expected_stage in zip(features, expected_features, strict=True):
        torch.testing.assert_close(stage, expected_stage, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [(32, 48), (40, 24)])
def test_logits_and_all_gradients_of_a_small_model_equal_those_of_timm(size):
    reference, model = _small(), build("sequencer2d_m", **SMALL).eval()
    model.load_state_dict(to_ours(entries(model.config), reference.state_dict()))
    images, target = torch.randn(2, 3, *size), torch.randn(2, 7)

    expected, logits = reference(images), model(images)
    (expected * target).sum().backward()
    (logits * target).sum().backward()

    assert expected.std() > 0.3
    assert (logits - expected).abs().max() <= 1e-4
    theirs = to_ours(entries(model.config), {key: value.grad for key, value in reference.named_parameters()})
    for key, parameter in model.named_parameters():
        assert theirs[key].abs().max() > 0, key
        torch.testing.assert_close(parameter.grad, theirs[key], rtol=1e-4, atol=1e-4, msg=key)


@pytest.mark.parametrize("name", NAMES)
def test_the_table_names_every_tensor_of_both_sides(name):
    with torch.device("meta"):
        reference, model = timm.create_model(name), build(NAMES[name])
    ours = to_ours(entries(model.config), reference.state_dict())
    assert {key: value.shape for key, value in ours.items()} == {
        key: value.shape for key, value in model.state_dict().items()
    }


def test_weights_go_to_our_names_and_back_unchanged():
    state, config = _small().state_dict(), build("sequencer2d_s", **SMALL).config
    back = to_theirs(entries(config), to_ours(entries(config), state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[key], value) for key, value in state.items())
