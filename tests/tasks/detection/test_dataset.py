"""Splits with boxes are taken apart and fingerprinted together with their boxes."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.tasks.detection.dataset import BoxDataset, BoxSplit


def make_split(names: tuple[str, ...] = ("a", "b", "c")) -> BoxSplit:
    """Return images of 5 x 7 pixels with 0, 1, 2, ... boxes."""
    images = [np.full((5, 7, 3), index, dtype=np.uint8) for index in range(len(names))]
    boxes = [np.arange(4 * count, dtype=np.float32).reshape(count, 4) for count in range(len(names))]
    labels = [np.arange(count) for count in range(len(names))]
    return BoxSplit(images, boxes, labels, names, sizes=np.full((len(names), 2), (5, 7)))


def test_taking_images_takes_their_boxes_labels_sizes_and_names() -> None:
    part = make_split().take([2, 0])
    assert part.names == ("c", "a")
    assert [len(boxes) for boxes in part.boxes] == [2, 0]
    assert part.labels[0].tolist() == [0, 1]
    assert part.images[0][0, 0, 0] == 2
    assert part.sizes.tolist() == [[5, 7], [5, 7]]
    assert part.boxes[1].shape == (0, 4)


def test_boxes_are_counted_by_class() -> None:
    split = make_split()
    assert split.num_boxes == 3


def test_no_box_is_a_crowd_unless_it_is_said() -> None:
    assert [part.tolist() for part in make_split().is_crowd] == [[], [False], [False, False]]


def test_fingerprints_change_with_boxes_labels_crowds_and_their_images() -> None:
    split = make_split()
    moved, relabelled = list(split.boxes), list(split.labels)
    moved[2], relabelled[2] = moved[2] + 1, relabelled[2] + 1
    crowds = [part | True for part in split.is_crowd]
    others = [
        BoxSplit(split.images, moved, split.labels, split.names),
        BoxSplit(split.images, split.boxes, relabelled, split.names),
        BoxSplit(split.images, split.boxes, split.labels, split.names, is_crowd=crowds),
        BoxSplit(split.images, split.boxes[::-1], split.labels[::-1], split.names),
        make_split(("a", "b", "d")),
    ]
    prints = {part.fingerprint for part in [split, *others]}
    assert len(prints) == 6
    assert make_split().fingerprint == split.fingerprint


def test_boxes_must_be_as_many_as_labels() -> None:
    split = make_split()
    with pytest.raises(AssertionError, match="boxes and labels"):
        BoxSplit(split.images, split.boxes, split.labels[::-1], split.names)


def test_a_data_set_without_some_images() -> None:
    train, validation, test = (
        make_split(tuple(f"{part}{index}" for index in range(3))) for part in ("x", "y", "z")
    )
    dataset = BoxDataset(
        source="here",
        format="arrays",
        class_names=("cat", "dog"),
        class_ids=(1, 7),
        train=train,
        validation=validation,
        test=test,
    )
    smaller = dataset.without({"x1", "z0", "z2"})
    assert [len(split) for split in smaller.splits.values()] == [2, 3, 1]
    assert smaller.fingerprint != dataset.fingerprint
    assert dataset.without(()) is dataset
