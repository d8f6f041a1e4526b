"""Calibration against sums by hand, scikit-learn's losses and scipy's minimiser."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.metrics import log_loss

from vitrail.tasks.classification.scores import (
    TEMPERATURE_RANGE,
    brier_score,
    calibration_scores,
    fit_temperature,
)


def drawn(num_images: int, num_classes: int, *, sharpness: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw logits, and labels from their softmax; then make the logits sharper than the labels are."""
    generator = torch.Generator().manual_seed(5)
    logits = 2 * torch.randn(num_images, num_classes, generator=generator)
    labels = torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)[:, 0]
    return logits * sharpness, labels


def test_the_scores_of_four_images_are_those_of_a_sum_by_hand() -> None:
    probabilities = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.45, 0.55]])
    labels = torch.tensor([0, 1, 1, 1])

    scores = calibration_scores(probabilities.log(), labels, num_bins=2)

    # All four are in the bin (0.5, 1]: confidence 0.9, 0.8, 0.7, 0.55; right, wrong, right, right.
    assert scores.accuracy == 0.75
    assert scores.confidence == pytest.approx(0.7375)
    assert scores.calibration_error == pytest.approx(0.0125)
    # Errors of 0.1, 0.8, 0.3 and 0.45 in both classes.
    assert scores.brier == pytest.approx(2 * (0.01 + 0.64 + 0.09 + 0.2025) / 4)
    assert scores.nll == pytest.approx(-math.log(0.9 * 0.2 * 0.7 * 0.55) / 4)


def test_bins_apart_give_the_mean_and_the_largest_distance() -> None:
    probabilities = torch.tensor([[0.95, 0.05], [0.65, 0.35], [0.65, 0.35]])
    scores = calibration_scores(probabilities.log(), torch.tensor([0, 1, 0]), num_bins=10)

    assert scores.calibration_error == pytest.approx((0.05 + 2 * 0.15) / 3)
    assert scores.max_calibration_error == pytest.approx(0.15)


def test_likelihood_and_brier_score_agree_with_scikit_learn_and_numpy() -> None:
    logits, labels = drawn(57, 5, sharpness=1.7)
    probabilities = logits.double().softmax(dim=-1)
    scores = calibration_scores(logits, labels)

    assert scores.nll == pytest.approx(log_loss(labels.numpy(), probabilities.numpy(), labels=range(5)))
    truth = np.eye(5)[labels.numpy()]
    assert scores.brier == pytest.approx(((probabilities.numpy() - truth) ** 2).sum(axis=1).mean())
    assert brier_score(torch.eye(5), torch.tensor([1, 0, 2, 3, 4])) == pytest.approx(4 / 5)


def test_the_temperature_is_the_one_that_scipy_finds() -> None:
    logits, labels = drawn(301, 7, sharpness=3.0)

    def loss(log_temperature: float) -> float:
        return calibration_scores(logits, labels, temperature=math.exp(log_temperature)).nll

    expected = math.exp(minimize_scalar(loss, bounds=(-4, 4), method="bounded", options={"xatol": 1e-9}).x)
    fitted = fit_temperature(logits, labels)

    assert fitted == pytest.approx(expected, rel=1e-5)
    assert 2.5 < fitted < 3.5  # the labels were drawn from a softmax that is 3 times as flat
    before, after = calibration_scores(logits, labels), calibration_scores(logits, labels, temperature=fitted)
    assert after.calibration_error < before.calibration_error
    assert after.accuracy == before.accuracy


def test_a_model_that_is_always_right_gets_the_end_of_the_range() -> None:
    assert fit_temperature(3 * torch.eye(4), torch.arange(4)) == pytest.approx(TEMPERATURE_RANGE[0])
    assert fit_temperature(-3 * torch.eye(4), torch.arange(4)) == pytest.approx(TEMPERATURE_RANGE[1])


def test_large_logits_do_not_overflow() -> None:
    scores = calibration_scores(torch.tensor([[900.0, -900.0]]), torch.tensor([1]))
    assert scores.nll == pytest.approx(1800)
