from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from making.box_scenes import boxes_in_memory
from vitrail.data.images import UPRIGHT
from vitrail.data.inspection import Inspection
from vitrail.tasks.data_page import samples_in
from vitrail.tasks.detection.dataset import BoxDataset, BoxSplit, SourceFacts
from vitrail.tasks.detection.inspection import (
    ExaminedBoxes,
    Frame,
    frame_of,
    inspect_boxes,
    to_upright,
    turn_boxes,
)


def two_images() -> BoxDataset:
    images = np.random.default_rng(0).integers(0, 255, size=(3, 20, 30, 3), dtype=np.uint8)
    boxes = [np.array([[1, 2, 9, 9], [3, 3, 8, 8]]), np.zeros((0, 4)), np.array([[0, 0, 30, 20]])]
    labels = [np.array([1, 0]), np.zeros(0), np.array([1])]
    split = BoxSplit(images, boxes, labels, ["a", "b", "c"], sizes=np.array([[20, 30]] * 3))
    return boxes_in_memory(split.take([0, 1]), test=split.take([2]), class_names=("x", "y"))


def test_boxes_lie_in_one_table_with_their_images() -> None:
    examined = inspect_boxes(two_images())

    assert examined.table.image.tolist() == [0, 0, 2]
    assert examined.table.number.tolist() == [0, 1, 0]
    assert examined.table.sizes.tolist() == [[20, 30]] * 3
    assert [image.split for image in examined.images] == ["train", "train", "test"]
    assert examined.per_class["train"].tolist() == [1, 1]
    assert examined.per_class["test"].tolist() == [0, 1]


def test_a_set_without_any_box_has_an_empty_table() -> None:
    dataset = two_images().without({"a", "c"})

    examined = inspect_boxes(dataset)

    assert examined.table.boxes_xyxy.shape == (0, 4)
    assert not examined.per_class["train"].any()


def test_named_boxes_are_read_back() -> None:
    examined = inspect_boxes(two_images())

    assert examined.name_box(1) == "a: box 1 (x) 3, 3, 8, 8"
    assert list(samples_in(examined.name_box(1), frozenset("abc"))) == [("a", "box 1 (x) 3, 3, 8, 8")]


BOX = np.array([[2, 3, 7, 5]], dtype=np.float32)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_turn_as_the_pixels_do(orientation: int) -> None:
    height, width = 11, 17
    pixels = np.zeros((height, width), dtype=np.uint8)
    pixels[3:5, 2:7] = 255
    image = Image.fromarray(pixels)
    upright = np.asarray(image.transpose(UPRIGHT[orientation]) if orientation > 1 else image)

    ((left, top, right, bottom),) = turn_boxes(BOX, orientation, (height, width)).astype(int).tolist()

    rows, columns = np.nonzero(upright)
    assert (left, top, right, bottom) == (
        columns.min(),
        rows.min(),
        columns.max() + 1,
        rows.max() + 1,
    )


@pytest.mark.parametrize(
    ("size", "orientation", "claimed", "kind"),
    [
        ((30, 50), 1, None, "upright"),
        ((30, 50), 1, (0, 0), "upright"),
        ((30, 50), 1, (30, 50), "upright"),
        ((30, 50), 1, (31, 50), "upright"),
        ((30, 50), 1, (60, 100), "scaled"),
        ((30, 50), 1, (15, 25), "scaled"),
        ((30, 50), 1, (50, 30), "unknown"),
        ((30, 50), 1, (30, 60), "unknown"),
        ((30, 50), 6, (30, 50), "upright"),
        ((30, 50), 6, (50, 30), "turned"),
        ((30, 50), 6, None, "unclear-turn"),
        ((30, 50), 3, (30, 50), "unclear-turn"),
        ((40, 40), 6, (40, 40), "unclear-turn"),
        ((40, 41), 6, (40, 41), "upright"),
        ((40, 41), 6, (41, 40), "turned"),
    ],
)
def test_the_claimed_size_tells_what_boxes_were_drawn_on(
    size: tuple[int, int], orientation: int, claimed: tuple[int, int] | None, kind: str
) -> None:
    seen = Inspection(height=size[0], width=size[1], orientation=orientation)

    assert frame_of(seen, claimed, BOX).kind == kind


@pytest.mark.parametrize(
    ("others", "kind"),
    [
        ([(30, 20), (30, 20)], "turned"),
        ([(20, 30), (20, 30)], "upright"),
        ([(20, 30), (30, 20)], "unclear-turn"),
        ([None, (30, 20)], "unclear-turn"),  # one for two that are unclear
    ],
)
def test_a_turn_that_no_size_tells_is_taken_for_that_of_the_others(
    others: list[tuple[int, int] | None], kind: str
) -> None:
    sides = np.array([(20, 20), (20, 30), (20, 30)])
    images = [np.zeros((*side, 3), dtype=np.uint8) for side in sides]
    names = ["square", "a", "b"]
    claims = dict(zip(names, [(20, 20), *others], strict=True))
    facts = SourceFacts(claimed_sizes={name: size for name, size in claims.items() if size})
    split = BoxSplit(images, [BOX] * 3, [np.zeros(1)] * 3, names, sizes=sides)
    seen = [Inspection(height=height, width=width, orientation=6) for height, width in sides.tolist()]

    dataset = boxes_in_memory(split, facts=facts)
    examined = ExaminedBoxes(dataset, {"train": seen, "validation": [], "test": []})

    assert examined.images[0].frame == Frame(kind, (20, 20))


def test_a_claim_that_the_boxes_do_not_keep_is_not_believed() -> None:
    seen = Inspection(height=100, width=200)
    boxes = np.array([[120, 10, 180, 90]], dtype=np.float32)

    assert frame_of(seen, (50, 100), boxes) == Frame("unknown", (100, 200))
    assert frame_of(seen, (200, 400), boxes) == Frame("scaled", (200, 400))


def test_scaled_boxes_are_brought_to_the_size_of_the_file() -> None:
    seen = Inspection(height=30, width=50)

    scaled = to_upright(BOX, Frame("scaled", (60, 150)), seen)

    np.testing.assert_allclose(scaled, [[2 / 3, 1.5, 7 / 3, 2.5]], rtol=1e-6)
