from __future__ import annotations

import pytest
import torch

from making.small_models import MVIT
from vitrail.core.errors import DataError
from vitrail.interpret import record_attention
from vitrail.models import build
from vitrail.models.describe import describe


def test_logits_are_the_heads_of_the_class_token():
    model, images = build("mvit_b16", **MVIT).eval(), torch.randn(2, 3, 16, 24)
    tokens = model.tokens(images)
    assert tokens.shape == (2, 1 + 2 * 3, 16)
    torch.testing.assert_close(model(images), model.head(tokens[:, 0]))
    patches = tokens[:, 1:].transpose(1, 2).reshape(2, 16, 2, 3)
    last = model.features(images)[-1]
    torch.testing.assert_close(model.norm(last.movedim(1, -1)).movedim(-1, 1), patches)


def test_recorded_maps_name_the_grids_of_queries_and_pooled_keys_after_the_class_token():
    model = build("mvit_b16", **{**MVIT, "depths": (1, 1, 2, 1), "key_stride": 4}).eval()
    with torch.no_grad(), record_attention(model) as maps:
        model(torch.randn(1, 3, 48, 80))
    assert [each.query_grid for each in maps] == [(12, 20), (6, 10), (3, 5), (3, 5), (2, 3)]
    assert [each.grid for each in maps] == [(3, 5), (6, 10), (6, 10), (3, 5), (3, 5)]
    assert [each.num_prefix for each in maps] == [1] * 5
    assert [each.weights.shape[1] for each in maps] == [2, 4, 8, 8, 16]
    assert maps[0].layer == "stages.0.0.mixer"


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mvit_b16", 7.8),
        pytest.param("mvit_b24", 10.9, marks=pytest.mark.further),
        pytest.param("mvit_b24_wide", 32.7, marks=pytest.mark.further),
    ],
)
def test_the_cost_is_that_of_the_paper(name, billions):
    """Fan et al. 2021, table 17, in GFLOPs, which are multiply-accumulates."""
    assert describe(name).macs / 1e9 == pytest.approx(billions, rel=0.01)


def test_images_below_one_patch_are_refused():
    with pytest.raises(DataError, match="at least 4x4"):
        build("mvit_b16", **MVIT)(torch.randn(1, 3, 3, 24))
