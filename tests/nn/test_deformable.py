from __future__ import annotations

import pytest
import torch
from torch import nn

from vitrail.interpret import record_attention
from vitrail.nn.deformable import (
    DeformableAttention,
    FeatureLevels,
    image_frame,
    join_levels,
    patch_centres,
    patch_sizes,
    sampled_weights,
)
from vitrail.nn.feature_pyramid import positions_inside


def _levels(sizes, *, padded=True):
    sizes = torch.tensor(sizes)
    maps = [torch.randn(len(sizes), 3, 3, 5), torch.randn(len(sizes), 3, 2, 3)]
    inside = [positions_inside(sizes if padded else None, (24, 40), stride) for stride in (8, 16)]
    return maps, join_levels(maps, sizes, inside, strides=(8, 16))


def test_patches_follow_one_another_row_by_row_and_level_by_level():
    maps, levels = _levels([(24, 40)])
    assert levels.tokens.shape == (1, 21, 3)
    assert torch.equal(levels.tokens[0, 1 * 5 + 2], maps[0][0, :, 1, 2])
    assert torch.equal(levels.tokens[0, 15 + 1 * 3 + 2], maps[1][0, :, 1, 2])
    assert levels.grids == ((3, 5), (2, 3))


def test_centres_and_sizes_are_shares_of_the_image_without_padding():
    _, levels = _levels([(24, 40), (12, 20)])
    torch.testing.assert_close(patch_centres(levels)[0, 1 * 5 + 2], torch.tensor([20 / 40, 12 / 24]))
    torch.testing.assert_close(patch_centres(levels)[1, 0], torch.tensor([4 / 20, 4 / 12]))
    torch.testing.assert_close(patch_centres(levels)[0, 15], torch.tensor([8 / 40, 8 / 24]))
    torch.testing.assert_close(patch_sizes(levels)[1, 0], torch.tensor([8 / 20, 8 / 12]))
    torch.testing.assert_close(patch_sizes(levels)[1, -1], torch.tensor([16 / 20, 16 / 12]))


def test_patches_of_the_padding_are_told():
    _, levels = _levels([(24, 40), (8, 17)])
    assert levels.is_image[0].all()
    assert levels.is_image[1].nonzero().flatten().tolist() == [0, 1, 2, 15, 16]
    assert _levels([(24, 40)], padded=False)[1].is_image is None


def test_an_image_lies_in_its_maps_from_its_first_patch_to_its_last():
    _, levels = _levels([(24, 40), (8, 17)])
    frame = image_frame(levels)
    torch.testing.assert_close(frame.extent[0], torch.tensor([[1.0, 40 / 48], [1.0, 24 / 32]]))
    torch.testing.assert_close(frame.extent[1], torch.tensor([[17 / 40, 17 / 48], [8 / 24, 8 / 32]]))
    torch.testing.assert_close(frame.first[1], torch.tensor([[0.5 / 5, 0.5 / 3], [0.5 / 3, 0.5 / 2]]))
    torch.testing.assert_close(frame.last[0], torch.tensor([[4.5 / 5, 2.5 / 3], [2.5 / 3, 1.5 / 2]]))
    torch.testing.assert_close(frame.last[1], torch.tensor([[2.5 / 5, 1.5 / 3], [0.5 / 3, 0.5 / 2]]))


GRIDS, STRIDES = ((5, 7), (3, 4)), (8, 16)
NUM_CELLS = [rows * columns for rows, columns in GRIDS]
DIM, HEADS = 6, 3


def _random(sizes=((40, 56), (40, 56)), *, tokens=None, is_image=None) -> FeatureLevels:
    if tokens is None:
        tokens = torch.randn(len(sizes), sum(NUM_CELLS), DIM)
    return FeatureLevels(tokens, GRIDS, STRIDES, torch.tensor(sizes, dtype=torch.float32), is_image)


def _attention() -> DeformableAttention:
    attention = DeformableAttention(DIM, HEADS, num_levels=2, num_points=2)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return attention


def _boxes(num_queries=5) -> torch.Tensor:
    return torch.cat((torch.rand(2, num_queries, 2), 0.1 + 0.4 * torch.rand(2, num_queries, 2)), dim=-1)


def test_the_recorded_maps_average_the_values_to_the_result():
    attention, levels, query, boxes = _attention(), _random(), torch.randn(2, 5, DIM), _boxes()
    model = nn.ModuleList([attention])

    with torch.no_grad(), record_attention(model) as maps:
        result = attention(query, levels, boxes)

    assert [each.grid for each in maps] == list(GRIDS)
    assert all(each.kind == "cross" for each in maps)
    weights = torch.cat([each.weights for each in maps], dim=-1)  # b h q patches
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, HEADS, 5))
    values = attention.values(levels.tokens).unflatten(-1, (HEADS, -1)).transpose(1, 2)  # b h patches d
    expected = attention.projection((weights @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


def test_a_place_in_the_middle_of_a_patch_is_that_patch():
    places = torch.tensor([[2.5 / 7, 1.5 / 5]]).expand(1, 1, 1, 1, 2)
    weights = sampled_weights(places, torch.ones(1, 1, 1, 1), (5, 7))
    assert weights.argmax() == 1 * 7 + 2
    torch.testing.assert_close(weights.max(), torch.tensor(1.0))


def test_a_place_between_patches_is_shared_by_nearness():
    places = torch.tensor([[2.75 / 7, 1.5 / 5]]).expand(1, 1, 1, 1, 2)
    weights = sampled_weights(places, torch.ones(1, 1, 1, 1), (5, 7)).flatten()
    torch.testing.assert_close(weights[9:11], torch.tensor([0.75, 0.25]))
    torch.testing.assert_close(weights.sum(), torch.tensor(1.0))


def test_what_falls_outside_of_a_map_is_lost():
    places = torch.tensor([[0.0, 0.5 / 5]]).expand(1, 1, 1, 1, 2)  # half a patch left of the first centre
    weights = sampled_weights(places, torch.ones(1, 1, 1, 1), (5, 7)).flatten()
    torch.testing.assert_close(weights.sum(), torch.tensor(0.5))


def test_a_query_reads_only_where_its_box_is():
    attention = DeformableAttention(DIM, HEADS, num_levels=2)  # its first places lie in and on the box
    query = torch.randn(1, 1, DIM)
    box = torch.tensor([[[0.25, 0.3, 0.1, 0.1]]])
    tokens = torch.randn(1, sum(NUM_CELLS), DIM, requires_grad=True)

    attention(query, _random(((40, 56),), tokens=tokens), box).sum().backward()

    is_read = tokens.grad[0].abs().amax(dim=-1) > 0
    fine, coarse = is_read[: NUM_CELLS[0]].reshape(5, 7), is_read[NUM_CELLS[0] :].reshape(3, 4)
    assert fine[:, :4].any()
    assert not fine[:, 4:].any()
    assert not fine[4:].any()
    assert coarse[:2, :2].any()
    assert not coarse[:, 3].any()


def test_places_beyond_the_image_are_moved_to_its_edge():
    attention, query = _attention(), torch.randn(1, 5, DIM)
    boxes = torch.tensor([[[0.98, 0.97, 0.5, 0.5]] * 5])
    is_image = torch.zeros(1, sum(NUM_CELLS), dtype=torch.bool)
    is_image[:, : NUM_CELLS[0]].reshape(1, 5, 7)[:, :4, :5] = True  # of an image of 27 x 37 pixels
    is_image[:, NUM_CELLS[0] :].reshape(1, 3, 4)[:, :2, :3] = True
    tokens = torch.randn(1, sum(NUM_CELLS), DIM)
    changed = tokens + 1e3 * ~is_image[..., None]

    results = [
        attention(query, _random(((27, 37),), tokens=each, is_image=is_image), boxes)
        for each in (tokens, changed)
    ]

    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-3)  # a place is moved up to rounding


def test_a_padded_map_is_read_like_the_bare_one():
    attention, query, boxes = _attention(), torch.randn(1, 5, DIM), _boxes()[:1]
    fine, coarse = torch.randn(1, 4, 5, DIM), torch.randn(1, 2, 3, DIM)
    bare = FeatureLevels(
        torch.cat((fine.flatten(1, 2), coarse.flatten(1, 2)), dim=1),
        ((4, 5), (2, 3)),
        STRIDES,
        torch.tensor([[27.0, 37.0]]),
        None,
    )
    padded_fine, padded_coarse = torch.zeros(1, 5, 7, DIM), torch.zeros(1, 3, 4, DIM)
    padded_fine[:, :4, :5], padded_coarse[:, :2, :3] = fine, coarse
    tokens = torch.cat((padded_fine.flatten(1, 2), padded_coarse.flatten(1, 2)), dim=1)
    padded = _random(((27, 37),), tokens=tokens)
    torch.testing.assert_close(
        attention(query, padded, boxes), attention(query, bare, boxes), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("part", ["query", "boxes", "tokens"])
def test_gradients_reach_what_is_given(part):
    given = {
        "query": torch.randn(2, 5, DIM),
        "boxes": _boxes(),
        "tokens": torch.randn(2, sum(NUM_CELLS), DIM),
    }
    given[part].requires_grad_()
    _attention()(given["query"], _random(tokens=given["tokens"]), given["boxes"]).square().sum().backward()
    assert given[part].grad.abs().max() > 0
