from __future__ import annotations

import pytest
import torch

from making.small_models import MVITV2
from vitrail.core.errors import DataError
from vitrail.interpret import record_attention
from vitrail.models import MODELS, build
from vitrail.models.mvitv2 import block_shapes

FOUR_STAGES = {**MVITV2, "depths": (1, 1, 2, 1), "key_stride": 4}


def test_the_blocks_have_the_published_shapes():
    shapes = block_shapes(MODELS["mvitv2_t"])
    assert [shape.dim for shape in shapes] == [96, 96, 192, 192, 384, 384, 384, 384, 384, 768]
    assert [shape.hidden_dim for shape in shapes] == [96, 192, 192, 384, 384, 384, 384, 384, 768, 768]
    assert [shape.num_heads for shape in shapes] == [1, 2, 2, 4, 4, 4, 4, 4, 8, 8]
    assert [shape.stride for shape in shapes] == [1, 2, 1, 2, 1, 1, 1, 1, 2, 1]
    assert [shape.key_stride for shape in shapes] == [4, 2, 2, 1, 1, 1, 1, 1, 1, 1]
    assert [shape.grid[0] for shape in shapes] == [56, 56, 28, 28, 14, 14, 14, 14, 14, 7]


def test_the_large_model_widens_its_tokens_in_the_last_mlp_of_a_stage():
    shapes = block_shapes(MODELS["mvitv2_l"])
    assert [shape.dim != shape.hidden_dim for shape in shapes] == [False] * 48
    widening = [index for index, shape in enumerate(shapes) if shape.hidden_dim != shape.out_dim]
    assert widening == [1, 7, 43]


def test_logits_are_the_heads_of_the_mean_of_the_tokens():
    model, images = build("mvitv2_t", **MVITV2).eval(), torch.randn(2, 3, 16, 24)
    tokens = model.tokens(images)
    assert tokens.shape == (2, 2 * 3, 16)
    torch.testing.assert_close(model(images), model.head(tokens.mean(1)))


def test_recorded_maps_name_the_grids_of_queries_and_pooled_keys():
    model = build("mvitv2_t", **FOUR_STAGES).eval()
    with torch.no_grad(), record_attention(model) as maps:
        model(torch.randn(1, 3, 48, 80))
    assert [each.query_grid for each in maps] == [(12, 20), (6, 10), (3, 5), (3, 5), (2, 3)]
    assert [each.grid for each in maps] == [(3, 5), (6, 10), (6, 10), (3, 5), (3, 5)]
    assert [each.weights.shape[1] for each in maps] == [2, 4, 8, 8, 16]
    assert maps[0].layer == "stages.0.0.mixer"


def test_images_below_one_patch_are_refused():
    with pytest.raises(DataError, match="at least 4x4"):
        build("mvitv2_t", **MVITV2)(torch.randn(1, 3, 3, 24))
