from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.core.boxes import (
    box_area,
    box_iou,
    clip_boxes,
    covered_share,
    cxcywh_to_xyxy,
    generalised_box_iou,
    paired_generalised_iou,
    paired_iou,
    xywh_to_xyxy,
    xyxy_to_cxcywh,
    xyxy_to_xywh,
)

# Whole numbers of this size have exact sums, halves and products in float64.
EDGE = st.integers(-50, 50)
examples = settings(max_examples=40, deadline=None, derandomize=True)


@st.composite
def corners(draw: st.DrawFn, size: int | None = None) -> torch.Tensor:
    """Some boxes with whole corners, boxes without width or height among them."""
    count = draw(st.integers(1, 5)) if size is None else size
    rows = []
    for _ in range(count):
        left, right = sorted((draw(EDGE), draw(EDGE)))
        top, bottom = sorted((draw(EDGE), draw(EDGE)))
        rows.append([left, top, right, bottom])
    return torch.tensor(rows, dtype=torch.float64)


def painted(box: torch.Tensor) -> np.ndarray:
    """The unit squares that a box with whole corners covers."""
    left, top, right, bottom = (int(edge) + 50 for edge in box)
    squares = np.zeros((100, 100), dtype=bool)
    squares[top:bottom, left:right] = True
    return squares


def random_boxes(count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    first, size = torch.rand(2, count, 2, generator=generator)
    return torch.cat((first, first + size), dim=-1)


@examples
@given(corners())
def test_formats_lead_back_to_where_they_began(boxes: torch.Tensor) -> None:
    assert torch.equal(cxcywh_to_xyxy(xyxy_to_cxcywh(boxes)), boxes)
    assert torch.equal(xywh_to_xyxy(xyxy_to_xywh(boxes)), boxes)


@examples
@given(corners())
def test_all_formats_tell_the_same_size_and_centre(boxes: torch.Tensor) -> None:
    centred, sized = xyxy_to_cxcywh(boxes), xyxy_to_xywh(boxes)
    assert torch.equal(centred[:, 2:], sized[:, 2:])
    assert torch.equal(centred[:, :2] * 2, sized[:, :2] * 2 + sized[:, 2:])
    assert torch.equal(box_area(boxes), sized[:, 2] * sized[:, 3])


@examples
@given(corners(size=2))
def test_overlap_equals_that_of_painted_squares(boxes: torch.Tensor) -> None:
    first, second = painted(boxes[0]), painted(boxes[1])
    union = (first | second).sum()
    expected = (first & second).sum() / union if union else 0.0
    found = paired_iou(boxes[0], boxes[1])
    assert found.item() == pytest.approx(expected, abs=1e-12)


@examples
@given(corners(size=2))
def test_generalised_overlap_takes_off_the_empty_share_of_the_hull(boxes: torch.Tensor) -> None:
    first, second = painted(boxes[0]), painted(boxes[1])
    edges = boxes.numpy()
    hull = painted(torch.tensor([*edges[:, :2].min(0), *edges[:, 2:].max(0)])).sum()
    union = (first | second).sum()
    expected = ((first & second).sum() / union if union else 0.0) - ((hull - union) / hull if hull else 0.0)
    found = paired_generalised_iou(boxes[0], boxes[1])
    assert found.item() == pytest.approx(expected, abs=1e-12)
    assert -1 <= found.item() <= paired_iou(boxes[0], boxes[1]).item() <= 1


@examples
@given(corners(), corners())
def test_overlap_of_all_pairs_is_that_of_each_pair_and_symmetric(
    boxes: torch.Tensor, others: torch.Tensor
) -> None:
    for all_pairs, pair in ((box_iou, paired_iou), (generalised_box_iou, paired_generalised_iou)):
        table = all_pairs(boxes, others)
        assert table.shape == (len(boxes), len(others))
        for row, box in enumerate(boxes):
            assert torch.equal(table[row], pair(box, others))
        assert torch.equal(table, all_pairs(others, boxes).T)


@examples
@given(corners())
def test_a_box_with_an_area_overlaps_itself_wholly(boxes: torch.Tensor) -> None:
    has_area = box_area(boxes) > 0
    assert torch.equal(paired_iou(boxes, boxes), has_area.double())
    assert torch.equal(paired_generalised_iou(boxes, boxes), has_area.double())


@examples
@given(corners(), st.integers(-30, 30), st.integers(1, 9))
def test_moving_and_scaling_both_boxes_changes_no_overlap(
    boxes: torch.Tensor, distance: int, factor: int
) -> None:
    table, moved = generalised_box_iou(boxes, boxes), boxes * factor + distance
    torch.testing.assert_close(generalised_box_iou(moved, moved), table, rtol=1e-12, atol=1e-12)


def test_batches_of_boxes_are_compared_image_by_image() -> None:
    boxes, others = random_boxes(6, 1).view(2, 3, 4), random_boxes(10, 2).view(2, 5, 4)
    table = generalised_box_iou(boxes, others)
    assert table.shape == (2, 3, 5)
    for image in range(2):
        assert torch.equal(table[image], generalised_box_iou(boxes[image], others[image]))


def test_no_box_has_no_overlap() -> None:
    assert box_iou(torch.zeros(0, 4), random_boxes(3, 0)).shape == (0, 3)
    assert generalised_box_iou(random_boxes(2, 0), torch.zeros(0, 4)).shape == (2, 0)


@pytest.mark.parametrize(("ours", "is_crowd"), [(box_iou, 0), (covered_share, 1)])
def test_overlap_and_share_within_crowds_equal_those_of_coco(ours: Any, is_crowd: int) -> None:
    from pycocotools import mask

    boxes, others = random_boxes(7, 3).double(), random_boxes(5, 4).double()
    expected = mask.iou(xyxy_to_xywh(boxes).numpy(), xyxy_to_xywh(others).numpy(), [is_crowd] * 5)
    torch.testing.assert_close(ours(boxes, others), torch.from_numpy(expected))


def test_overlap_equals_that_of_transformers() -> None:
    from transformers.loss.loss_for_object_detection import generalized_box_iou

    boxes, others = random_boxes(7, 5), random_boxes(5, 6)
    torch.testing.assert_close(generalised_box_iou(boxes, others), generalized_box_iou(boxes, others))


def test_gradients_are_numbers_where_boxes_have_no_area() -> None:
    boxes = torch.tensor([[1.0, 1, 1, 1], [2, 2, 2, 5], [0, 0, 3, 3]], requires_grad=True)
    others = torch.tensor([[1.0, 1, 1, 1], [2, 2, 2, 7], [5, 5, 5, 5]])
    (paired_generalised_iou(boxes, others).sum() + box_iou(boxes, others).sum()).backward()
    assert boxes.grad is not None
    assert boxes.grad.isfinite().all()


def test_boxes_that_do_not_touch_are_drawn_together() -> None:
    box = torch.tensor([0.0, 0, 1, 1], requires_grad=True)
    paired_generalised_iou(box, torch.tensor([3.0, 0, 4, 1])).backward()
    assert box.grad is not None
    assert box.grad[2] > 0  # its right edge should move to the right


@examples
@given(corners(), st.integers(0, 40), st.integers(0, 40))
def test_clipping_keeps_what_is_inside(boxes: torch.Tensor, height: int, width: int) -> None:
    clipped = clip_boxes(boxes, (height, width))
    image = painted(torch.tensor([0, 0, width, height]))
    for before, after in zip(boxes, clipped, strict=True):
        assert ((painted(before) & image) == painted(after)).all()
    assert torch.equal(clip_boxes(clipped, (height, width)), clipped)


def test_corners_the_wrong_way_round_have_no_area() -> None:
    inverted = torch.tensor([[4.0, 1, 2, 3], [4.0, 3, 2, 1]])
    assert box_area(inverted).tolist() == [0, 0]
    assert box_iou(inverted, torch.tensor([[0.0, 0, 9, 9]])).tolist() == [[0], [0]]
