"""Accelerated models compute what plain ones do, forward and backward, under the same names."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from making.small_models import shrink, small_configs
from vitrail.engines.cpu import accelerate
from vitrail.engines.cpu.linear import FastLinear
from vitrail.interpret import record_attention
from vitrail.models.contract import (
    CaptionModelConfig,
    DetectionModelConfig,
    ImageModelConfig,
    LabellingModelConfig,
    ModelConfig,
    TranslationModelConfig,
)

CONFIGS = small_configs()


def _forward(config: ModelConfig) -> Callable[[nn.Module], Tensor]:
    """Return what computes one number for each output of a model, of the same inputs at each call."""
    generator = torch.Generator().manual_seed(7)
    if isinstance(config, TranslationModelConfig):
        source, target = (torch.randint(3, 9, (3, length), generator=generator) for length in (7, 5))
        lengths = torch.tensor([7, 5, 6])
        return lambda model: model(source, lengths, target)
    if isinstance(config, LabellingModelConfig):
        tokens = torch.randint(3, 9, (3, 7), generator=generator)
        return lambda model: model(tokens, torch.tensor([7, 5, 6]))
    size = (48, 64) if isinstance(config, DetectionModelConfig) else (16, 24)
    images = torch.randn(3, 3, *size, generator=generator)
    if isinstance(config, DetectionModelConfig):
        return lambda model: torch.cat([each.float().flatten() for each in model(images)[:2]])
    if isinstance(config, CaptionModelConfig):
        captions = torch.randint(3, 9, (3, 2, 5), generator=generator)
        return lambda model: model(images, captions).logits
    assert isinstance(config, ImageModelConfig)
    return lambda model: model(images)


@pytest.fixture(params=sorted(CONFIGS))
def config(request: pytest.FixtureRequest) -> ModelConfig:
    return CONFIGS[request.param]


def test_plain_and_accelerated_models_agree_forward_and_backward(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.engines.cpu.linear.MIN_ONEDNN_PRODUCT", 0)  # small products, too
    monkeypatch.setattr("vitrail.engines.cpu.linear.MKL_IS_FAST", False)
    torch.manual_seed(3)
    plain, forward = config.build().eval(), _forward(config)
    fast = accelerate(copy.deepcopy(plain))

    assert list(fast.state_dict()) == list(plain.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(forward(fast), forward(plain), rtol=1e-4, atol=1e-5)
    results = [(model, forward(model)) for model in (plain, fast)]
    torch.testing.assert_close(results[1][1], results[0][1], rtol=1e-4, atol=1e-5)
    for _, result in results:
        result.float().square().mean().backward()
    for (name, wanted), parameter in zip(plain.named_parameters(), fast.parameters(), strict=True):
        assert (wanted.grad is None) == (parameter.grad is None), name
        if wanted.grad is not None:
            scale = wanted.grad.abs().max().item()
            torch.testing.assert_close(
                parameter.grad, wanted.grad, rtol=1e-3, atol=1e-4 * max(scale, 1e-3), msg=name
            )


def test_accelerating_twice_changes_nothing() -> None:
    model = accelerate(shrink("vit_ti16").build())
    kinds = [type(each) for each in model.modules()]
    assert FastLinear in kinds
    assert [type(each) for each in accelerate(model).modules()] == kinds


@pytest.mark.parametrize("name", ["vit_ti16", "swin_t", "swinv2_t", "pvtv2_b0", "mvit_b16", "mvitv2_t"])
def test_attention_of_accelerated_models_is_recorded_alike(name: str) -> None:
    plain, images = shrink(name).build().eval(), torch.randn(2, 3, 16, 24)
    recorded = []
    for model in (plain, accelerate(copy.deepcopy(plain))):
        with torch.no_grad(), record_attention(model) as maps:
            model(images)
        recorded.append([each.weights for each in maps])
    for wanted, found in zip(*recorded, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
