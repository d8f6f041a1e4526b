from __future__ import annotations

import pytest
import torch

from vitrail.core.boxes import cxcywh_to_xyxy
from vitrail.nn.box_queries import (
    EMPTY_LOGIT,
    BoxHead,
    LearnedQueries,
    ProposedQueries,
    add_box_noise,
    box_logits,
    box_positions,
    denoising_mask,
    first_queries,
    patch_anchors,
)
from vitrail.nn.deformable import FeatureLevels

GRIDS, STRIDES, DIM = ((3, 5), (2, 3)), (8, 16), 8


def _levels(tokens=None, *, sizes=((24, 40), (24, 40)), is_image=None):
    tokens = torch.randn(len(sizes), 21, DIM) if tokens is None else tokens
    return FeatureLevels(tokens, GRIDS, STRIDES, torch.tensor(sizes).float(), is_image)


def _proposer():
    queries = ProposedQueries(DIM, 5)
    with torch.no_grad():
        for parameter in queries.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return queries


def test_logits_of_boxes_are_undone_by_the_sigmoid():
    boxes = torch.rand(7, 4) * 0.9 + 0.05
    torch.testing.assert_close(box_logits(boxes).sigmoid(), boxes)
    assert box_logits(torch.tensor([0.0, 1.0, -1.0, 2.0])).isfinite().all()


def test_positions_tell_boxes_apart_that_are_near_each_other():
    boxes = torch.tensor([[0.5, 0.5, 0.2, 0.2], [0.51, 0.5, 0.2, 0.2], [0.5, 0.51, 0.2, 0.2]])
    positions = box_positions(boxes, 32)
    assert positions.shape == (3, 32)
    assert torch.cdist(positions, positions).fill_diagonal_(1.0).min() > 0.3


def test_anchors_are_squares_of_pixels_around_each_patch():
    anchors = patch_anchors(_levels()).sigmoid()
    pixels = anchors * torch.tensor([40.0, 24.0, 40.0, 24.0])
    torch.testing.assert_close(pixels[0, 5 + 2], torch.tensor([20.0, 12.0, 32.0, 23.976]))  # 32, cut to all


def test_a_head_begins_with_low_scores_and_moves_no_box():
    head, places = BoxHead(DIM, 3), torch.randn(2, 5, 4)
    logits, moved = head(torch.zeros(2, 5, DIM), places)
    torch.testing.assert_close(logits.sigmoid(), torch.full((2, 5, 3), 0.01))
    assert torch.equal(moved, places)


def test_the_surest_patches_are_proposed_in_order():
    queries, levels = _proposer(), _levels()
    every, best = queries(levels, 21), queries(levels, 4)
    scores = every.logits.amax(dim=-1)
    assert (scores[:, :-1] >= scores[:, 1:]).all()
    assert torch.equal(best.logits, every.logits[:, :4])
    assert torch.equal(best.queries.box_logits, first_queries(every.queries, 4).box_logits)
    assert best.queries.is_real is None


@pytest.mark.parametrize("num_proposals", [4, 9, 30])
def test_padding_proposes_nothing(num_proposals):
    is_image = torch.zeros(2, 21, dtype=torch.bool)
    is_image[0, [0, 1, 2, 5, 6, 7, 15, 16]] = True  # 16 x 24 pixels: 2x3 patches, and 1x2
    is_image[1] = True
    tokens = torch.randn(2, 21, DIM) * is_image[..., None]
    sizes, queries = ((16, 24), (24, 40)), _proposer()
    alone = FeatureLevels(
        tokens[:1, is_image[0]], ((2, 3), (1, 2)), STRIDES, torch.tensor([[16.0, 24.0]]), None
    )

    padded, bare = queries(_levels(tokens, sizes=sizes, is_image=is_image), num_proposals), None
    bare = queries(alone, num_proposals)

    torch.testing.assert_close(padded.logits[:1], bare.logits)
    torch.testing.assert_close(padded.queries.content[:1], bare.queries.content)
    torch.testing.assert_close(padded.queries.box_logits[:1], bare.queries.box_logits)
    if num_proposals > 8:
        assert padded.queries.is_real[0].sum() == 8
        assert (padded.logits[0, 8:] == EMPTY_LOGIT).all()
        assert (padded.queries.content[0, 8:] == 0).all()


def test_learned_queries_are_the_same_in_every_image_and_lie_in_it():
    queries = LearnedQueries(DIM, 6)(2)
    assert torch.equal(queries.content[0], queries.content[1])
    boxes = queries.box_logits.sigmoid()
    assert len(boxes[0].unique(dim=0)) == 6
    assert ((boxes > 0) & (boxes < 1)).all()


BOXES = torch.tensor(
    [
        [[0.5, 0.5, 0.2, 0.4], [0.3, 0.6, 0.1, 0.1], [0.6, 0.4, 0.3, 0.3]],
        [[0.5, 0.5, 0.4, 0.2], [float("nan")] * 4, [9.0] * 4],
        [[float("nan")] * 4] * 3,
    ]
)
LABELS = torch.tensor([[4, 1, 2], [3, 99, -7], [99, 99, 99]])
COUNTS = torch.tensor([3, 1, 0])


def _noise(**changes):
    settings = {"num_slots": 14, "num_classes": 5, "label_noise": 0.0, "box_noise": 0.5}
    return add_box_noise(LABELS, BOXES, COUNTS, **(settings | changes))


def test_half_of_the_slots_are_to_be_mended_to_a_box_of_their_image():
    noisy = _noise()
    assert noisy.assigned.shape == (3, 14)
    assert sorted(noisy.assigned[0, :7].tolist())[:6] != [0] * 6
    assert set(noisy.assigned[0, :7].tolist()) == {0, 1, 2}
    assert noisy.assigned[1, :7].tolist() == [0] * 7
    assert noisy.assigned[2].tolist() == [-1] * 14
    assert (noisy.assigned[:, 7:] == -1).all()


def test_a_group_has_each_box_once_to_be_mended_and_once_not():
    noisy = _noise()
    for half in (slice(0, 7), slice(7, 14)):
        assert sorted(noisy.groups[0, half].tolist()) == [0, 0, 0, 1, 1, 1, 2]
    pairs = set(zip(noisy.groups[0, :7].tolist(), noisy.assigned[0, :7].tolist(), strict=True))
    assert len(pairs) == 7
    assert noisy.groups[1, :7].tolist() == list(range(7))


def test_labels_are_the_boxes_own_unless_they_are_drawn_anew():
    noisy = _noise()
    assert torch.equal(noisy.labels[0, :7], LABELS[0][noisy.assigned[0, :7]])
    assert torch.equal(noisy.labels[0, 7:], noisy.labels[0, :7])
    drawn = _noise(label_noise=1.0, num_slots=200).labels
    assert set(drawn[1].tolist()) == set(range(5))
    assert ((noisy.labels >= 0) & (noisy.labels < 5)).all()


def test_corners_move_by_up_to_the_noise_and_too_far_ones_by_more():
    noise = 0.5
    noisy = _noise(box_noise=noise)
    true = BOXES[0][noisy.assigned[0, :7]]
    reach = true[:, 2:].repeat(1, 2) * noise / 2
    moved = (cxcywh_to_xyxy(noisy.boxes[0]).unflatten(0, (2, 7)) - cxcywh_to_xyxy(true)).abs() / reach
    assert (moved[0] <= 1 + 1e-4).all()
    assert (moved[1] >= 1 - 1e-4).all()
    assert (moved[1] <= 2 + 1e-4).all()


def test_noisy_boxes_are_boxes_in_the_image():
    boxes = _noise(box_noise=2.0, num_slots=60).boxes
    corners = cxcywh_to_xyxy(boxes)
    assert boxes.isfinite().all()
    assert (boxes[..., 2:] >= 0).all()
    assert (corners > -1e-6).all()
    assert (corners < 1 + 1e-6).all()


def test_of_too_many_boxes_some_are_left_out_by_chance():
    noisy = [_noise(num_slots=4).assigned[0, :2].tolist() for _ in range(40)]
    assert all(len(set(each)) == 2 for each in noisy)
    assert {index for each in noisy for index in each} == {0, 1, 2}


def test_a_batch_without_any_box_has_random_ones_that_are_nothing():
    noisy = add_box_noise(
        torch.zeros(2, 0, dtype=torch.int64),
        torch.zeros(2, 0, 4),
        torch.zeros(2, dtype=torch.int64),
        num_slots=6,
        num_classes=3,
        label_noise=0.2,
        box_noise=1.0,
    )
    assert (noisy.assigned == -1).all()
    assert len(noisy.boxes.flatten(0, 1).unique(dim=0)) == 12


def test_no_query_sees_a_slot_and_a_slot_sees_queries_and_its_group():
    groups = torch.tensor([[0, 0, 1], [0, 1, 1]])
    mask = denoising_mask(groups, 2)[:, 0].int().tolist()
    assert mask[0] == [[1, 1, 0, 0, 0]] * 2 + [[1, 1, 1, 1, 0]] * 2 + [[1, 1, 0, 0, 1]]
    assert mask[1] == [[1, 1, 0, 0, 0]] * 2 + [[1, 1, 1, 0, 0]] + [[1, 1, 0, 1, 1]] * 2
