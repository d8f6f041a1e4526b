"""MLP-Mixers compute what timm's do from the same weights, forward and backward."""

from __future__ import annotations

import pytest
import timm
import torch
from timm.models.mlp_mixer import MlpMixer
from torch import nn

from making.published_tables import key_table, published_names
from vitrail.models import build
from vitrail.models.weights.table import to_ours, to_theirs

entries = key_table("timm", "mlp_mixer")
NAMES = published_names("timm", "mlp_mixer")

SMALL = {"patch_size": 4, "width": 24, "depth": 3, "token_hidden_dim": 12, "channel_hidden_dim": 60}


def _randomised(reference: nn.Module) -> nn.Module:
    for name, parameter in reference.named_parameters():
        if "norm" in name and name.endswith("weight"):
            nn.init.normal_(parameter, mean=1.0, std=0.1)
        elif parameter.ndim > 1:
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
        else:
            nn.init.normal_(parameter, std=0.1)
    # The mean over the cells shrinks what the head reads; keep the logits near one.
    nn.init.normal_(reference.head.weight, std=3 * reference.head.in_features**-0.5)
    return reference.eval()


@pytest.mark.parametrize("name", ["mixer_s16_224", "mixer_b32_224"])
def test_logits_at_the_native_size_equal_those_of_timm(name):
    reference, model = _randomised(timm.create_model(name)), build(NAMES[name]).eval()
    model.load_state_dict(to_ours(entries(model.config), reference.state_dict()))
    images = torch.randn(2, 3, 224, 224)

    with torch.no_grad():
        logits, expected = model(images), reference(images)
        tokens, expected_tokens = model.tokens(images), reference.forward_features(images)

    assert 0.3 < expected.std() < 3
    assert (logits - expected).abs().max() <= 1e-4
    torch.testing.assert_close(tokens, expected_tokens, rtol=1e-4, atol=1e-4)


def test_logits_and_all_gradients_of_a_small_model_equal_those_of_timm():
    reference = _randomised(
        MlpMixer(7, img_size=(16, 24), patch_size=4, num_blocks=3, embed_dim=24, mlp_ratio=(0.5, 2.5))
    )
    model = build("mixer_b16", image_size=(16, 24), num_classes=7, **SMALL).eval()
    model.load_state_dict(to_ours(entries(model.config), reference.state_dict()))
    images, target = torch.randn(2, 3, 16, 24), torch.randn(2, 7)

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
    state = _randomised(timm.create_model("mixer_s32_224")).state_dict()
    config = build(NAMES["mixer_s32_224"]).config
    back = to_theirs(entries(config), to_ours(entries(config), state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[key], value) for key, value in state.items())
