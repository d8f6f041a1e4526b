"""Silenced heads add nothing to a token, and everything is as before afterwards."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from random_weights import randomise
from vitrail.core.errors import ConfigError
from vitrail.interpret.heads import silence_heads
from vitrail.models import build
from vitrail.nn.attention import MultiHeadAttention


class OneLayer(nn.Module):
    """Nothing but a layer of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.mixer = MultiHeadAttention(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mixer(x)


def test_a_silenced_head_is_one_whose_columns_are_zero() -> None:
    model, x = randomise(OneLayer()), torch.randn(2, 5, 12)
    expected = model(x)
    with torch.no_grad():
        weight = model.mixer.projection.weight
        kept = weight.clone()
        weight[:, 4:8] = 0  # head 1 of width 4
        without = model(x)
        weight.copy_(kept)

    with silence_heads(model, {"mixer": [1]}, queries=[3]):
        silenced = model(x)

    torch.testing.assert_close(silenced[:, 3], without[:, 3])
    others = [0, 1, 2, 4]
    assert torch.equal(silenced[:, others], expected[:, others])
    assert torch.equal(model(x), expected)


def test_with_all_heads_silent_only_the_bias_is_left() -> None:
    model, x = randomise(OneLayer()), torch.randn(2, 5, 12)
    with silence_heads(model, {"mixer": [0, 1, 2]}):
        silenced = model(x)

    torch.testing.assert_close(silenced[:, 0], model.mixer.projection.bias.expand(2, -1))


@pytest.mark.parametrize(
    ("heads", "message"),
    [({"blocks.9.mixer": [0]}, "blocks.9.mixer"), ({"blocks.0.mixer": [3]}, "numbers from 0 to 2")],
)
def test_layers_and_heads_that_are_not_there_are_refused(heads, message: str) -> None:
    model = build("vit_nano")
    with pytest.raises(ConfigError, match=message), silence_heads(model, heads):
        pass
    assert not any(module._forward_pre_hooks for module in model.modules()), "a hook was left"
