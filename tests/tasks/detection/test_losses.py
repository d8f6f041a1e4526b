from __future__ import annotations

import itertools
import logging
import math

import numpy as np
import pytest
import torch

from vitrail.core.errors import ConfigError
from vitrail.models.contract import AuxiliaryOutput, BoxTargets, DetectionOutput, Scoring
from vitrail.tasks.detection.losses import NO_BOX, DetectionLoss, assign, matching_costs
from vitrail.tasks.detection.settings import DetectionSettings

CLASSES = 3
SETTINGS = DetectionSettings(class_weight=1.0, l1_weight=5.0, giou_weight=2.0, no_object_weight=0.1)
SCORINGS: list[Scoring] = ["softmax", "sigmoid"]


def random_boxes(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = 0.05 + 0.3 * torch.rand(*shape, 2, generator=generator)
    return torch.cat((size / 2 + (1 - size) * torch.rand(*shape, 2, generator=generator), size), dim=-1)


def random_targets(counts: tuple[int, ...], seed: int = 0) -> BoxTargets:
    """Return targets; what stands where there is no box is out of every range."""
    longest, generator = max(counts), torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (len(counts), longest), generator=generator)
    boxes = random_boxes(len(counts), longest, seed=seed + 1)
    is_box = torch.arange(longest) < torch.tensor(counts)[:, None]
    labels[~is_box] = -100
    boxes[~is_box] = torch.nan
    return BoxTargets(labels, boxes, torch.tensor(counts))


def random_prediction(
    batch: int, scoring: Scoring, seed: int, queries: int = 7
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, queries, CLASSES + (scoring == "softmax"), generator=generator)
    return logits.requires_grad_(), random_boxes(batch, queries, seed=seed + 50).requires_grad_()


def as_list(targets: BoxTargets) -> list[dict[str, torch.Tensor]]:
    """Return the targets as transformers takes them."""
    counts = targets.counts.tolist()
    return [
        {"class_labels": labels[:count], "boxes": boxes[:count]}
        for labels, boxes, count in zip(targets.labels, targets.boxes, counts, strict=True)
    ]


def losses_of_transformers(
    kind: str, output: DetectionOutput, targets: BoxTargets
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the weighed loss and its terms: of DETR, or those of DEIMv2 that we have, too."""
    from transformers import Deimv2Config
    from transformers.loss.loss_deimv2 import Deimv2Loss
    from transformers.loss.loss_for_object_detection import HungarianMatcher, ImageLoss

    if kind == "softmax":
        matcher = HungarianMatcher(class_cost=1, bbox_cost=5, giou_cost=2)
        criterion = ImageLoss(matcher, num_classes=CLASSES, eos_coef=0.1, losses=["labels", "boxes"])
        name = "loss_ce"
    else:
        config = Deimv2Config(num_labels=CLASSES, matcher_class_cost=1.0, focal_loss_gamma=1.5)
        criterion = Deimv2Loss(config)
        criterion.losses = ["mal", "boxes"]
        name = "loss_mal"
    given = as_list(targets)
    weights = {name: 1.0, "loss_bbox": 5.0, "loss_giou": 2.0}
    total, terms = torch.zeros(()), {}
    for place, prediction in enumerate((output, *output.auxiliary)):
        found = {"logits": prediction.logits, "pred_boxes": prediction.boxes}
        indices = criterion.matcher(found, given)
        for kind_of_loss in criterion.losses:
            losses = criterion.get_loss(
                kind_of_loss, found, given, indices, max(int(targets.counts.sum()), 1)
            )
            total = total + sum(weights[key] * value for key, value in losses.items() if key in weights)
            if place == 0:
                terms |= losses
    return total, {"class": terms[name], "l1": terms["loss_bbox"], "giou": terms["loss_giou"]}


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("counts", [(3, 0, 5), (7, 1)])
def test_loss_and_gradients_equal_those_of_transformers(scoring: Scoring, counts: tuple[int, ...]) -> None:
    targets = random_targets(counts)
    answers = [random_prediction(len(counts), scoring, seed) for seed in (1, 2, 3)]
    output = DetectionOutput(*answers[0], tuple(AuxiliaryOutput(*answer) for answer in answers[1:]))
    leaves = [tensor for answer in answers for tensor in answer]

    loss = DetectionLoss(CLASSES, scoring, SETTINGS)(output, targets)
    expected, terms = losses_of_transformers(scoring, output, targets)

    torch.testing.assert_close(loss.total / loss.count, expected)
    for name, term in terms.items():
        torch.testing.assert_close(loss.parts[name] / loss.count, term.detach())
    found = torch.autograd.grad(loss.total / loss.count, leaves)
    torch.testing.assert_close(found, torch.autograd.grad(expected, leaves))


@pytest.mark.parametrize("scoring", SCORINGS)
def test_a_batch_without_any_box_teaches_that_there_is_none_and_touches_every_parameter(
    scoring: Scoring,
) -> None:
    targets = BoxTargets(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(2, 0, 4), torch.tensor([0, 0]))
    logits, boxes = random_prediction(2, scoring, 4)
    others = random_prediction(2, scoring, 5)
    known = random_prediction(2, scoring, 6)
    nothing = torch.full((2, 7), -1)
    output = DetectionOutput(
        logits, boxes, (AuxiliaryOutput(*others, num_matches=3), AuxiliaryOutput(*known, assigned=nothing))
    )

    loss = DetectionLoss(CLASSES, scoring, SETTINGS)(output, targets)
    gradients = torch.autograd.grad(loss.total, [logits, boxes, *others, *known])

    assert loss.count.item() == 0
    assert loss.parts["l1"].item() == loss.parts["giou"].item() == 0
    for of_logits, of_boxes in zip(gradients[::2], gradients[1::2], strict=True):
        classes = of_logits[..., :CLASSES]
        assert (classes > 0).all()  # every score should fall
        assert (of_boxes == 0).all()


@pytest.mark.parametrize("scoring", SCORINGS)
def test_sums_of_parts_of_a_batch_are_those_of_the_whole(scoring: Scoring) -> None:
    targets = random_targets((3, 2, 4))
    logits, boxes = random_prediction(3, scoring, 7)
    criterion = DetectionLoss(CLASSES, scoring, SETTINGS)

    whole = criterion(DetectionOutput(logits, boxes), targets)
    parts = [
        criterion(DetectionOutput(logits[rows], boxes[rows]), BoxTargets(*(of[rows] for of in targets)))
        for rows in (slice(0, 1), slice(1, 3))
    ]

    names = ["l1", "giou"] + (["class"] if scoring == "sigmoid" else [])
    assert sum(part.count for part in parts) == whole.count == 9
    for name in names:  # the class term of a softmax is a mean of queries
        torch.testing.assert_close(sum(part.parts[name] for part in parts), whole.parts[name])


def test_score_of_a_class_is_drawn_to_how_well_its_box_fits() -> None:
    wanted = torch.tensor([[[0.5, 0.5, 0.4, 0.4]]])
    targets = BoxTargets(torch.tensor([[1]]), wanted, torch.tensor([1]))
    shifted = torch.tensor([[[0.6, 0.5, 0.4, 0.4]]])  # an IoU of 0.3 * 0.4 / (0.5 * 0.4) = 0.6
    logits = torch.tensor([[[0.3, -0.2, 1.1]]])

    loss = DetectionLoss(CLASSES, "sigmoid", SETTINGS)(DetectionOutput(logits, shifted), targets)

    scores = [1 / (1 + math.exp(-value)) for value in (0.3, -0.2, 1.1)]
    goal = 0.6**1.5
    expected = -goal * math.log(scores[1]) - (1 - goal) * math.log(1 - scores[1])
    expected -= sum(score**1.5 * math.log(1 - score) for score in (scores[0], scores[2]))
    assert loss.parts["class"].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("scoring", SCORINGS)
def test_a_box_counts_once_however_many_predictions_it_has(scoring: Scoring) -> None:
    targets = random_targets((2,))
    logits, boxes = random_prediction(1, scoring, 8, queries=2)
    with torch.no_grad():  # both queries of each box answer alike
        logits, boxes = logits.repeat_interleave(3, dim=1), boxes.repeat_interleave(3, dim=1)
    criterion = DetectionLoss(CLASSES, scoring, SETTINGS)

    one = criterion(DetectionOutput(logits[:, ::3], boxes[:, ::3]), targets)
    several = criterion(
        DetectionOutput(
            logits[:, ::3], boxes[:, ::3], (AuxiliaryOutput(logits, boxes, num_matches=3, weight=0.7),)
        ),
        targets,
    )

    torch.testing.assert_close(several.parts["auxiliary"], 0.7 * one.total.detach())
    torch.testing.assert_close(several.total, 1.7 * one.total)


@pytest.mark.parametrize("scoring", SCORINGS)
def test_known_assignments_are_taken_and_filling_does_not_count(scoring: Scoring) -> None:
    targets = random_targets((2, 1))
    logits, boxes = random_prediction(2, scoring, 9, queries=4)
    assigned = torch.tensor([[1, 0, 1, 0], [0, 0, -2, -2]])
    answer = random_prediction(2, scoring, 10)

    loss = DetectionLoss(CLASSES, scoring, SETTINGS)(
        DetectionOutput(*answer, (AuxiliaryOutput(logits, boxes, assigned=assigned),)), targets
    )
    of_logits, of_boxes = torch.autograd.grad(loss.total, [logits, boxes])

    assert (of_logits[1, 2:] == 0).all()
    assert (of_boxes[1, 2:] == 0).all()
    wanted = targets.boxes[torch.tensor([0, 0, 0, 0, 1, 1]), torch.tensor([1, 0, 1, 0, 0, 0])]
    found = torch.cat((boxes[0], boxes[1, :2]))
    only_l1 = DetectionSettings(class_weight=0, giou_weight=0, l1_weight=1)
    again = DetectionLoss(CLASSES, scoring, only_l1)(
        DetectionOutput(*answer, (AuxiliaryOutput(logits, boxes, assigned=assigned),)), targets
    )
    expected = (found - wanted).abs().sum().detach() / 2  # two predictions of each of three boxes
    torch.testing.assert_close(again.parts["auxiliary"], expected)


@pytest.mark.parametrize("scoring", SCORINGS)
def test_predictions_known_to_be_nothing_are_taught_so(scoring: Scoring) -> None:
    targets = random_targets((1,))
    logits, boxes = random_prediction(1, scoring, 11, queries=2)
    known = AuxiliaryOutput(logits, boxes, assigned=torch.tensor([[0, -1]]))

    loss = DetectionLoss(CLASSES, scoring, SETTINGS)(
        DetectionOutput(*random_prediction(1, scoring, 12), (known,)), targets
    )
    of_logits, of_boxes = torch.autograd.grad(loss.total, [logits, boxes])

    assert (of_logits[0, 1, :CLASSES] > 0).all()
    assert (of_boxes[0, 1] == 0).all()


@pytest.mark.parametrize("scoring", SCORINGS)
def test_narrow_predictions_under_autocast_give_the_loss_of_float32(scoring: Scoring) -> None:
    targets = random_targets((3, 2))
    logits, boxes = random_prediction(2, scoring, 13)
    narrow = DetectionOutput(logits.bfloat16(), boxes.bfloat16())
    criterion = DetectionLoss(CLASSES, scoring, SETTINGS)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = criterion(narrow, targets)
    expected = criterion(DetectionOutput(narrow.logits.float(), narrow.boxes.float()), targets)
    loss.total.backward()

    assert loss.total.dtype == loss.count.dtype == torch.float32
    assert torch.equal(loss.total, expected.total)
    assert logits.grad is not None
    assert boxes.grad is not None


@pytest.mark.parametrize("scoring", SCORINGS)
def test_boxes_of_a_pixel_and_without_area_give_finite_gradients(scoring: Scoring) -> None:
    tiny = torch.tensor([[[0.5, 0.5, 1 / 4000, 1 / 4000], [0.2, 0.3, 0.0, 0.1], [1.0, 1.0, 0.0, 0.0]]])
    targets = BoxTargets(torch.tensor([[0, 1, 2]]), tiny, torch.tensor([3]))
    logits, _ = random_prediction(1, scoring, 14, queries=4)
    boxes = torch.cat((tiny, torch.zeros(1, 1, 4)), dim=1).requires_grad_()

    loss = DetectionLoss(CLASSES, scoring, SETTINGS)(DetectionOutput(logits, boxes), targets)
    gradients = torch.autograd.grad(loss.total, [logits, boxes])

    assert loss.total.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("scoring", SCORINGS)
def test_more_boxes_than_queries_are_learned_as_far_as_they_go_with_one_warning(
    scoring: Scoring, caplog: pytest.LogCaptureFixture
) -> None:
    targets = random_targets((500, 3))
    output = DetectionOutput(*random_prediction(2, scoring, 15), ())
    criterion = DetectionLoss(CLASSES, scoring, SETTINGS)

    with caplog.at_level(logging.WARNING):
        first, second = criterion(output, targets), criterion(output, targets)

    assert first.total.isfinite()
    assert first.count.item() == 503
    assert torch.equal(first.total, second.total)
    (record,) = caplog.records
    assert "has 500 boxes, but the model predicts 7: " in record.getMessage()
    assert "raise model.num_queries" in record.getMessage()


def test_as_many_boxes_as_queries_and_fewer_are_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for count in (7, 6):
            output = DetectionOutput(*random_prediction(1, "softmax", 15))
            DetectionLoss(CLASSES, "softmax", SETTINGS)(output, random_targets((count,)))

    assert not caplog.records


@pytest.mark.parametrize(("scoring", "width"), [("softmax", CLASSES), ("sigmoid", CLASSES + 1)])
def test_logits_for_another_number_of_classes_are_refused(scoring: Scoring, width: int) -> None:
    output = DetectionOutput(torch.zeros(1, 5, width), random_boxes(1, 5, seed=1))

    words = rf"predicts {width} logits for each box\. Expected \d, for 3 classes and a {scoring}\."
    with pytest.raises(ConfigError, match=rf"{words}.*model\.num_classes"):
        DetectionLoss(CLASSES, scoring, SETTINGS)(output, random_targets((2,)))


@pytest.mark.parametrize("weight", [0.0, 0.01])
def test_class_term_without_boxes_is_the_mean_however_little_no_object_weighs(weight: float) -> None:
    targets = BoxTargets(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(1, 0, 4), torch.tensor([0]))
    settings = DetectionSettings(no_object_weight=weight, class_weight=1.0)
    logits, boxes = random_prediction(1, "softmax", 16)

    loss = DetectionLoss(CLASSES, "softmax", settings)(DetectionOutput(logits, boxes), targets)

    of_no_object = -logits.detach()[0].log_softmax(dim=1)[:, -1].mean()
    torch.testing.assert_close(loss.total.detach(), of_no_object if weight else torch.tensor(0.0))


MATCHING = DetectionSettings(class_weight=1.3, l1_weight=5.0, giou_weight=2.0)


def match(
    logits: torch.Tensor,
    boxes: torch.Tensor,
    targets: BoxTargets,
    *,
    scoring: Scoring,
    num_matches: int = 1,
) -> torch.Tensor:
    costs = matching_costs(logits, boxes, targets, scoring, MATCHING)
    return assign(costs, targets.counts.tolist(), num_matches=num_matches)


def random_case(
    counts: tuple[int, ...], scoring: Scoring = "softmax"
) -> tuple[torch.Tensor, torch.Tensor, BoxTargets]:
    """Return logits, boxes and targets."""
    logits, boxes = random_prediction(len(counts), scoring, seed=2)
    return logits.detach(), boxes.detach(), random_targets(counts)


def as_pairs(assigned: torch.Tensor) -> list[set[tuple[int, int]]]:
    return [{(query, box) for query, box in enumerate(row) if box != NO_BOX} for row in assigned.tolist()]


@pytest.mark.parametrize("scoring", SCORINGS)
def test_assignment_equals_that_of_transformers_detr_and_rt_detr(scoring: Scoring) -> None:
    from transformers import RTDetrConfig
    from transformers.loss.loss_for_object_detection import HungarianMatcher
    from transformers.loss.loss_rt_detr import RTDetrHungarianMatcher

    logits, boxes, targets = random_case((3, 0, 5, 1), scoring)
    config = RTDetrConfig(matcher_class_cost=1.3, matcher_bbox_cost=5.0, matcher_giou_cost=2.0)
    matcher = {
        "softmax": HungarianMatcher(class_cost=1.3, bbox_cost=5.0, giou_cost=2.0),
        "sigmoid": RTDetrHungarianMatcher(config),
    }[scoring]

    expected = matcher({"logits": logits, "pred_boxes": boxes}, as_list(targets))
    found = match(logits, boxes, targets, scoring=scoring)

    assert as_pairs(found) == [
        set(zip(queries.tolist(), boxes.tolist(), strict=True)) for queries, boxes in expected
    ]


def plain_giou(first: list[float], second: list[float]) -> float:
    """Rezatofighi et al. 2019, of boxes as centre and size."""
    inside = hull = 1.0
    for centre, other, size, other_size in zip(first[:2], second[:2], first[2:], second[2:], strict=True):
        starts = (centre - size / 2, other - other_size / 2)
        ends = (centre + size / 2, other + other_size / 2)
        inside *= max(0.0, min(ends) - max(starts))
        hull *= max(ends) - min(starts)
    union = first[2] * first[3] + second[2] * second[3] - inside
    return inside / union - (hull - union) / hull


@pytest.mark.parametrize("scoring", SCORINGS)
def test_costs_are_those_of_the_papers_even_of_scores_of_zero_and_one(scoring: Scoring) -> None:
    logits, boxes, targets = random_case((3, 2), scoring)
    logits[0, 0], logits[1, 2] = 200.0, -200.0
    targets.labels[1, 2] = 99  # no box

    costs = matching_costs(logits, boxes, targets, scoring, MATCHING)

    for image, count in enumerate((3, 2)):
        for query, box in itertools.product(range(7), range(count)):
            label, row = targets.labels[image, box], logits[image, query].double()
            if scoring == "softmax":
                of_class = -row.softmax(0)[label].item()
            else:
                score = row.sigmoid()[label].item()
                there = -0.25 * (1 - score) ** 2 * math.log(score + 1e-8)
                of_class = there + 0.75 * score**2 * math.log(1 - score + 1e-8)
            found, wanted = boxes[image, query].tolist(), targets.boxes[image, box].tolist()
            distance = sum(abs(one - other) for one, other in zip(found, wanted, strict=True))
            expected = 1.3 * of_class + 5 * distance - 2 * plain_giou(found, wanted)
            assert costs[image, query, box].item() == pytest.approx(expected, abs=1e-4)


def test_no_other_assignment_costs_less() -> None:
    costs = torch.randn(1, 6, 3, generator=torch.Generator().manual_seed(8))

    (assigned,) = assign(costs, [3]).tolist()

    found = sum(costs[0, query, box].item() for query, box in enumerate(assigned) if box != NO_BOX)
    every = [
        sum(costs[0, query, box].item() for box, query in enumerate(queries))
        for queries in itertools.permutations(range(6), 3)
    ]
    assert found == pytest.approx(min(every))


@pytest.mark.parametrize("scoring", SCORINGS)
def test_images_are_matched_as_if_each_were_alone(scoring: Scoring) -> None:
    logits, boxes, targets = random_case((3, 0, 5, 1), scoring)

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
    logits, boxes, targets = random_case((4, 2), "sigmoid")
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
    logits, boxes, targets = random_case((3, 2), "sigmoid")
    given = (logits.bfloat16(), boxes.bfloat16(), targets)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        costs = matching_costs(*given, "sigmoid", MATCHING)

    assert costs.dtype == torch.float32
    same = matching_costs(logits.bfloat16().float(), boxes.bfloat16().float(), targets, "sigmoid", MATCHING)
    assert torch.equal(costs[0], same[0])
