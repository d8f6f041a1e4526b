"""The vote of neighbours against a loop over all pairs, and scikit-learn's neighbours."""

from __future__ import annotations

import math

import numpy as np
import torch
from sklearn.neighbors import KNeighborsClassifier

from vitrail.studies import probing as neighbours
from vitrail.studies.probing import weighted_votes


def drawn(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    bank, queries = torch.randn(31, 5, generator=generator), torch.randn(7, 5, generator=generator)
    return bank, torch.randint(3, (31,), generator=generator), queries


def test_votes_are_those_of_a_loop_over_all_pairs() -> None:
    bank, labels, queries = drawn()
    votes = weighted_votes(bank, labels, queries, num_classes=3, num_neighbours=11, temperature=0.2)

    for query, row in zip(queries.tolist(), votes.tolist(), strict=True):
        near = []
        for known, label in zip(bank.tolist(), labels.tolist(), strict=True):
            cosine = sum(a * b for a, b in zip(query, known, strict=True))
            near.append((cosine / math.hypot(*query) / math.hypot(*known), label))
        sums = [0.0, 0.0, 0.0]
        for similarity, label in sorted(near, reverse=True)[:11]:
            sums[label] += math.exp(similarity / 0.2)
        np.testing.assert_allclose(row, np.array(sums) / sum(sums), rtol=1e-4)


def test_the_answer_is_that_of_scikit_learn_with_the_same_weights() -> None:
    bank, labels, queries = drawn(1)
    reference = KNeighborsClassifier(
        n_neighbors=9, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07)
    ).fit(bank.numpy(), labels.numpy())

    votes = weighted_votes(bank, labels, queries, num_classes=3, num_neighbours=9)

    np.testing.assert_allclose(votes.numpy(), reference.predict_proba(queries.numpy()), atol=1e-4)


def test_parts_of_the_queries_and_a_small_bank_change_nothing(monkeypatch) -> None:
    bank, labels, queries = drawn(2)
    whole = weighted_votes(bank, labels, queries, num_classes=4, num_neighbours=99)
    monkeypatch.setattr(neighbours, "ROWS_AT_ONCE", 3)

    assert torch.allclose(whole, weighted_votes(bank, labels, queries, num_classes=4, num_neighbours=31))
    assert torch.allclose(whole.sum(dim=-1), torch.ones(7))
    assert not whole[:, 3].any()
