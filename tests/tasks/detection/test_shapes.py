from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vitrail.tasks.detection import shapes
from vitrail.tasks.detection.opening import open_boxes
from vitrail.tasks.registry import recognise


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "COUNTS", {"train": 40, "validation": 7, "test": 11})


def test_shapes_are_a_data_set_by_name(few: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, same = open_boxes("shapes"), open_boxes("builtin:shapes")

    assert recognise("shapes") == recognise("builtin:shapes") == "detection"
    assert [len(split) for split in one.splits.values()] == [40, 7, 11]
    assert one.class_names == ("circle", "square", "triangle")
    assert one.train.fingerprint == same.train.fingerprint
    assert one.train.fingerprint != one.test.fingerprint
    counts = np.bincount(np.concatenate(one.train.labels))
    assert counts.min() > 10
    assert {len(labels) for labels in one.train.labels} == {1, 2, 3, 4}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shapes" / "one").mkdir(parents=True)
    assert recognise("shapes") == "classification"  # a path comes first


def test_boxes_lie_around_what_is_drawn_and_areas_are_those_of_the_classes(few: None) -> None:
    split = open_boxes("shapes").train
    single = [index for index, labels in enumerate(split.labels) if len(labels) == 1]
    assert len(single) > 5
    for index in single:
        pixels = np.asarray(split.images[index], dtype=float).sum(axis=2)
        edges = np.concatenate((pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]))
        is_drawn = pixels > (np.median(edges) + pixels.max()) / 2 - 15
        rows, columns = np.nonzero(is_drawn)
        around = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
        (box,), (label,) = split.boxes[index], split.labels[index]
        np.testing.assert_allclose(box, around, atol=1.5)  # a corner covers little of its pixel
        radius = (box[2] - box[0]) / 2 if label == 0 else None
        if radius is not None:
            assert is_drawn.sum() == pytest.approx(np.pi * radius**2, rel=0.1)


def test_no_shape_hides_another(few: None) -> None:
    for boxes in open_boxes("shapes").train.boxes:
        for first in range(len(boxes)):
            for second in range(first):
                sides = np.minimum(boxes[first, 2:], boxes[second, 2:])
                sides = sides - np.maximum(boxes[first, :2], boxes[second, :2])
                shared = np.prod(sides.clip(min=0))
                smaller = min(np.prod(box[2:] - box[:2]) for box in (boxes[first], boxes[second]))
                assert shared <= 0.2 * smaller + 1e-3
