"""Calibration against sums by hand, scikit-learn's losses and scipy's minimiser."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn import metrics

from vitrail.tasks.classification.scores import (
    TEMPERATURE_RANGE,
    brier_score,
    calibration_bins,
    calibration_scores,
    classification_tables,
    confusion_matrix,
    examples_of_each_class,
    expected_calibration_error,
    fit_temperature,
    headline_scores,
    most_confident_errors,
    negative_log_likelihood,
    per_class_scores,
    top_k_accuracy,
    wilson_interval,
)


def toy(num: int = 97, classes: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    """Return probabilities of which about half are right; class 5 never occurs."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(classes, (num,), generator=generator)
    labels[labels == 5] = 2
    logits = 1.3 * torch.randn(num, classes, generator=generator)
    logits[torch.arange(num), labels] += 1.5
    return logits.softmax(-1), labels


def scores_of(probabilities: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    tables = classification_tables(probabilities, labels, torch.arange(len(labels)))
    return headline_scores(tables, probabilities, labels)


def test_scores_equal_those_of_scikit_learn() -> None:
    probabilities, labels = toy()
    predicted, true = probabilities.argmax(-1).numpy(), labels.numpy()

    scores = scores_of(probabilities, labels)

    occurring = [0, 1, 2, 3, 4, 6]
    expected = {
        "accuracy": metrics.accuracy_score(true, predicted),
        "macro_f1": metrics.f1_score(true, predicted, labels=occurring, average="macro"),
        "balanced_accuracy": np.mean(metrics.recall_score(true, predicted, labels=occurring, average=None)),
        "nll": -np.log(probabilities.double().numpy()[np.arange(97), true]).mean(),
        "top5_accuracy": metrics.top_k_accuracy_score(true, probabilities.numpy(), k=5, labels=range(7)),
    }
    for name, value in expected.items():
        assert scores[name] == pytest.approx(value, abs=1e-6), name
    counts = confusion_matrix(probabilities.argmax(-1), labels, 7)
    np.testing.assert_array_equal(counts, metrics.confusion_matrix(true, predicted, labels=range(7)))
    found = np.array([[row.precision, row.recall, row.f1, row.support] for row in per_class_scores(counts)]).T
    of_classes = metrics.precision_recall_fscore_support(true, predicted, labels=range(7), zero_division=0)
    np.testing.assert_allclose(found, np.array(of_classes), atol=1e-6)
    assert "top5_accuracy" not in scores_of(*toy(classes=5))


def test_calibration_error_equals_a_definition_written_in_numpy() -> None:
    # Guo et al. 2017, equation 3, one bin after the other.
    probabilities, labels = toy()

    error = expected_calibration_error(calibration_bins(probabilities, labels))

    confidence = probabilities.double().numpy().max(-1)
    correct = probabilities.numpy().argmax(-1) == labels.numpy()
    edges = np.linspace(0, 1, 16)
    expected = 0.0
    for lower, upper in itertools.pairwise(edges):
        inside = (confidence > lower) & (confidence <= upper)
        if inside.any():
            expected += inside.mean() * abs(confidence[inside].mean() - correct[inside].mean())
    assert error == pytest.approx(expected, abs=1e-12)


def test_every_image_is_in_one_bin() -> None:
    probabilities, labels = toy()
    probabilities[0] = torch.eye(7)[2]
    bins = calibration_bins(probabilities, labels)
    assert sum(entry.count for entry in bins) == 97
    assert all(entry.lower < entry.confidence <= entry.upper for entry in bins if entry.count)


def test_a_sure_and_wrong_model_has_a_finite_likelihood() -> None:
    probabilities = torch.eye(3)[[0, 1]]
    assert negative_log_likelihood(probabilities, torch.tensor([1, 1])) == pytest.approx(43.67, abs=0.01)


def test_wilson_interval_equals_the_published_examples() -> None:
    # Newcombe 1998, Statistics in Medicine 17, table I, method 3; 20 of 20 mirrors 0 of 20.
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    lower, upper = wilson_interval(20, 20)
    assert lower == pytest.approx(1 - 0.1611, abs=1e-4)
    assert upper == pytest.approx(1)


def test_top_k_accuracy_grows_to_one() -> None:
    probabilities, labels = toy()
    shares = [top_k_accuracy(probabilities, labels, k) for k in (1, 3, 7)]
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_most_confident_errors_are_errors_in_order_of_confidence() -> None:
    probabilities, labels = toy()
    tables = classification_tables(probabilities, labels, torch.arange(97) * 2)
    rows = most_confident_errors(tables, 5)
    confidence, predicted = probabilities.max(-1)
    wrong = torch.nonzero(predicted != labels).flatten()
    assert rows == wrong[confidence[wrong].argsort(descending=True)][:5].tolist()
    assert tables.indices[rows[0]] == 2 * rows[0]


def test_examples_are_correct_images_around_the_median_confidence() -> None:
    probabilities, labels = toy()
    tables = classification_tables(probabilities, labels, torch.arange(97))
    examples = examples_of_each_class(tables, 3)
    assert list(examples) == list(range(7))
    assert examples[5] == []
    for label, rows in examples.items():
        assert all(tables.labels[row] == tables.predicted[row] == label for row in rows)
    of_zero = torch.nonzero((labels == 0) & (probabilities.argmax(-1) == 0)).flatten()
    confidence = probabilities[of_zero, 0]
    assert confidence.min() < tables.confidence[examples[0][1]] < confidence.max()


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
    assert scores.nll == pytest.approx(
        metrics.log_loss(labels.numpy(), probabilities.numpy(), labels=range(5))
    )
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
