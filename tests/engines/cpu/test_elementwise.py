"""Activations overwrite their input where no gradient needs it; dropout has a mask of its own."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from vitrail.engines.cpu import accelerate
from vitrail.engines.cpu.elementwise import FastDropout, dropout
from vitrail.nn.activations import ACTIVATIONS
from vitrail.nn.blocks import Dropout

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


@pytest.mark.parametrize("probability", [0.03, 0.3, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_are_dropped_with_the_probability_and_keep_their_mean(
    probability: float, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x = torch.ones(211, 977, dtype=dtype)

    dropped = dropout(x, probability)

    assert dropped.dtype == dtype
    share = (dropped == 0).float().mean().item()
    assert share == pytest.approx(probability, abs=0.003)  # six standard deviations
    assert dropped.float().mean().item() == pytest.approx(1, abs=0.03)
    kept = dropped[dropped != 0].float().unique()
    assert len(kept) == 1
    assert kept.item() == pytest.approx(1 / (1 - probability), rel=1e-2 if dtype == torch.bfloat16 else 1e-4)


def test_neighbouring_values_are_dropped_independently() -> None:
    torch.manual_seed(1)
    kept = (dropout(torch.ones(400_000), 0.5) != 0).float()

    for distance in (1, 2, 3, 4, 8):
        both = (kept[distance:] * kept[:-distance]).mean().item()
        assert both == pytest.approx(0.25, abs=0.006)


def test_the_gradient_passes_where_the_value_did() -> None:
    torch.manual_seed(2)
    x = torch.randn(7, 5, 3, requires_grad=True)

    out = dropout(x, 0.4)
    out.sum().backward()

    assert x.grad is not None
    torch.testing.assert_close(x.grad, (out / x).detach())


def test_the_seed_decides_the_mask() -> None:
    x = torch.ones(3, 35)
    torch.manual_seed(5)
    first = dropout(x, 0.5)
    torch.manual_seed(5)
    again = dropout(x, 0.5)
    other = dropout(x, 0.5)

    assert first.equal(again)
    assert not first.equal(other)


def test_nothing_happens_in_evaluation_or_with_probability_zero() -> None:
    x = torch.randn(2, 3)
    state = torch.get_rng_state()

    for layer in (Dropout, FastDropout):
        assert layer(0.5).eval()(x) is x
        assert layer(0.0)(x) is x
    assert state.equal(torch.get_rng_state())


def test_values_that_are_not_contiguous_are_dropped_too() -> None:
    x = torch.ones(4, 6).T
    assert set(dropout(x, 0.5).unique().tolist()) <= {0.0, 2.0}
