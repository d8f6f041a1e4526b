from __future__ import annotations

import pytest
import torch

from vitrail.models.contract import DetectionOutput, Scoring, class_scores
from vitrail.tasks.detection.detections import select_boxes


def random_output(queries: int = 7, logits: int = 4) -> DetectionOutput:
    generator = torch.Generator().manual_seed(2)
    return DetectionOutput(
        torch.randn(3, queries, logits, generator=generator), torch.rand(3, queries, 4, generator=generator)
    )


def as_shares(boxes: torch.Tensor) -> torch.Tensor:
    from vitrail.core.boxes import cxcywh_to_xyxy

    return cxcywh_to_xyxy(boxes)


def test_boxes_of_a_softmax_equal_those_of_transformers_detr() -> None:
    from transformers.image_transforms import center_to_corners_format

    output = random_output()

    found = select_boxes(output, "softmax", max_boxes=100)

    probabilities = output.logits.softmax(-1)[..., :-1]
    for image, selected in enumerate(found):
        scores, labels = probabilities[image].max(-1)
        order = scores.argsort(descending=True)
        torch.testing.assert_close(selected.scores, scores[order])
        assert torch.equal(selected.labels, labels[order])
        assert torch.equal(selected.queries, order)
        corners = center_to_corners_format(output.boxes[image])
        torch.testing.assert_close(as_shares(selected.boxes), corners[order])


def test_boxes_of_sigmoids_are_the_best_pairs_of_query_and_class() -> None:
    output = random_output()

    found = select_boxes(output, "sigmoid", max_boxes=9)

    scores = output.logits.sigmoid()  # of all at once: single values may differ in the last bit
    for image, selected in enumerate(found):
        pairs = sorted(
            (-scores[image, query, label].item(), query, label) for query in range(7) for label in range(4)
        )[:9]
        assert (-selected.scores).tolist() == [score for score, _, _ in pairs]
        assert selected.queries.tolist() == [query for _, query, _ in pairs]
        assert selected.labels.tolist() == [label for _, _, label in pairs]
        assert torch.equal(selected.boxes, output.boxes[image, selected.queries])


@pytest.mark.parametrize(("scoring", "most"), [("softmax", 7), ("sigmoid", 28)])
def test_there_are_no_more_boxes_than_answers_and_no_more_than_asked_for(scoring: Scoring, most: int) -> None:
    output = random_output()

    assert [len(found.scores) for found in select_boxes(output, scoring)] == [most] * 3
    assert [len(found.scores) for found in select_boxes(output, scoring, max_boxes=5)] == [5] * 3


def test_scores_of_a_softmax_leave_room_for_no_object() -> None:
    logits = torch.tensor([[[0.0, 0.0, 20.0], [20.0, 0.0, 0.0]]])

    scores = class_scores(logits, "softmax")

    assert scores.shape == (1, 2, 2)
    assert scores[0, 0].max() < 1e-6
    assert scores[0, 1, 0] > 1 - 1e-6


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_scores_of_narrow_logits_are_float32(scoring: Scoring) -> None:
    output = random_output()
    narrow = DetectionOutput(output.logits.bfloat16(), output.boxes.bfloat16())

    assert class_scores(narrow.logits, scoring).dtype == torch.float32
    assert {part.dtype for part in select_boxes(narrow, scoring)[0]} == {torch.float32, torch.int64}


def test_equal_scores_keep_the_order_of_queries() -> None:
    output = DetectionOutput(torch.zeros(1, 300, 2), torch.rand(1, 300, 4))

    (found,) = select_boxes(output, "sigmoid", max_boxes=50)

    assert found.queries.tolist() == [place // 2 for place in range(50)]
