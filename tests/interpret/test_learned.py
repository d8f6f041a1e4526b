"""Principal components of filters and similarity of positions, against numpy."""

from __future__ import annotations

import numpy as np
import torch

from vitrail.interpret.learned import position_similarity, principal_filters


def test_components_are_the_eigenvectors_of_the_covariance_of_filters() -> None:
    filters = torch.randn(31, 3, 2, 5) * torch.linspace(0.2, 3, 30).reshape(3, 2, 5) + 7
    eigenvalues, eigenvectors = np.linalg.eigh(np.cov(filters.flatten(1).double().numpy().T))
    expected = eigenvectors[:, ::-1][:, :4].T
    largest = np.abs(expected).argmax(axis=1)
    expected = expected * np.sign(expected[np.arange(4), largest])[:, None]

    found = principal_filters(filters, 4)

    assert found.components.shape == (4, 3, 2, 5)
    np.testing.assert_allclose(found.components.flatten(1), expected, atol=1e-5)
    np.testing.assert_allclose(found.shares, eigenvalues[::-1][:4] / eigenvalues.sum(), rtol=1e-5)


def test_components_agree_with_the_singular_vectors_of_numpy_up_to_sign() -> None:
    filters = torch.randn(13, 1, 3, 3)
    centred = filters.flatten(1).double().numpy()
    centred = centred - centred.mean(axis=0)
    _, deviations, directions = np.linalg.svd(centred, full_matrices=False)

    found = principal_filters(filters)

    assert len(found.components) == 9  # there are no more than pixels
    agreement = np.abs((found.components.flatten(1).double().numpy() * directions).sum(axis=1))
    np.testing.assert_allclose(agreement, 1, atol=1e-6)
    np.testing.assert_allclose(found.shares, deviations**2 / (deviations**2).sum(), atol=1e-6)


def test_there_are_no_components_beyond_those_that_filters_have() -> None:
    directions = torch.randn(2, 27)
    of_rank_two = (torch.randn(11, 2) @ directions).reshape(11, 3, 3, 3)

    assert len(principal_filters(of_rank_two).components) == 2
    assert len(principal_filters(torch.ones(5, 3, 2, 2)).components) == 0


def test_similarity_is_the_cosine_of_embeddings() -> None:
    table = torch.randn(6, 11)
    expected = torch.tensor(
        [[torch.cosine_similarity(first, second, dim=0) for second in table] for first in table]
    )

    similarity = position_similarity(table)

    torch.testing.assert_close(similarity, expected)
    torch.testing.assert_close(position_similarity(3 * table), similarity)
