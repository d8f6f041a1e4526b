"""Corruption errors against sums by hand."""

from __future__ import annotations

import pytest

from vitrail.studies.robustness import ReferenceErrors, summarise

ERRORS = {"fog": {1: 0.2, 2: 0.4}, "contrast": {1: 0.3, 2: 0.7}}


def test_ratios_are_those_of_the_papers_equations() -> None:
    reference = ReferenceErrors("other", 0.2, {"fog": 0.6, "contrast": 0.4})
    found = summarise(0.1, ERRORS, reference=reference, signature={})

    fog, contrast = found.corruptions
    assert fog.mean == pytest.approx(0.3)
    assert fog.relative == pytest.approx(0.2)
    assert fog.corruption_error == pytest.approx(0.6 / 1.2)
    assert fog.relative_corruption_error == pytest.approx((0.1 + 0.3) / (0.4 + 0.4))
    assert contrast.corruption_error == pytest.approx(1.25)
    assert found.mean_error == pytest.approx(0.4)
    assert found.mean_corruption_error == pytest.approx((0.5 + 1.25) / 2)
    assert found.relative_mean_corruption_error == pytest.approx((0.5 + 0.4 / 0.2) / 2)


def test_a_model_is_as_robust_as_itself() -> None:
    first = summarise(0.1, ERRORS, reference=None, signature={})
    again = summarise(
        0.1,
        ERRORS,
        reference=ReferenceErrors("itself", 0.1, {row.name: row.mean for row in first.corruptions}),
        signature={},
    )

    assert first.mean_corruption_error is None
    assert again.mean_corruption_error == pytest.approx(1)
    assert again.relative_mean_corruption_error == pytest.approx(1)


def test_a_reference_that_a_corruption_does_not_hurt_gives_no_relative_mean() -> None:
    reference = ReferenceErrors("other", 0.2, {"fog": 0.2, "contrast": 0.4})
    found = summarise(0.1, ERRORS, reference=reference, signature={})
    assert found.corruptions[0].relative_corruption_error is None
    assert found.relative_mean_corruption_error is None
    assert found.mean_corruption_error is not None
