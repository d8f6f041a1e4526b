from __future__ import annotations

import numpy as np
import pytest

from making.box_scenes import as_centre, as_corners, as_xywh, boxes_in_memory, in_shares
from vitrail.tasks.detection.box_format import reread_boxes
from vitrail.tasks.detection.dataset import BoxDataset, BoxSplit, SourceFacts
from vitrail.tasks.detection.inspection import inspect_boxes

SIZE = np.array([60, 90])
LAYOUTS = ("xyxy", "xywh", "cxcywh")


def true_boxes(count: int = 40) -> np.ndarray:
    generator = np.random.default_rng(0)
    first = generator.uniform([0, 0], [70, 40], size=(count, 2))
    return np.concatenate((first, generator.uniform(first + 6, [90, 60])), axis=1)


def write(boxes: np.ndarray, layout: str, unit: str) -> np.ndarray:
    convert = {"xyxy": as_corners, "xywh": as_xywh, "cxcywh": as_centre}[layout]
    convert = in_shares(convert) if unit == "shares" else convert
    return np.array([convert(box, (60, 90)) for box in boxes.tolist()])


def read(numbers: np.ndarray, box_format: str) -> np.ndarray:
    """Return corners in pixels, as a reader does that believes the claim."""
    first, last = numbers[:, :2], numbers[:, 2:]
    corners = {
        "xyxy": (first, last),
        "xywh": (first, first + last),
        "cxcywh": (first - last / 2, first + last / 2),
    }[box_format.split("_")[0]]
    return np.concatenate(corners, axis=1) * (
        np.array([90, 60, 90, 60]) if box_format.endswith("shares") else 1
    )


def dataset_of(boxes: np.ndarray, box_format: str) -> BoxDataset:
    images = np.zeros((1, 60, 90), dtype=np.uint8)
    split = BoxSplit(images, [boxes], [np.zeros(len(boxes))], ["a"], sizes=SIZE[None])
    facts = SourceFacts(box_format=box_format)
    return boxes_in_memory(split, facts=facts)


@pytest.mark.parametrize("claimed", ["xyxy", "xywh", "xyxy_shares", "xywh_shares", "cxcywh_shares"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("unit", ["pixels", "shares"])
def test_the_true_format_is_found_and_read(claimed: str, layout: str, unit: str) -> None:
    boxes = true_boxes()
    true = layout if unit == "pixels" else f"{layout}_shares"
    read_as_claimed = read(write(boxes, layout, unit), claimed).astype(np.float32)

    suspicion, mixed = inspect_boxes(dataset_of(read_as_claimed, claimed)).format
    assert mixed == ()

    if claimed == true:
        assert suspicion is None
        return
    assert suspicion is not None
    assert suspicion.likely == true
    assert f"({layout}) in {unit}" in suspicion.explain()
    again = reread_boxes(read_as_claimed, np.repeat(SIZE[None], len(boxes), axis=0), suspicion)
    np.testing.assert_allclose(again, boxes, atol=0.01)


def test_few_boxes_prove_nothing() -> None:
    inverted = true_boxes(4)[:, [2, 3, 0, 1]]

    assert inspect_boxes(dataset_of(inverted, "xyxy")).format == (None, ())


def test_noise_fits_no_format_and_is_not_suspected() -> None:
    noise = np.random.default_rng(0).uniform(-300, 300, size=(50, 4))

    assert inspect_boxes(dataset_of(noise, "xywh")).format == (None, ())


def test_a_few_bad_boxes_do_not_cast_suspicion() -> None:
    boxes = true_boxes()
    boxes[:3] += 500

    assert inspect_boxes(dataset_of(boxes, "xyxy")).format == (None, ())


@pytest.mark.parametrize(
    ("claimed", "other"),
    [("xywh", "xyxy"), ("xyxy", "xywh"), ("cxcywh_shares", "xyxy_shares"), ("cxcywh_shares", "xywh_shares")],
)
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_single_boxes_in_another_format_are_found(claimed: str, other: str, share: float) -> None:
    unit = "shares" if claimed.endswith("shares") else "pixels"
    numbers = write(true_boxes(100), claimed.split("_")[0], unit)
    wrong = slice(int(share * 100))
    numbers[wrong] = write(true_boxes(100)[wrong], other.split("_")[0], unit)

    suspicion, (mixed,) = inspect_boxes(dataset_of(read(numbers, claimed), claimed)).format

    assert suspicion is None
    assert (mixed.claimed, mixed.likely, mixed.total, mixed.splits) == (claimed, other, 100, ("train",))
    assert 3 <= mixed.against <= share * 100


def test_objects_that_pass_the_edge_are_no_other_format() -> None:
    boxes = true_boxes(100)
    boxes[:20, [2, 3]] += 25
    boxes[20:30, [0, 1]] -= 15

    assert inspect_boxes(dataset_of(boxes, "xywh")).format == (None, ())
    assert inspect_boxes(dataset_of(boxes, "xyxy")).format == (None, ())
