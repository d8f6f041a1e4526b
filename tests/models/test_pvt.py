"""PVT: published sizes, stages, positions, and keys that are fewer than the queries."""

from __future__ import annotations

import pytest
import torch

from making.small_models import PVT
from vitrail.interpret import record_attention
from vitrail.models import MODELS, build


def test_the_head_reads_the_class_token_alone():
    model = build("pvt_t", **PVT).eval()
    images = torch.randn(2, 3, 16, 24)
    torch.testing.assert_close(model(images), model.head(model.tokens(images)[:, 0]))


def test_padding_with_zeros_is_what_an_odd_image_means():
    """The first stage sees a completed image, so one that was completed by hand with zeros is the same."""
    torch.manual_seed(0)
    model = build("pvt_t", **PVT).eval()
    images = torch.randn(2, 3, 15, 23)
    completed = torch.nn.functional.pad(images, (0, 1, 0, 1))
    assert torch.equal(model(images), model(completed))


def test_recorded_keys_are_squares_of_patches_and_the_class_token_joins_the_last_stage():
    model = build("pvt_t", **PVT).eval()
    with torch.no_grad(), record_attention(model) as maps:
        model(torch.randn(1, 3, 16, 24))

    assert [each.query_grid for each in maps] == [(8, 12), (4, 6), (4, 6), (2, 3), (1, 2)]
    assert [each.grid for each in maps] == [(2, 3), (2, 3), (2, 3), (2, 3), (1, 2)]
    assert [each.num_prefix for each in maps] == [0, 0, 0, 0, 1]
    assert maps[0].weights.shape == (1, 1, 96, 6)


def test_drop_path_rises_linearly_over_all_blocks():
    config = MODELS["pvt_t"].with_changes({"drop_path": 0.7})
    rates = [rate for stage in range(4) for rate in config.drop_paths(stage)]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])
