"""PVTv2: published sizes, stages, and the variant whose keys are pooled."""

from __future__ import annotations

import pytest
import torch

from making.small_models import PVTV2
from vitrail.interpret import record_attention
from vitrail.models import build
from vitrail.models.pvtv2 import ConvolutionalMLP


def test_recorded_keys_are_squares_of_patches():
    model = build("pvtv2_b0", **PVTV2).eval()
    with torch.no_grad(), record_attention(model) as maps:
        model(torch.randn(1, 3, 16, 24))

    assert [each.query_grid for each in maps] == [(8, 12), (4, 6), (4, 6), (2, 3), (1, 2)]
    assert [each.grid for each in maps] == [(2, 3), (2, 3), (2, 3), (2, 3), (1, 2)]


@pytest.mark.parametrize("size", [(16, 24), (37, 53)])
def test_the_linear_variant_has_as_many_keys_at_any_size(size):
    model = build("pvtv2_b2_li", **PVTV2).eval()
    with torch.no_grad(), record_attention(model) as maps:
        model(torch.randn(1, 3, *size))

    assert {each.grid for each in maps} == {(7, 7)}
    assert {each.weights.shape[-1] for each in maps} == {49}


def test_the_mlp_mixes_neighbouring_patches_of_its_grid_alone():
    torch.manual_seed(0)
    mlp = ConvolutionalMLP(6, 10, first_activation=torch.nn.Identity())
    x = torch.randn(1, 35, 6)
    changed = x.clone()
    changed[:, 8] += 1.0  # row 1, column 1 of 5 x 7 patches
    differs = (mlp(x, grid=(5, 7)) != mlp(changed, grid=(5, 7))).any(dim=-1).reshape(5, 7)

    expected = torch.zeros(5, 7, dtype=torch.bool)
    expected[:3, :3] = True
    assert torch.equal(differs, expected)
