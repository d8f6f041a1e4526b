"""What training has written into models: filters, positions and biases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from vitrail.interpret.learned import (
    find_biases,
    find_filters,
    find_positions,
    position_similarity,
    principal_filters,
    saw_grey,
    why_no_positions,
)
from vitrail.models import build
from vitrail.nn.convolution import StandardisedConvolution


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
    of_rank_two = (torch.randn(11, 2) @ torch.randn(2, 27)).reshape(11, 3, 3, 3)
    assert len(principal_filters(of_rank_two).components) == 2
    assert len(principal_filters(torch.ones(5, 3, 2, 2)).components) == 0


@pytest.mark.parametrize(
    ("mean", "std", "is_grey"),
    [
        ([0.13, 0.13, 0.13], [0.31, 0.31, 0.31], True),  # of MNIST
        ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225], False),  # of ImageNet
        ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5], False),  # a convention, of ViT
        ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], False),  # a convention
        ([0.4, 0.4, 0.4], [0.2, 0.2, 0.21], False),
    ],
)
def test_grey_images_are_told_by_their_statistics(mean: list[float], std: list[float], is_grey: bool) -> None:
    assert saw_grey({"mean": mean, "std": std}) == is_grey
    assert saw_grey({"images": {"mean": mean, "std": std}}) == is_grey
    assert not saw_grey({"languages": ["en", "de"]})


def test_similarity_is_the_cosine_of_embeddings() -> None:
    table = torch.randn(6, 11)
    expected = torch.tensor(
        [[torch.cosine_similarity(first, second, dim=0) for second in table] for first in table]
    )

    similarity = position_similarity(table)

    torch.testing.assert_close(similarity, expected)
    torch.testing.assert_close(position_similarity(3 * table), similarity)


TINY: dict[str, dict[str, Any]] = {
    "vit_ti16": {"image_size": (10, 15), "patch_size": 5, "width": 12, "depth": 1, "num_heads": 2},
    "vit_nano": {"width": 12, "depth": 1, "num_heads": 2},
    "mixer_s16": {"image_size": (8, 8), "patch_size": 4, "width": 12, "depth": 1},
}


def tiny(name: str, **changes: Any) -> Any:
    return build(name, **(TINY[name] | {"num_classes": 3} | changes))


def test_a_patch_embedding_is_told_from_a_convolution() -> None:
    patches, convolution = find_filters(tiny("vit_ti16")), find_filters(tiny("vit_nano"))

    assert patches is not None
    assert convolution is not None
    assert (patches.layer, patches.weights.shape, patches.is_patch_embedding) == ("stem", (12, 3, 5, 5), True)
    assert (convolution.layer, convolution.weights.shape) == ("stem.layers.0", (24, 3, 3, 3))
    assert not convolution.is_patch_embedding


@pytest.mark.parametrize(
    "name", ["resnet18", "efficientnet_b0", "bit_r50x1", "pvt_t", "pvtv2_b0", "mvitv2_t", "swin_t"]
)
def test_every_family_has_first_filters_that_act_on_three_channels(name: str) -> None:
    with torch.device("meta"):
        found = find_filters(build(name))

    assert found is not None
    assert found.weights.shape[1] == 3
    assert found.is_patch_embedding == (name in ("pvt_t", "swin_t"))


def test_filters_of_a_standardised_convolution_are_those_that_it_convolves_by() -> None:
    layer = StandardisedConvolution(3, 5, 3)
    image = torch.zeros(1, 3, 3, 3)
    found = find_filters(nn.Sequential(layer))
    assert found is not None

    image[0, 1, 2, 0] = 1.0  # below and left of the centre

    torch.testing.assert_close(layer(image)[0, :, 1, 1], found.weights[:, 1, 2, 0])


def test_a_model_of_another_number_of_channels_has_filters_of_its_own() -> None:
    grey = tiny("vit_ti16", num_channels=1)

    assert find_filters(grey) is None
    found = find_filters(grey, num_channels=1)
    assert found is not None
    assert found.weights.shape == (12, 1, 5, 5)


def test_positions_come_without_those_of_prefix_tokens() -> None:
    model = tiny("vit_ti16")

    (found,) = find_positions(model)

    assert (found.layer, found.grid, found.table.shape) == ("positions", (2, 3), (6, 12))
    torch.testing.assert_close(found.table, model.positions.table.detach()[1:])


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("vit_ti16", {"positions": "sinusoidal"}, "sines and cosines"),
        ("vit_ti16", {"positions": "rotary", "width": 16}, "rotations"),
        ("vit_ti16", {"positions": "relative_bias"}, "biases of the scores"),
        ("vit_ti16", {"positions": "pairwise"}, "each pair of tokens"),
        ("vit_ti16", {"positions": "none"}, "no table of positions"),
        ("mixer_s16", {}, "token-mixing weights"),
    ],
)
def test_a_model_without_learned_positions_says_what_it_has(
    name: str, changes: dict[str, Any], reason: str
) -> None:
    model = tiny(name, **changes)

    assert find_positions(model) == []
    assert reason in why_no_positions(model)


def test_biases_are_laid_out_by_relative_row_and_column() -> None:
    model = tiny("vit_ti16", positions="relative_bias")
    table = model.blocks[0].mixer.positions.table.detach()

    (found,) = find_biases(model)

    assert found.biases.shape == (2, 3, 5)
    torch.testing.assert_close(found.biases.flatten(1), table.T)


def test_continuous_biases_are_computed_for_the_model_s_own_grid() -> None:
    model = build("swinv2_t")
    found = find_biases(model)

    assert [len(each.biases) for each in found][:3] == [3, 3, 6]
    bias = dict(model.named_modules())[found[0].layer]
    of_pairs = bias(bias.grid)[0]  # heads patches patches
    rows, columns = bias.grid
    last_of_first_row = columns - 1
    torch.testing.assert_close(
        found[0].biases[:, rows - 1, 2 * columns - 2], of_pairs[:, last_of_first_row, 0].detach()
    )
