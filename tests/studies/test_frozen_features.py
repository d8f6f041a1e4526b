"""Features of every family of image models: what the head reads."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from making.small_models import CHANGES, VIT
from vitrail.models import build
from vitrail.studies.probing import read_features

FAMILIES = {
    "vit": "vit_ti16",
    "mlp_mixer": "mixer_s16",
    "swin": "swin_t",
    "swinv2": "swinv2_t",
    "pvt": "pvt_t",
    "pvtv2": "pvtv2_b0",
    "mvitv2": "mvitv2_t",
    "sequencer2d": "sequencer2d_s",
    "resnet": "resnet50",
    "bit": "bit_r50x1",
    "efficientnet": "efficientnet_b0",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_makes_the_logits_of_the_features(family: str) -> None:
    model = build(FAMILIES[family], **CHANGES[family]).eval()
    images = torch.randn(2, 3, 32, 40)

    with torch.inference_mode():
        features, logits = read_features(model, images), model(images)
        head: nn.Module = model.head
        assert torch.allclose(head(features), logits, atol=1e-5)
    assert features.shape[0] == 2
    assert not head._forward_pre_hooks


def test_both_tokens_of_a_distilled_model_are_read() -> None:
    model = build("deit_ti16_distilled", **VIT).eval()
    images = torch.randn(2, 3, 16, 24)

    with torch.inference_mode():
        tokens, features = model.tokens(images), read_features(model, images)

    assert torch.allclose(features, tokens[:, :2].flatten(1))
