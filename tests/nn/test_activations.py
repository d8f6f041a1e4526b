"""Activations that overwrite their input where no gradient asks for it."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from vitrail.nn.activations import ACTIVATIONS

NAMES = sorted(ACTIVATIONS)


@pytest.mark.parametrize("name", NAMES)
def test_without_gradients_the_result_takes_the_place_of_the_input(name):
    x = torch.randn(3, 5)
    expected = getattr(F, name)(x)
    with torch.no_grad():
        activated = ACTIVATIONS[name]()(x)

    assert torch.equal(activated, expected)
    assert activated.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("name", NAMES)
def test_with_gradients_the_input_stays(name):
    x = torch.randn(3, 5, requires_grad=True)
    before = x.detach().clone()
    ACTIVATIONS[name]()(x).sum().backward()

    assert torch.equal(x, before)
    other = before.clone().requires_grad_()
    getattr(F, name)(other).sum().backward()
    assert torch.equal(x.grad, other.grad)
