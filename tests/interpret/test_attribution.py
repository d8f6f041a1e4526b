"""Attribution of any model, against captum's own where it is installed."""

from __future__ import annotations

import builtins

import pytest
import torch
from torch import nn

from making.small_models import RESNET, SWIN
from vitrail.core.errors import ConfigError
from vitrail.interpret.attribution import gradient_input, integrated_gradients, occlusion
from vitrail.models import build


@pytest.fixture(params=["resnet18", "swin_t"])
def model(request) -> nn.Module:
    torch.manual_seed(1)
    model = build(request.param, **{"resnet18": RESNET, "swin_t": SWIN}[request.param]).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.1)
    return model


def _images() -> torch.Tensor:
    return torch.randn(2, 3, 16, 24, generator=torch.Generator().manual_seed(3))


def test_gradient_times_input_is_captums(model):
    captum = pytest.importorskip("captum.attr")
    expected = captum.InputXGradient(model).attribute(_images().requires_grad_(), target=torch.tensor([1, 4]))

    actual = gradient_input(model, _images(), torch.tensor([1, 4]))

    torch.testing.assert_close(actual, expected.sum(dim=1).detach(), rtol=1e-4, atol=1e-6)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_integrated_gradients_add_up_to_the_difference_from_the_mean_colour():
    pytest.importorskip("captum")
    torch.manual_seed(1)
    model = build("resnet18", **RESNET).eval()
    images, labels = _images(), torch.tensor([1, 4])
    with torch.no_grad():
        differences = (model(images) - model(torch.zeros_like(images))).gather(1, labels[:, None])[:, 0]

    found = integrated_gradients(model, images, labels)

    torch.testing.assert_close(found.sum(dim=(1, 2)), differences, rtol=0.1, atol=0.02)


def test_attribution_is_had_inside_inference_mode(model):
    with torch.inference_mode():
        inside = gradient_input(model, _images(), torch.tensor([1, 4]))
    torch.testing.assert_close(inside.clone(), gradient_input(model, _images(), torch.tensor([1, 4])))


def test_occlusion_is_captums():
    captum = pytest.importorskip("captum.attr")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5)).eval()
    image = torch.randn(1, 3, 12, 20)
    expected = captum.Occlusion(lambda given: model(given).log_softmax(-1)).attribute(
        image, sliding_window_shapes=(3, 4, 5), strides=(3, 4, 5), target=2, baselines=0.0
    )

    falls = occlusion(model, image, 2, (3, 4))

    torch.testing.assert_close(falls, expected[0, 0, ::4, ::5].detach(), rtol=1e-3, atol=1e-5)


def test_a_missing_captum_names_the_extra(monkeypatch):
    real = builtins.__import__

    def without_captum(name, *arguments, **options):
        if name.startswith("captum"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_captum)
    with pytest.raises(ConfigError, match=r"vitrail\[attribution\]"):
        integrated_gradients(nn.Flatten(), _images(), torch.tensor([1, 1]))
