from __future__ import annotations

import numpy as np
import pytest

from vitrail.tasks.detection.faults import ROWS, find_faults, find_twins, order_corners, repair_boxes

SIZE = (50, 70)


def faults_of(*box: float) -> list[str]:
    boxes = np.array([box], dtype=np.float32)
    faults = find_faults(boxes, np.array([SIZE], dtype=np.int64))
    return [name for name, mask in faults._asdict().items() if mask[0]]


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        ((0, 0, 70, 50), []),
        ((3, 5, 20, 30), []),
        ((3, 5, np.nan, 30), ["not_finite"]),
        ((3, 5, np.inf, 30), ["not_finite"]),
        ((3, 5, 3, 30), ["empty"]),
        ((3, 30, 20, 5), ["inverted"]),
        ((20, 5, 3, 30), ["inverted"]),
        ((70, 5, 90, 30), ["outside"]),
        ((3, -9, 20, 0), ["outside"]),
        ((60, 5, 80, 30), ["beyond_edge"]),
        ((-3, 5, 20, 30), ["beyond_edge"]),
        ((60, 5, 71, 30), ["at_edge"]),
        ((60, 5, 70.01, 30), []),
        ((3, 5, 4, 30), ["one_pixel"]),
        ((3, 5, 30, 5.5), ["one_pixel"]),
        ((3, 5, 5, 7), []),
    ],
)
def test_a_box_is_told_under_the_first_fault_that_it_has(box: tuple[float, ...], expected: list[str]) -> None:
    assert faults_of(*box) == expected


def test_each_box_is_judged_by_the_size_of_its_own_image() -> None:
    boxes = np.array([[3, 5, 30, 40], [3, 5, 30, 40]], dtype=np.float32)

    faults = find_faults(boxes, np.array([[50, 70], [20, 70]], dtype=np.int64))

    assert faults.beyond_edge.tolist() == [False, True]


def test_the_rounding_that_is_forgiven_grows_with_the_image() -> None:
    boxes = np.array([[5, 5, 1010, 40]], dtype=np.float32)

    large = find_faults(boxes, np.array([[50, 1003]], dtype=np.int64))
    small = find_faults(boxes - np.float32(930), np.array([[50, 73]], dtype=np.int64))

    assert large.at_edge[0]
    assert not small.at_edge[0]


def test_corners_are_ordered_without_changing_the_area() -> None:
    boxes = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)

    ordered = order_corners(boxes)

    assert (ordered[:, 2:] >= ordered[:, :2]).all()
    np.testing.assert_array_equal(np.abs(boxes[:, 2:] - boxes[:, :2]), ordered[:, 2:] - ordered[:, :2])


def test_twins_are_found_across_the_blocks_in_which_boxes_are_compared() -> None:
    generator = np.random.default_rng(0)
    first = np.arange(ROWS + 50)[:, None] * np.array([40.0, 0.0]) + generator.uniform(0, 9, (ROWS + 50, 2))
    boxes = np.concatenate((first, first + 20), axis=1).astype(np.float32)
    boxes[ROWS + 30] = boxes[7] + np.float32(0.2)
    boxes[ROWS + 40] = boxes[ROWS + 30]

    assert find_twins(boxes, np.zeros(len(boxes), dtype=np.int64)) == [(7, ROWS + 30), (7, ROWS + 40)]


def test_boxes_that_overlap_by_half_are_no_twins() -> None:
    boxes = np.array([[0, 0, 20, 20], [0, 5, 20, 25], [0, 0, 20, 10]], dtype=np.float32)

    assert find_twins(boxes, np.zeros(len(boxes), dtype=np.int64)) == []


def test_repair_keeps_sound_boxes_and_tells_every_change() -> None:
    boxes = np.array(
        [
            [3, 5, 20, 30],  # sound
            [40, 30, 25, 10],  # inverted
            [60, 5, 80, 30],  # over the edge
            [3, 5, 20.2, 30],  # the first one again
            [3, 5, 20, 30],  # again, of another class
            [9, 9, 9, 30],
            [90, 9, 99, 30],
            [np.nan, 9, 9, 30],
            [3, 5, 20, 30],  # a group
        ],
        dtype=np.float32,
    )
    labels = np.array([0, 0, 0, 0, 1, 0, 0, 0, 0])
    is_crowd = np.arange(9) == 8

    repaired = repair_boxes(boxes, labels, is_crowd, SIZE)

    assert repaired.kept.tolist() == [0, 1, 2, 4, 8]
    assert repaired.boxes_xyxy[1:3].tolist() == [[25, 10, 40, 30], [60, 5, 70, 30]]
    assert repaired.changes == {
        "swapped": [1],
        "clipped": [2],
        "not-finite": [7],
        "empty": [5],
        "outside": [6],
        "duplicate": [3],
    }


def test_repair_of_repaired_boxes_changes_nothing() -> None:
    generator = np.random.default_rng(0)
    boxes = generator.uniform(-30, 90, size=(60, 4)).astype(np.float32)
    labels, is_crowd = generator.integers(0, 2, 60), np.zeros(60, dtype=bool)

    once = repair_boxes(boxes, labels, is_crowd, SIZE)
    twice = repair_boxes(once.boxes_xyxy, labels[once.kept], is_crowd[once.kept], SIZE)

    assert twice.changes == {}
    np.testing.assert_array_equal(once.boxes_xyxy, twice.boxes_xyxy)


def test_images_without_boxes_pass_through() -> None:
    none = np.zeros((0, 4), dtype=np.float32)

    repaired = repair_boxes(none, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool), SIZE)

    assert repaired.boxes_xyxy.shape == (0, 4)
    assert repaired.changes == {}
    assert find_twins(none, np.zeros(0, dtype=np.int64)) == []
