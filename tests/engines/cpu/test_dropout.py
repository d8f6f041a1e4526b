"""Dropout: probabilities, scale, gradients and its generator."""

from __future__ import annotations

import pytest
import torch

from vitrail.engines.cpu.elementwise import FastDropout, dropout
from vitrail.nn.blocks import Dropout


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


def test_a_value_that_is_no_contiguous_tensor_is_dropped_too() -> None:
    x = torch.ones(4, 6).T
    assert set(dropout(x, 0.5).unique().tolist()) <= {0.0, 2.0}
