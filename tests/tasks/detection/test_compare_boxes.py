from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from making.bright_boxes import bright_detector, picture_with
from vitrail.tasks.detection.dataset import BoxSplit
from vitrail.tasks.detection.errors import ImageErrors, ImageOutcome
from vitrail.tasks.detection.predictor import Detector
from vitrail.tasks.detection.report import compare_boxes
from vitrail.tasks.detection.scores import CocoScores, DetectionTables

RED, GREEN, BLUE = (8, 16, 48, 40), (32, 0, 64, 20), (2, 44, 62, 60)


def tables(*worst: ImageOutcome) -> DetectionTables:
    return DetectionTables(
        scores=CocoScores(ap=None, ap50=None, ap75=None),
        per_class=(),
        threshold=0.7,
        precision=0.0,
        recall=0.0,
        confusion=(),
        images=(ImageErrors(index=0, correct=0, missed=0, confused=0, spurious=0),),
        worst=worst,
    )


def split_of(picture: object, other: object) -> BoxSplit:
    boxes = [np.array([RED, (0, 0, 20, 20), GREEN], np.float32), np.zeros((0, 4), np.float32)]
    labels = [np.array([0, 1, 2]), np.zeros(0, np.int64)]
    return BoxSplit([picture, other], boxes, labels, ["one", "two"])


def test_every_box_is_told_right_wrong_or_missed(tmp_path: Path) -> None:
    picture = picture_with((64, 64), {0: RED, 1: GREEN, 2: BLUE})
    encoded = io.BytesIO()
    picture.save(encoded, format="png")
    (tmp_path / "broken.png").write_text("no image")
    split = split_of(encoded.getvalue(), tmp_path / "broken.png")

    compared = compare_boxes(Detector(bright_detector()), split, tables(), [1, 0])

    assert [image.name for image in compared] == ["one"]
    outcome = compared[0].outcome
    assert [box.outcome for box in outcome.true] == ["correct", "missed", "confused"]
    # Green is called blue in the data; blue has a score of 0.731, above the threshold of the tables.
    assert [(box.label, box.outcome) for box in outcome.found] == [
        (0, "correct"),
        (1, "confused"),
        (2, "spurious"),
    ]
    assert np.array_equal(np.asarray(compared[0].picture), np.asarray(picture))


def test_the_worst_images_are_not_looked_through_again() -> None:
    pixels = np.zeros((9, 9, 3), np.uint8)
    known = ImageOutcome(index=1, true=(), found=())

    compared = compare_boxes(Detector(bright_detector()), split_of(pixels, pixels), tables(known), [1])

    assert compared[0].outcome is known
