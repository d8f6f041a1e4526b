"""DETR: what is trained of it, its dilated variant, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from making.small_models import DETR
from vitrail.interpret import record_attention
from vitrail.models import build

SIZES = torch.tensor([[64, 50], [41, 72]])


def test_the_published_model_trains_all_but_its_first_layers_and_norms():
    with torch.device("meta"):
        model = build("detr_r50")
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    kept = {name.rsplit(".", 1)[0] for name, each in model.named_parameters() if not each.requires_grad}
    assert trained == 41_302_368  # Carion et al. 2020, published code
    assert all(name.startswith(("backbone.stem", "backbone.stages.0")) for name in kept)
    assert not [name for name, _ in model.named_parameters() if "backbone" in name and "norm" in name]


@pytest.mark.parametrize("num_frozen", [0, 1, 4])
def test_the_first_parts_of_the_backbone_keep_their_weights(num_frozen):
    backbone = build("detr_r50", **DETR, num_frozen=num_frozen).backbone
    parts = [backbone.stem, *backbone.stages]
    are_trained = [all(each.requires_grad for each in part.parameters()) for part in parts]
    assert are_trained == [False] * num_frozen + [True] * (4 - num_frozen)


def test_the_dilated_variant_has_twice_the_rows_and_columns():
    grids = []
    for name in ("detr_r50", "detr_r50_dc5"):
        model = build(name, **DETR).eval()
        with torch.no_grad(), record_attention(model, layers=-1) as maps:
            model(torch.randn(1, 3, 64, 96))
        grids.append(maps[0].grid)
    assert grids == [(4, 6), (8, 12)]


def test_images_of_one_size_need_no_mask():
    model = build("detr_r50", **DETR).eval()
    masks = []
    model.encoder[0].register_forward_pre_hook(
        lambda _, __, given: masks.append(given["may_attend"]), with_kwargs=True
    )
    images = torch.randn(2, 3, 64, 72)
    model(images)
    model(images, torch.tensor([[64, 72]] * 2))
    model(images, SIZES)
    assert [mask is None for mask in masks] == [True, True, False]
    assert masks[2].shape == (2, 1, 1, 4 * 5)


def test_learned_queries_alone_tell_the_boxes_of_an_image_apart():
    model = build("detr_r50", **DETR).eval()
    with torch.no_grad():
        model.queries[:] = model.queries[0]
        boxes = model(torch.randn(1, 3, 48, 64)).boxes[0]
    torch.testing.assert_close(boxes, boxes[:1].expand_as(boxes), rtol=0, atol=1e-6)
