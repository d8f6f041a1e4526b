from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from making.bright_boxes import bright_detector, picture_with
from vitrail.interpret.draw import colour_of
from vitrail.report.sections import RunRecord
from vitrail.tasks.detection import report as detection_report
from vitrail.tasks.detection.dataset import BoxSplit
from vitrail.tasks.detection.errors import FoundBox, ImageErrors, ImageOutcome, TrueBox
from vitrail.tasks.detection.predictor import Detector
from vitrail.tasks.detection.report import (
    ComparedImage,
    best_images,
    compare_boxes,
    typical_images,
    write_detection_report,
)
from vitrail.tasks.detection.scores import RECALLS, ClassDetection, CocoScores, DetectionTables
from vitrail.train.evaluate import Report

RED, GREEN, BLUE = (8, 16, 48, 40), (32, 0, 64, 20), (2, 44, 62, 60)
EVIL = "</script><b>wbc"
NAMES = ("rbc", EVIL, "platelet")


def toy_class(ap: float | None) -> ClassDetection:
    if ap is None:
        return ClassDetection(
            num_boxes=0, ap=None, ap50=None, ap75=None, ar100=None, precision=(), thresholds=()
        )
    curve = tuple(1.0 if recall < ap else 0.0 for recall in RECALLS)
    scores = tuple(1 - recall if recall < ap else 0.0 for recall in RECALLS)
    return ClassDetection(
        num_boxes=1234, ap=ap, ap50=ap, ap75=ap / 2, ar100=ap, precision=curve, thresholds=scores
    )


def toy_tables(
    aps: tuple[float | None, ...] = (0.75, 0.25, None),
    counts: tuple[tuple[int, int, int, int], ...] = ((1, 1, 0, 1),),
    worst: tuple[ImageOutcome, ...] = (),
    threshold: float = 0.375,
) -> DetectionTables:
    """Return tables of classes with such AP, and of images with so many boxes of each outcome."""
    size = len(aps) + 1
    confusion = tuple(tuple(10 * row + column for column in range(size)) for row in range(size))
    return DetectionTables(
        scores=CocoScores(ap=0.512, ap50=0.8125, ap75=0.4375, ap_small=None, ap_large=0.625, ar100=0.5),
        per_class=tuple(map(toy_class, aps)),
        threshold=threshold,
        threshold_origin="the best F1 of the validation images",
        precision=0.8,
        recall=0.6,
        confusion=confusion,
        images=tuple(
            ImageErrors(index=10 + row, correct=correct, missed=missed, confused=confused, spurious=spurious)
            for row, (correct, missed, confused, spurious) in enumerate(counts)
        ),
        worst=worst,
    )


def compared() -> ComparedImage:
    outcome = ImageOutcome(
        index=0,
        true=(
            TrueBox(label=0, box=(10, 10, 60, 60), outcome="correct"),
            TrueBox(label=1, box=(100, 10, 160, 60), outcome="missed"),
        ),
        found=(
            FoundBox(label=0, score=0.9, box=(11, 10, 60, 60), outcome="correct", match=0),
            FoundBox(label=2, score=0.5, box=(10, 100, 60, 160), outcome="spurious", match=None),
        ),
    )
    return ComparedImage(picture=Image.new("RGB", (200, 200), "white"), name=EVIL, outcome=outcome)


def record(tables: DetectionTables, names: tuple[str, ...] = NAMES, **more: object) -> RunRecord:
    report = Report(
        signature={"data": "cells@0123", "split": "test"},
        scores={"ap": 0.512, "ap50": 0.8125},
        tables=tables.model_dump(mode="json"),
        class_names=names,
    )
    return RunRecord(title="detr on cells", report=report, command="vitrail train cells", **more)


def text_of(path: Path) -> str:
    return re.sub(r"<[^>]+>", " ", re.sub(r"<(style|svg).*?</\1>", " ", path.read_text(), flags=re.DOTALL))


def test_scores_and_their_signature_are_on_top_and_classes_listed_the_weakest_first(tmp_path: Path) -> None:
    write_detection_report(tmp_path / "out.html", record(toy_tables()), {})

    page, text = (tmp_path / "out.html").read_text(), text_of(tmp_path / "out.html")
    assert "data:cells@0123|split:test" in text
    assert all(value in text for value in ("0.512", "0.812", "0.438", "0.625", "80.0%", "60.0%", "0.38"))
    assert "0.38: the best F1 of the validation images" in text
    assert "AP large" in text
    assert "AP small" not in text  # the data have no small box
    rows = re.findall(r"<tr><td>(.*?)</td><td class=number>(.*?)</td><td class=number>(.*?)</td>", page)
    assert rows == [
        ("&lt;/script&gt;&lt;b&gt;wbc", "1,234", "0.250"),
        ("rbc", "1,234", "0.750"),
        ("platelet", "0", "none"),
    ]


def test_images_stand_beside_what_was_found_with_their_errors_told(tmp_path: Path) -> None:
    write_detection_report(
        tmp_path / "out.html", record(toy_tables()), {"worst": [compared()], "best": [compared()]}
    )

    page, text = (tmp_path / "out.html").read_text(), text_of(tmp_path / "out.html")
    assert page.count("<img ") == 4
    assert "ground truth: 2" in text
    assert re.search(r"1 correct,\s+1 missed\s*,\s+1 found twice or where nothing is", text)
    assert "Worst images" in text
    assert "1 of the 1 images with an error" in text
    assert "Best images" in text
    assert "Typical images" not in text
    assert "<b>wbc" not in page


def test_boxes_are_drawn_at_the_size_at_which_they_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Image.Image] = []
    monkeypatch.setattr(detection_report, "picture_uri", lambda picture, **_: drawn.append(picture) or "")
    image = compared()
    large = ComparedImage(image.picture.resize((2000, 2000)), "large", image.outcome)

    detection_report._figure(large, NAMES)

    first = np.asarray(drawn[0]).astype(int)
    assert first.shape[:2] == (560, 560)
    rows, columns = (abs(first - np.array(colour_of(0))).sum(axis=-1) == 0).nonzero()
    # The box from 10 to 60 of 2000 pixels, whose text lies above or below it.
    assert columns.min() == 3
    assert rows.max() < 60


def test_precision_and_recall_are_drawn_for_few_and_many_classes(tmp_path: Path) -> None:
    write_detection_report(tmp_path / "few.html", record(toy_tables()), {})
    many = tuple(place / 40 + 0.01 for place in range(40))
    names = tuple(f"class {place}" for place in range(40))
    write_detection_report(tmp_path / "many.html", record(toy_tables(many), names), {})

    few, page = ((tmp_path / name).read_text() for name in ("few.html", "many.html"))
    assert few.count("<svg ") == page.count("<svg ") == 2
    assert "rbc 0.75" in few
    assert "mean of 40 classes" in page
    assert "Most frequent errors" in page  # a table of 41 rows would fill the page
    assert "<h2>Confusion</h2>" in few


def test_data_without_a_box_has_a_page_too(tmp_path: Path) -> None:
    tables = toy_tables((None, None, None)).model_copy(
        update={"scores": CocoScores(ap=None, ap50=None, ap75=None)}
    )

    write_detection_report(tmp_path / "out.html", record(tables), {})

    assert "<svg" not in (tmp_path / "out.html").read_text()
    assert "precision" in text_of(tmp_path / "out.html")


def test_the_curves_of_training_are_drawn(tmp_path: Path) -> None:
    lines = [
        {"step": 10, "loss": 3.0, "rate": 1.0, "parts": {"class": 1.0, "l1": 0.5}},
        {"step": 20, "loss": 2.0, "rate": 0.5, "parts": {"class": 0.5, "l1": 0.25}},
        {"step": 20, "scores": {"ap": 0.25, "ap50": 0.5}},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    recorded = record(toy_tables(), metrics_path=tmp_path / "metrics.jsonl")
    write_detection_report(tmp_path / "out.html", recorded, {})

    page = (tmp_path / "out.html").read_text()
    drawn = re.findall(r'aria-label="(.*?)"', page)
    assert drawn[2:] == [
        "loss by step",
        "validation AP by step",
        "validation AP50 by step",
        "parts of the loss by step",
        "learning rate by step",
    ]


def split_of(picture: object, other: object) -> BoxSplit:
    boxes = [np.array([RED, (0, 0, 20, 20), GREEN], np.float32), np.zeros((0, 4), np.float32)]
    labels = [np.array([0, 1, 2]), np.zeros(0, np.int64)]
    return BoxSplit([picture, other], boxes, labels, ["one", "two"])


def test_every_box_is_right_wrong_or_missed(tmp_path: Path) -> None:
    picture = picture_with((64, 64), {0: RED, 1: GREEN, 2: BLUE})
    encoded = io.BytesIO()
    picture.save(encoded, format="png")
    (tmp_path / "broken.png").write_text("no image")
    split = split_of(encoded.getvalue(), tmp_path / "broken.png")

    compared = compare_boxes(Detector(bright_detector()), split, toy_tables(threshold=0.7), [1, 0])

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

    compared = compare_boxes(
        Detector(bright_detector()), split_of(pixels, pixels), toy_tables(worst=(known,)), [1]
    )

    assert compared[0].outcome is known


def counted(*counts: tuple[int, int, int, int]) -> DetectionTables:
    return toy_tables(counts=counts)


def test_the_best_have_many_boxes_and_no_error() -> None:
    found = best_images(counted((2, 0, 0, 0), (9, 1, 0, 0), (5, 0, 0, 0), (0, 0, 0, 0), (7, 0, 0, 1)), 5)

    assert found == [12, 10]


def test_typical_ones_have_a_median_share_of_errors() -> None:
    shares = counted((1, 0, 0, 1), (9, 0, 1, 0), (0, 0, 0, 0), (3, 1, 0, 0), (0, 3, 0, 0), (4, 0, 0, 0))

    # Shares of errors: 0.5, 0.1, none at all, 0.25, 1 and 0.
    assert typical_images(shares, 3) == [13, 11, 10]
    assert typical_images(counted((0, 0, 0, 0)), 3) == []


@pytest.mark.parametrize(
    ("ap50", "aps", "problems"),
    [
        (0.8125, (0.75, 0.25, None), ()),
        (0.8125, (0.75, 0.0, None), (f"1 of 2 classes is hardly ever found: {EVIL}.",)),
        (0.004, (0.008, 0.0, None), ("Hardly any true box is found: AP50 is 0.004.",)),
        (None, (None, None, None), ("Hardly any true box is found: AP50 is 0.000.",)),
    ],
)
def test_boxes_that_are_not_found_are_named(
    ap50: float | None, aps: tuple[float | None, ...], problems: tuple[str, ...]
) -> None:
    tables = toy_tables(aps)
    tables = tables.with_changes({"scores.ap50": ap50})

    found = detection_report.conclude_boxes(record(tables).report)

    assert found.problems == problems
    assert found.result == (
        f"AP50 {ap50 or 0:.3f} on 1 image; at a confidence threshold of 0.38, 60% of the true boxes are "
        "found, and 80% of the predicted boxes are right."
    )
