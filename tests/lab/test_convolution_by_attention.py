"""The images with a structure, the association that is looked for, and the criterion."""

from __future__ import annotations

import pytest
import torch

from vitrail.core.errors import ConfigError
from vitrail.lab.convolution_by_attention import (
    LAYERS,
    STRUCTURES,
    ConvolutionByAttention,
    PatchSets,
    SpatialRow,
    StructureRow,
    TransferRow,
    WrittenRow,
    associated_share,
    attend_as_convolution,
    distance_to_convolution,
    squares_of,
    unit_vector,
)

CLAIM = ConvolutionByAttention(side=4, dim=5, noise=0.5)


def test_one_set_of_patches_shows_the_class_and_noise_is_beside_the_feature() -> None:
    generator = torch.Generator().manual_seed(0)
    belongs, feature = squares_of(CLAIM.side), unit_vector(CLAIM.dim, generator)

    patches, sign = PatchSets(belongs, feature, noise=0.5, distraction=0.3, generator=generator).draw(30)

    shown = patches @ feature  # one of -1, 0, 1 in each patch
    torch.testing.assert_close(shown, shown.round(), atol=1e-5, rtol=0)
    agrees = (shown.round() == sign[:, None]).float() @ belongs.float() == 4
    assert agrees.any(dim=1).all()
    assert 0.3 < float((patches - shown[..., None] * feature).std()) < 0.5
    assert set(sign.tolist()) == {-1.0, 1.0}


def test_squares_of_patches_are_neighbours() -> None:
    belongs = squares_of(4)

    assert belongs[0].nonzero().flatten().tolist() == [0, 1, 4, 5]
    assert (belongs.sum(dim=1) == 4).all()


def test_patches_are_associated_only_with_the_whole_set() -> None:
    belongs = squares_of(4)
    weights = belongs.float()
    assert associated_share(weights, belongs) == 1.0

    weights[0, 0], weights[0, 15] = 0.0, 0.5
    assert associated_share(weights, belongs) == 15 / 16


def test_the_claim_needs_association_and_then_transfer() -> None:
    assert CLAIM.judge(make_rows(associated=1.0, gain=0.2)).verdict == "holds"
    assert CLAIM.judge(make_rows(associated=1.0, gain=0.05)).verdict == "partly"
    assert CLAIM.judge(make_rows(associated=0.8, gain=0.2)).verdict == "does not hold"
    assert CLAIM.judge(make_rows(associated=1.0, gain=0.2, error=0.1)).verdict == "does not hold"


def test_the_same_seed_measures_the_same() -> None:
    claim = CLAIM.with_changes({"num_steps": 2, "few_steps": 2, "num_tested": 7, "num_seeds": 1})

    assert claim.run(lambda progress: None, seed=5) == claim.run(lambda progress: None, seed=5)


def test_a_single_set_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least two are needed"):
        CLAIM.with_changes({"side": 2})


def test_attention_that_is_written_down_is_the_convolution() -> None:
    errors = [distance_to_convolution(alpha, side=6, dim=5, size=3, seed=2) for alpha in (1.0, 4.0, 12.0)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-3

    image, kernel = torch.randn(2, 5, 7), torch.zeros(1, 2, 3, 3)
    kernel[0, 1, 0, 2] = 2.0  # the cell above, to the right
    shifted = attend_as_convolution(image, kernel, 20.0)
    torch.testing.assert_close(shifted[0, 1:, :-1], 2 * image[1, :-1, 1:])


def make_rows(*, associated: float, gain: float, error: float = 1e-5) -> list[SpatialRow]:
    rows: list[SpatialRow] = [
        WrittenRow(alpha=1, seed=0, error=1.0),
        WrittenRow(alpha=9, seed=0, error=error),
    ]
    for structure in STRUCTURES:
        rows += [
            StructureRow(
                structure=structure,
                layer=layer,
                seed=0,
                accuracy=0.99,
                associated=associated if layer == "positional attention" else 0.0,
            )
            for layer in LAYERS
        ]
        rows += [
            TransferRow(structure=structure, attention="kept", seed=0, num_images=9, accuracy=0.6 + gain),
            TransferRow(structure=structure, attention="new", seed=0, num_images=9, accuracy=0.6),
        ]
    return rows
