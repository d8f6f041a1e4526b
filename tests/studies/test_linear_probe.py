"""The linear probe against scikit-learn's logistic regression."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression

from vitrail.studies.probing import choose_probe, fit_probe, probe_logits


def clusters(num_images: int, seed: int, spread: float = 1.3) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw points of three classes around corners of a cube of five dimensions."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num_images) % 3
    return torch.eye(5)[labels] + spread * torch.randn(num_images, 5, generator=generator), labels


@pytest.mark.parametrize("inverse_strength", [0.01, 1.0, 30.0])
def test_weights_and_probabilities_are_those_of_scikit_learn(inverse_strength: float) -> None:
    features, labels = clusters(61, seed=0)
    probe = fit_probe(features, labels, num_classes=3, inverse_strength=inverse_strength)

    reference = LogisticRegression(C=inverse_strength, tol=1e-9, max_iter=3000)
    reference.fit(features.double().numpy(), labels.numpy())

    np.testing.assert_allclose(probe.weight.numpy(), reference.coef_, atol=2e-4)
    ours = probe_logits(probe, features).softmax(dim=-1).numpy()
    np.testing.assert_allclose(ours, reference.predict_proba(features.double().numpy()), atol=1e-4)


def test_a_start_changes_nothing_but_the_time() -> None:
    features, labels = clusters(40, seed=1)
    cold = fit_probe(features, labels, num_classes=3)
    warm = fit_probe(
        features,
        labels,
        num_classes=3,
        start=fit_probe(features, labels, num_classes=3, inverse_strength=9.0),
    )
    assert torch.allclose(cold.weight, warm.weight, atol=1e-4)


def test_the_strength_is_the_best_on_validation() -> None:
    train, validation = clusters(45, seed=2), clusters(400, seed=3)
    fits: list[int] = []
    chosen = choose_probe(train, validation, num_classes=3, on_fit=fits.append)

    assert fits == list(range(1, len(chosen.tried) + 1))
    assert 11 <= len(fits) <= 15
    best = max(chosen.tried.values())
    assert chosen.tried[chosen.strength] == best
    for strength, score in chosen.tried.items():
        if strength < 1e-3:  # where scikit-learn's biases are coarser than the weights are large
            continue
        reference = LogisticRegression(C=strength, tol=1e-9, max_iter=3000)
        reference.fit(train[0].double().numpy(), train[1].numpy())
        expected = reference.score(validation[0].double().numpy(), validation[1].numpy())
        assert score == pytest.approx(expected, abs=2 / 400)  # images may lie on a border

    both = [torch.cat(pair) for pair in zip(train, validation, strict=True)]
    again = fit_probe(both[0], both[1], num_classes=3, inverse_strength=chosen.strength)
    assert torch.allclose(chosen.probe.weight, again.weight, atol=1e-6)


def test_of_strengths_that_are_right_equally_often_that_of_the_most_probable_labels_is_chosen() -> None:
    train, validation = clusters(45, seed=2, spread=0.1), clusters(9, seed=3, spread=0.1)
    chosen = choose_probe(train, validation, num_classes=3)

    tied = [strength for strength, score in chosen.tried.items() if score == 1.0]
    assert len(tied) > 5

    def loss(strength: float) -> float:
        probe = fit_probe(*train, num_classes=3, inverse_strength=strength)
        return float(F.cross_entropy(probe_logits(probe, validation[0]), validation[1]))

    losses = {strength: loss(strength) for strength in tied}
    assert losses[chosen.strength] == pytest.approx(min(losses.values()), abs=1e-6)
    assert losses[chosen.strength] < 0.01 < losses[min(tied)]
