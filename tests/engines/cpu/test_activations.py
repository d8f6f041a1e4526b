"""Activations that overwrite their input where no gradient asks for it."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from vitrail.engines.cpu import accelerate
from vitrail.nn.activations import ACTIVATIONS

NAMES = sorted(ACTIVATIONS)


def plain(name, x):
    return x * torch.sigmoid(1.702 * x) if name == "quick_gelu" else getattr(F, name)(x)


@pytest.mark.parametrize("name", NAMES)
def test_without_gradients_the_result_takes_the_place_of_the_input(name):
    x = torch.randn(3, 5)
    expected = plain(name, x)
    with torch.no_grad():
        activated = accelerate(ACTIVATIONS[name]())(x)

    assert torch.equal(activated, expected)
    assert activated.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("name", NAMES)
def test_with_gradients_the_input_stays(name):
    x = torch.randn(3, 5, requires_grad=True)
    before = x.detach().clone()
    accelerate(ACTIVATIONS[name]())(x).sum().backward()

    assert torch.equal(x, before)
    other = before.clone().requires_grad_()
    plain(name, other).sum().backward()
    assert torch.equal(x.grad, other.grad)


def test_the_quick_form_is_near_the_exact_one():
    x = torch.linspace(-5, 5, 101, requires_grad=True)
    assert (ACTIVATIONS["quick_gelu"]()(x) - F.gelu(x)).abs().max() < 0.021
