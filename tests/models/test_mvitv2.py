from __future__ import annotations

import pytest
import torch

from making.small_models import MVITV2
from vitrail.core.errors import ConfigError, DataError
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


@pytest.mark.parametrize("name", ["mvitv2_b", "mvitv2_l"])
def test_each_stage_halves_the_grid_of_an_image_of_any_size(name):
    model = build(name, **FOUR_STAGES).eval()
    maps = model.features(torch.randn(2, 3, 250, 331))
    # 250 / 4 and 331 / 4 rounded up, then halves rounded up
    assert [tuple(stage.shape[-2:]) for stage in maps] == [(63, 83), (32, 42), (16, 21), (8, 11)]
    expected = [8, 16, 32, 64] if name == "mvitv2_b" else [16, 32, 64, 64]
    assert [stage.shape[1] for stage in maps] == expected


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


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_heads": 3}, "num_heads 3 does not divide width 8"),
        ({"depths": ()}, "at least one stage"),
        ({"depths": (1, 0)}, "one block in each"),
        ({"image_size": (2, 24)}, "holds no patch of 4 pixels"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, match):
    with pytest.raises(ConfigError, match=match):
        build("mvitv2_t", **{**MVITV2, **changes})


def test_images_below_one_patch_are_refused():
    with pytest.raises(DataError, match="at least 4x4"):
        build("mvitv2_t", **MVITV2)(torch.randn(1, 3, 3, 24))
