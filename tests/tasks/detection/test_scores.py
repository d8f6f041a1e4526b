from __future__ import annotations

import contextlib
import io
import itertools
import json
from typing import Any

import numpy as np
import pytest
import torch

from vitrail.core.boxes import box_area
from vitrail.tasks.detection.detections import UNCHOSEN_THRESHOLD, ConfidenceThreshold, ImageBoxes
from vitrail.tasks.detection.errors import confusion_table, count_errors, image_outcome, match_boxes
from vitrail.tasks.detection.scores import (
    RECALLS,
    CocoScores,
    DetectionTables,
    choose_threshold,
    coco_scores,
    detection_tables,
    headline_scores,
)

CLASSES = 5
ABSENT = 3  # a class that is found in images and never there
NAMES = tuple(CocoScores.model_fields)  # in the order of COCO's own summary


def random_image(index: int, generator: torch.Generator, num_true: int, num_found: int) -> ImageBoxes:
    """Return boxes of all sizes, and finds of which most are near one of them."""

    def draw(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator)

    first = 300 * draw(num_true, 2)
    boxes = torch.cat((first, first + 2 + 200 * draw(num_true, 2) ** 2), dim=-1)
    labels = torch.randint(CLASSES - 1, (num_true,), generator=generator)
    labels[labels == ABSENT] = CLASSES - 1
    found = torch.cat((300 * draw(num_found, 2), 300 + 200 * draw(num_found, 2)), dim=-1)
    found_labels = torch.randint(CLASSES, (num_found,), generator=generator)
    if num_true:
        source = torch.randint(num_true, (num_found,), generator=generator)
        size = (boxes[:, 2:] - boxes[:, :2]).repeat(1, 2)[source]
        near = boxes[source] + 0.15 * size * torch.randn(num_found, 4, generator=generator)
        is_near = draw(num_found) < 0.7
        found = torch.where(is_near[:, None], near, found)
        found_labels = torch.where(draw(num_found) < 0.8, labels[source], found_labels)
    first, last = torch.minimum(found[:, :2], found[:, 2:]), torch.maximum(found[:, :2], found[:, 2:])
    scores = (draw(num_found) * 50).round() / 50  # with many equal ones
    return ImageBoxes(
        index,
        boxes.double().round(decimals=2),
        labels,
        draw(num_true) < 0.15,
        torch.cat((first, last), dim=-1),
        found_labels,
        scores,
    )


def random_images(seed: int = 0) -> list[ImageBoxes]:
    generator = torch.Generator().manual_seed(seed)
    numbers = [(7, 20), (0, 9), (5, 0), (0, 0), (31, 150), (1, 3), (12, 12), (3, 40)]
    return [random_image(index, generator, *number) for index, number in enumerate(numbers)]


def images_of(found: list[tuple[int, float, list[float]]], true: list[tuple[int, list[float]]]) -> ImageBoxes:
    return ImageBoxes(
        0,
        torch.tensor([box for _, box in true], dtype=torch.float32).reshape(-1, 4),
        torch.tensor([label for label, _ in true], dtype=torch.int64),
        torch.zeros(len(true), dtype=torch.bool),
        torch.tensor([box for _, _, box in found], dtype=torch.float32).reshape(-1, 4),
        torch.tensor([label for label, _, _ in found], dtype=torch.int64),
        torch.tensor([score for _, score, _ in found]),
    )


def evaluate_with_pycocotools(images: list[ImageBoxes]) -> Any:
    """Let COCO's own code count, with records made here."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def records(image: ImageBoxes, number: int, counter: Any, of_found: bool) -> list[dict[str, Any]]:
        boxes = (image.found_xyxy if of_found else image.boxes_xyxy).double().tolist()
        labels = (image.found_labels if of_found else image.labels).tolist()
        rows = []
        for place, ((left, top, right, bottom), label) in enumerate(zip(boxes, labels, strict=True)):
            row = {
                "id": next(counter),
                "image_id": number,
                "category_id": 10 + 3 * label,
                "bbox": [left, top, right - left, bottom - top],
                "area": (right - left) * (bottom - top),
            }
            if not of_found and image.areas is not None and image.areas[place]:
                row["area"] = image.areas[place].item()
            row |= {
                "iscrowd": 0 if of_found else int(image.is_crowd[place]),
            }
            rows.append(row | ({"score": image.found_scores[place].item()} if of_found else {}))
        return rows

    sides = []
    for of_found in (False, True):
        counter, side = itertools.count(1), COCO()
        side.dataset = {
            "images": [{"id": 100 + 7 * place} for place in range(len(images))],
            "categories": [{"id": 10 + 3 * label} for label in range(CLASSES)],
            "annotations": [
                record
                for place, image in enumerate(images)
                for record in records(image, 100 + 7 * place, counter, of_found)
            ],
        }
        sides.append(side)
    with contextlib.redirect_stdout(io.StringIO()):
        for side in sides:
            side.createIndex()
        evaluation = COCOeval(*sides, iouType="bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation


@pytest.mark.parametrize("has_areas", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_scores_equal_those_of_pycocotools(seed: int, has_areas: bool) -> None:
    images = random_images(seed)
    if has_areas:  # outlines cover a part of their boxes; some objects have none
        parts = [torch.linspace(0, 0.9, len(image.labels)) for image in images]
        images = [
            image._replace(areas=part * box_area(image.boxes_xyxy))
            for image, part in zip(images, parts, strict=True)
        ]

    scores = coco_scores(images, CLASSES).model_dump()

    expected = evaluate_with_pycocotools(images).stats.tolist()
    assert [scores[name] for name in NAMES] == pytest.approx(expected, abs=1e-6)
    assert 0.1 < scores["ap50"] < 0.9  # the data are neither trivial nor hopeless


def test_scores_of_classes_and_their_curves_equal_those_of_pycocotools() -> None:
    images = random_images()

    rows = detection_tables(images, CLASSES).per_class

    counted = evaluate_with_pycocotools(images)
    np.testing.assert_allclose(counted.params.recThrs, RECALLS, atol=1e-12)
    for label, row in enumerate(rows):
        precision = counted.eval["precision"][:, :, label, 0, 2]
        if label == ABSENT:
            assert (precision == -1).all()
            assert row.num_boxes == 0
            assert row.ap is None
            assert row.ap50 is None
            assert row.ar100 is None
            assert row.precision == row.thresholds == ()
            continue
        assert row.ap == pytest.approx(precision.mean(), abs=1e-6)
        assert row.ap50 == pytest.approx(precision[0].mean(), abs=1e-6)
        assert row.ap75 == pytest.approx(precision[5].mean(), abs=1e-6)
        assert row.ar100 == pytest.approx(counted.eval["recall"][:, label, 0, 2].mean(), abs=1e-6)
        np.testing.assert_allclose(row.precision, precision[0], atol=5.1e-5)
        np.testing.assert_allclose(row.thresholds, counted.eval["scores"][0, :, label, 0, 2], atol=5.1e-5)


def test_first_scores_can_be_had_alone() -> None:
    images = random_images(3)

    brief, whole = coco_scores(images, CLASSES, brief=True), coco_scores(images, CLASSES)

    assert (brief.ap, brief.ap50, brief.ap75) == pytest.approx((whole.ap, whole.ap50, whole.ap75), abs=1e-12)
    assert brief.ap_small is None
    assert brief.ar100 is None


def test_data_without_any_box_have_no_scores() -> None:
    generator = torch.Generator().manual_seed(5)
    images = [random_image(0, generator, 0, 4), random_image(1, generator, 0, 0)]

    tables = detection_tables(images, CLASSES)

    assert tables.scores.ap is None
    assert headline_scores(tables)["ap"] == 0
    assert "ap_small" not in headline_scores(tables)
    assert tables.recall == 0


def test_nothing_found_scores_nothing() -> None:
    tables = detection_tables([random_image(0, torch.Generator().manual_seed(6), 4, 0)], CLASSES)

    assert tables.scores.ap == 0
    assert tables.images[0].num_errors == tables.images[0].missed > 0


def test_boxes_found_exactly_score_one_and_are_no_errors() -> None:
    images = [
        image._replace(
            found_xyxy=image.boxes_xyxy, found_labels=image.labels, found_scores=torch.ones(len(image.labels))
        )
        for image in random_images(4)
    ]

    tables = detection_tables(images, CLASSES)

    assert tables.scores.ap == pytest.approx(1)
    assert (tables.precision, tables.recall, headline_scores(tables)["f1"]) == (1, 1, 1)
    assert sum(entry.num_errors for entry in tables.images) == 0
    assert tables.worst == ()
    table = np.array(tables.confusion)
    assert (table == np.diag(table.diagonal())).all()


def test_every_box_has_its_outcome() -> None:
    image = images_of(
        true=[(0, [0, 0, 10, 10]), (1, [20, 0, 30, 10]), (2, [40, 0, 50, 10])],
        found=[
            (0, 0.9, [0, 0, 10, 9]),  # correct
            (0, 0.8, [0, 0, 9, 10]),  # the same again
            (2, 0.7, [20, 0, 30, 8]),  # another class
            (1, 0.6, [80, 0, 90, 10]),  # nothing there
            (2, 0.1, [40, 0, 50, 10]),  # correct, but of too low a score
        ],
    )
    outcome = image_outcome(match_boxes(image), 0.5)

    assert [box.outcome for box in outcome.true] == ["correct", "confused", "missed"]
    assert [box.outcome for box in outcome.found] == ["correct", "spurious", "confused", "spurious"]
    assert [box.match for box in outcome.found] == [0, None, 1, None]
    errors = count_errors(outcome)
    assert (errors.correct, errors.missed, errors.confused, errors.spurious) == (1, 1, 1, 2)
    assert confusion_table([outcome], 3) == ((1, 0, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (1, 1, 0, 0))


def test_crowds_need_not_be_found_and_make_no_errors() -> None:
    image = images_of(
        true=[(0, [0, 0, 100, 100]), (0, [200, 0, 210, 10])],
        found=[(0, 0.9, [10, 10, 20, 20]), (0, 0.8, [30, 30, 40, 40]), (1, 0.7, [30, 30, 40, 40])],
    )._replace(is_crowd=torch.tensor([True, False]))

    outcome = image_outcome(match_boxes(image), 0.5)

    assert [box.outcome for box in outcome.true] == ["crowd", "missed"]
    assert [box.outcome for box in outcome.found] == [
        "crowd",
        "crowd",
        "spurious",
    ]
    assert confusion_table([outcome], 2) == ((0, 0, 1), (0, 0, 0), (0, 1, 0))
    assert detection_tables([image], 2).precision == 0


def test_the_threshold_that_is_chosen_has_the_best_f1() -> None:
    images = random_images(7)

    chosen = choose_threshold(images)
    tables = detection_tables(images, CLASSES, chosen)

    def f1_at(threshold: float) -> float:
        """Count at a threshold, all boxes below it left away beforehand."""
        kept = [
            image._replace(
                found_xyxy=image.found_xyxy[image.found_scores >= threshold],
                found_labels=image.found_labels[image.found_scores >= threshold],
                found_scores=image.found_scores[image.found_scores >= threshold],
            )
            for image in images
        ]
        counts = [count_errors(image_outcome(match_boxes(image), 0.0)) for image in kept]
        correct = sum(count.correct for count in counts)
        wrong = sum(count.spurious + count.confused for count in counts)
        num_true = sum(int((~image.is_crowd).sum()) for image in images)
        return 2 * correct / (correct + wrong + num_true)

    thresholds = sorted({score for image in images for score in image.found_scores.tolist()})
    assert f1_at(chosen.value) == pytest.approx(max(map(f1_at, thresholds)))
    assert headline_scores(tables)["f1"] == pytest.approx(f1_at(chosen.value))
    assert "validation" in tables.threshold_origin


def test_images_that_are_scored_choose_no_threshold() -> None:
    images = random_images(7)

    few, many = (
        detection_tables(images, CLASSES, ConfidenceThreshold(least, "asked for")) for least in (0.9, 0.1)
    )

    assert (few.threshold, few.threshold_origin) == (0.9, "asked for")
    assert few.recall < many.recall
    for tables in (few, many):
        found = sum(entry.correct + entry.confused + entry.spurious for entry in tables.images)
        correct = sum(entry.correct for entry in tables.images)
        num_true = sum(row.num_boxes for row in tables.per_class)
        assert tables.precision == pytest.approx(correct / found)
        assert tables.recall == pytest.approx(correct / num_true)


@pytest.mark.parametrize("num_true", [0, 4])
def test_where_nothing_is_right_the_usual_threshold_is_chosen(num_true: int) -> None:
    image = random_image(0, torch.Generator().manual_seed(6), num_true, 0)

    assert choose_threshold([image]) == UNCHOSEN_THRESHOLD


def test_tables_add_up_rank_the_worst_images_and_survive_json() -> None:
    images = random_images(8)

    tables = detection_tables(images, CLASSES)

    table = np.array(tables.confusion)
    assert [entry.index for entry in tables.images] == [image.index for image in images]
    assert sum(entry.correct for entry in tables.images) == table[:-1, :-1].trace()
    assert sum(entry.confused for entry in tables.images) == table[:-1, :-1].sum() - table[:-1, :-1].trace()
    assert sum(entry.missed for entry in tables.images) == table[:-1, -1].sum()
    assert sum(entry.spurious for entry in tables.images) == table[-1].sum()
    assert table[:-1].sum(axis=1).tolist() == [row.num_boxes for row in tables.per_class]
    errors = {entry.index: entry.num_errors for entry in tables.images}
    numbers = [errors[outcome.index] for outcome in tables.worst]
    assert numbers == sorted(numbers, reverse=True)
    assert len(numbers) == sum(number > 0 for number in errors.values())
    assert DetectionTables.from_tree(json.loads(json.dumps(tables.model_dump(mode="json")))) == tables
