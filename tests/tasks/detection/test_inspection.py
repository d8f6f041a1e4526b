from __future__ import annotations

import numpy as np
import pytest

from making.box_scenes import boxes_in_memory
from vitrail.tasks.detection.dataset import BoxDataset, BoxSplit
from vitrail.tasks.detection.inspection import image_and_box, inspect_boxes


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
    assert image_and_box(examined.name_box(1), frozenset("abc")) == ("a", 1)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("x: box 3 (cat) 1, 2, 3, 4", ("x", 3)),
        ("x = b.png", ("x", None)),
        ("x", ("x", None)),
        ("a: b = c.png: box 12 (a: b) 1, 2, 3, 4", ("a: b = c.png", 12)),
        ("x: 30 x 40 px claimed", ("x", None)),
        ("x: box of an unknown kind", ("x", None)),
        ("cat (17)", None),
    ],
)
def test_items_tell_their_image(item: str, expected: tuple[str, int | None] | None) -> None:
    assert image_and_box(item, frozenset({"x", "a: b = c.png"})) == expected
