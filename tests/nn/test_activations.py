"""GELU that overwrites its input where no gradient asks for it."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from vitrail.nn.activations import OverwritingGELU


def test_without_gradients_the_result_takes_the_place_of_the_input():
    x = torch.randn(3, 5)
    expected = F.gelu(x)
    with torch.no_grad():
        activated = OverwritingGELU()(x)

    assert torch.equal(activated, expected)
    assert activated.data_ptr() == x.data_ptr()


def test_with_gradients_the_input_stays():
    x = torch.randn(3, 5, requires_grad=True)
    before = x.detach().clone()
    OverwritingGELU()(x).sum().backward()

    assert torch.equal(x, before)
    other = before.clone().requires_grad_()
    F.gelu(other).sum().backward()
    assert torch.equal(x.grad, other.grad)
