import pytest
import torch

from vitrail.nn.box_queries import (
    EMPTY_LOGIT,
    BoxHead,
    LearnedQueries,
    ProposedQueries,
    box_logits,
    box_positions,
    cell_anchors,
    first_queries,
)
from vitrail.nn.feature_levels import FeatureLevels

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


def test_anchors_are_squares_of_pixels_around_each_cell():
    anchors = cell_anchors(_levels()).sigmoid()
    pixels = anchors * torch.tensor([40.0, 24.0, 40.0, 24.0])
    torch.testing.assert_close(pixels[0, 5 + 2], torch.tensor([20.0, 12.0, 32.0, 23.976]))  # 32, cut to all


def test_a_head_begins_with_low_scores_and_moves_no_box():
    head, places = BoxHead(DIM, 3), torch.randn(2, 5, 4)
    logits, moved = head(torch.zeros(2, 5, DIM), places)
    torch.testing.assert_close(logits.sigmoid(), torch.full((2, 5, 3), 0.01))
    assert torch.equal(moved, places)


def test_the_surest_cells_are_proposed_in_order():
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
    is_image[0, [0, 1, 2, 5, 6, 7, 15, 16]] = True  # 16 x 24 pixels: 2x3 cells, and 1x2
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
