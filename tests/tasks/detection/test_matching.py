from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from vitrail.core.errors import ConfigError
from vitrail.models.contract import BoxTargets
from vitrail.tasks.detection.matching import NO_BOX, Scoring, assign, matching_costs

WEIGHTS = {"class_weight": 1.3, "l1_weight": 5.0, "giou_weight": 2.0}


def match(
    logits: torch.Tensor,
    boxes: torch.Tensor,
    targets: BoxTargets,
    *,
    scoring: Scoring,
    num_matches: int = 1,
) -> torch.Tensor:
    costs = matching_costs(logits, boxes, targets, scoring=scoring, **WEIGHTS)
    return assign(costs, targets.counts.tolist(), num_matches=num_matches)


def random_boxes(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = 0.05 + 0.3 * torch.rand(*shape, 2, generator=generator)
    centre = size / 2 + (1 - size) * torch.rand(*shape, 2, generator=generator)
    return torch.cat((centre, size), dim=-1)


def random_case(
    counts: tuple[int, ...], *, queries: int = 7, logits: int = 4, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, BoxTargets]:
    """Return logits, boxes and targets; what stands where there is no box is out of every range."""
    generator = torch.Generator().manual_seed(seed)
    batch, longest = len(counts), max(counts)
    labels = torch.randint(3, (batch, longest), generator=generator)
    boxes = random_boxes(batch, longest, seed=seed + 1)
    is_box = torch.arange(longest) < torch.tensor(counts)[:, None]
    labels[~is_box] = -100
    boxes[~is_box] = torch.nan
    return (
        2 * torch.randn(batch, queries, logits, generator=generator),
        random_boxes(batch, queries, seed=seed + 2),
        BoxTargets(labels, boxes, torch.tensor(counts)),
    )


def as_list(targets: BoxTargets) -> list[dict[str, torch.Tensor]]:
    """Return the targets as transformers takes them."""
    counts = targets.counts.tolist()
    return [
        {"class_labels": labels[:count], "boxes": boxes[:count]}
        for labels, boxes, count in zip(targets.labels, targets.boxes, counts, strict=True)
    ]


def as_pairs(assigned: torch.Tensor) -> list[set[tuple[int, int]]]:
    return [{(query, box) for query, box in enumerate(row) if box != NO_BOX} for row in assigned.tolist()]


def test_assignment_equals_that_of_transformers_detr() -> None:
    from transformers.loss.loss_for_object_detection import HungarianMatcher

    logits, boxes, targets = random_case((3, 0, 5, 1))
    matcher = HungarianMatcher(class_cost=1.3, bbox_cost=5.0, giou_cost=2.0)

    expected = matcher({"logits": logits, "pred_boxes": boxes}, as_list(targets))
    found = match(logits, boxes, targets, scoring="softmax")

    assert as_pairs(found) == [
        set(zip(queries.tolist(), boxes.tolist(), strict=True)) for queries, boxes in expected
    ]


def test_assignment_with_sigmoids_equals_that_of_transformers_rt_detr() -> None:
    from transformers import RTDetrConfig
    from transformers.loss.loss_rt_detr import RTDetrHungarianMatcher

    logits, boxes, targets = random_case((3, 0, 5, 1), logits=3)
    config = RTDetrConfig(matcher_class_cost=1.3, matcher_bbox_cost=5.0, matcher_giou_cost=2.0)

    expected = RTDetrHungarianMatcher(config)({"logits": logits, "pred_boxes": boxes}, as_list(targets))
    found = match(logits, boxes, targets, scoring="sigmoid")

    assert as_pairs(found) == [
        set(zip(queries.tolist(), boxes.tolist(), strict=True)) for queries, boxes in expected
    ]


def test_no_other_assignment_costs_less() -> None:
    costs = torch.randn(1, 5, 3, generator=torch.Generator().manual_seed(8))

    (assigned,) = assign(costs, [3]).tolist()

    found = sum(costs[0, query, box].item() for query, box in enumerate(assigned) if box != NO_BOX)
    every = [
        sum(costs[0, query, box].item() for box, query in enumerate(queries))
        for queries in itertools.permutations(range(5), 3)
    ]
    assert found == pytest.approx(min(every))


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_images_are_matched_as_if_each_were_alone(scoring: Scoring) -> None:
    logits, boxes, targets = random_case((3, 0, 5, 1))

    together = match(logits, boxes, targets, scoring=scoring)

    for image, count in enumerate(targets.counts.tolist()):
        alone = BoxTargets(
            targets.labels[image, None, :count],
            targets.boxes[image, None, :count],
            targets.counts[image, None],
        )
        assert torch.equal(
            match(logits[image, None], boxes[image, None], alone, scoring=scoring)[0],
            together[image],
        )


def test_every_box_is_assigned_once_and_the_other_queries_to_none() -> None:
    assigned = match(*random_case((3, 0, 5, 7)), scoring="softmax")

    for row, count in zip(assigned.tolist(), (3, 0, 5, 7), strict=True):
        assert sorted(row) == [NO_BOX] * (7 - count) + list(range(count))


def test_queries_in_another_order_have_the_same_boxes() -> None:
    logits, boxes, targets = random_case((4, 2))
    order = torch.tensor([3, 1, 6, 0, 2, 5, 4])

    assigned = match(logits, boxes, targets, scoring="sigmoid")

    assert torch.equal(
        match(logits[:, order], boxes[:, order], targets, scoring="sigmoid"), assigned[:, order]
    )


def test_a_batch_without_any_box_assigns_nothing() -> None:
    targets = BoxTargets(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(2, 0, 4), torch.tensor([0, 0]))

    assert (match(torch.randn(2, 5, 4), torch.rand(2, 5, 4), targets, scoring="softmax") == NO_BOX).all()


def test_several_predictions_are_assigned_to_each_box_at_least_cost() -> None:
    costs = torch.randn(1, 8, 2, generator=torch.Generator().manual_seed(9))

    (assigned,) = assign(costs, [2], num_matches=3).tolist()

    assert sorted(assigned) == [NO_BOX, NO_BOX, 0, 0, 0, 1, 1, 1]
    found = sum(costs[0, query, box].item() for query, box in enumerate(assigned) if box != NO_BOX)
    every = [
        costs[0, list(first), 0].sum().item() + costs[0, list(second), 1].sum().item()
        for first in itertools.combinations(range(8), 3)
        for second in itertools.combinations(sorted(set(range(8)) - set(first)), 3)
    ]
    assert found == pytest.approx(min(every))


def test_an_image_with_many_boxes_has_fewer_predictions_of_each_and_each_as_many() -> None:
    costs = torch.randn(2, 7, 3, generator=torch.Generator().manual_seed(1))

    assigned = assign(costs, [3, 1], num_matches=4)

    assert np.bincount(assigned[0][assigned[0] >= 0]).tolist() == [2, 2, 2]
    assert np.bincount(assigned[1][assigned[1] >= 0]).tolist() == [4]


def test_of_more_boxes_than_queries_those_of_least_cost_are_assigned() -> None:
    costs = torch.tensor([[[5.0, 1.0, 7.0], [6.0, 3.0, 2.0]]])

    assert assign(costs, [3], num_matches=2).tolist() == [[1, 2]]


def test_five_hundred_boxes_are_assigned() -> None:
    generator = torch.Generator().manual_seed(3)
    targets = BoxTargets(
        torch.randint(3, (1, 500), generator=generator),
        random_boxes(1, 500, seed=4),
        torch.tensor([500]),
    )
    order = torch.randperm(500, generator=generator)

    assigned = match(
        torch.zeros(1, 500, 3), targets.boxes[:, order], targets, scoring="sigmoid", num_matches=2
    )

    assert torch.equal(assigned[0], order)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_predictions_that_are_no_numbers_are_refused(bad: float) -> None:
    logits, boxes, targets = random_case((3, 1))
    boxes[1, 4, 0] = bad

    with pytest.raises(ConfigError, match="infinite or NaN"):
        match(logits, boxes, targets, scoring="softmax")


def test_predictions_of_an_image_without_boxes_are_not_looked_at() -> None:
    logits, boxes, targets = random_case((3, 0))
    boxes[1] = torch.nan

    assert (match(logits, boxes, targets, scoring="softmax")[1] == NO_BOX).all()


def test_costs_are_float32_under_autocast() -> None:
    logits, boxes, targets = random_case((3, 2))
    given = (logits.bfloat16(), boxes.bfloat16(), targets)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        costs = matching_costs(*given, scoring="sigmoid", **WEIGHTS)

    assert costs.dtype == torch.float32
    same = matching_costs(
        logits.bfloat16().float(), boxes.bfloat16().float(), targets, scoring="sigmoid", **WEIGHTS
    )
    assert torch.equal(costs[0], same[0])
