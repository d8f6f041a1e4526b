"""The detection loss: Hungarian matching, then class, L1 and generalised IoU terms of the assigned boxes.

Two class terms, for the two ways in which logits become scores. With a softmax it is DETR's own, the mean
cross entropy in which queries without a box weigh little (Carion et al. 2020, equation 2). With sigmoids the
score also reflects how well the box fits, so that the best of several boxes ranks first without non-maximum
suppression: the matchability-aware loss (Huang et al. 2025, DEIM, section 3.3), preferred over the varifocal
loss (Zhang et al. 2021), whose weights all but vanish for badly fitting boxes, as nearly all are in a short
training on few images.

All is computed in float32, whatever the type of the predictions.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.core.boxes import cxcywh_to_xyxy, generalised_box_iou, paired_generalised_iou, paired_iou
from vitrail.core.errors import ConfigError
from vitrail.models.contract import AuxiliaryOutput, BoxTargets, DetectionOutput, Scoring
from vitrail.tasks.detection.settings import DetectionSettings
from vitrail.train.objective import Loss

NO_BOX = -1
"""The assignment of a prediction to "no object"; lower numbers exclude the prediction."""

FOCAL_ALPHA, FOCAL_GAMMA = 0.25, 2.0  # Lin et al. 2017, section 4.1; Zhu et al. 2021, appendix
LEAST_PROBABILITY = 1e-8  # lower bound of a probability in a logarithm
QUALITY_EXPONENT = 1.5  # gamma of Huang et al. 2025, section 4

_log = logging.getLogger(__name__)


@torch.no_grad()
def matching_costs(
    logits: Float[Tensor, "batch queries logits"],
    boxes: Float[Tensor, "batch queries 4"],
    targets: BoxTargets,
    scoring: Scoring,
    settings: DetectionSettings,
) -> Float[Tensor, "batch queries boxes"]:
    """Return the cost of assigning each box to each query, in float32 (Carion et al. 2020, equation 1).

    The class cost is minus the probability with a softmax (Carion et al. 2020, section 3.1), and with
    sigmoids the focal loss of the class as present less that as absent (Zhu et al. 2021). Values for padding
    boxes are meaningless.

    Args:
        logits: of each query; with a softmax the last one is for no object.
        boxes: of each query, centre and size.
    """
    if scoring == "softmax":
        class_costs = -logits.float().softmax(dim=-1)[..., :-1]
    else:
        scores = logits.float().sigmoid()
        there = -(scores + LEAST_PROBABILITY).log() * FOCAL_ALPHA * (1 - scores) ** FOCAL_GAMMA
        absent = -(1 - scores + LEAST_PROBABILITY).log() * (1 - FOCAL_ALPHA) * scores**FOCAL_GAMMA
        class_costs = there - absent
    # Labels of padding boxes may be anything.
    columns = targets.labels.clamp(0, class_costs.shape[-1] - 1)[:, None].expand(-1, logits.shape[1], -1)
    costs = settings.class_weight * class_costs.gather(2, columns)
    found, wanted = boxes.float(), targets.boxes.float()
    costs = costs + settings.l1_weight * (found[:, :, None] - wanted[:, None]).abs().sum(dim=-1)
    return costs - settings.giou_weight * generalised_box_iou(cxcywh_to_xyxy(found), cxcywh_to_xyxy(wanted))


def assign(
    costs: Float[Tensor, "batch queries boxes"], counts: list[int], *, num_matches: int = 1
) -> Int[Tensor, "batch queries"]:
    """Assign boxes to predictions at the least total cost, each image separately.

    Paper: Carion et al. 2020, equation 1; with several predictions of one box, Jia et al. 2023, DETRs with
    Hybrid Matching.

    Args:
        counts: boxes of each image, which come first in its rows.
        num_matches: predictions that each box is assigned to; fewer in an image with too many boxes for it,
            and if there are more boxes than queries, only those of least cost are assigned at all.

    Returns:
        For each query the index of its box in the image's row, or ``NO_BOX``; on the device of the costs.

    Raises:
        ConfigError: a cost is infinite or NaN.
    """
    from scipy.optimize import linear_sum_assignment

    table = costs.float().cpu().numpy()
    assigned = np.full(table.shape[:2], NO_BOX, dtype=np.int64)
    for image, count in enumerate(counts):
        if not count:
            continue
        cost = table[image, :, :count]
        if not np.isfinite(cost).all():
            raise ConfigError(
                "the model's predictions are infinite or NaN, so that no box can be assigned to them",
                expected="finite logits and boxes",
                remedy="Lower optim.learning_rate, raise optim.warmup_fraction or use "
                "train.precision=float32; vitrail train --resume goes on from the last checkpoint",
            )
        repeats = max(1, min(num_matches, cost.shape[0] // count))
        queries, columns = linear_sum_assignment(np.tile(cost, (1, repeats)))
        assigned[image, queries] = columns % count
    return torch.from_numpy(assigned).to(costs.device)


class DetectionLoss:
    """The loss of a detector, including auxiliary outputs.

    Args:
        num_classes: number of classes, excluding "no object".
        scoring: how logits become scores.
        settings: the weights of the terms.
    """

    def __init__(self, num_classes: int, scoring: Scoring, settings: DetectionSettings) -> None:
        self.num_classes, self.scoring, self.settings = num_classes, scoring, settings
        self._has_warned = False

    def __call__(self, output: DetectionOutput, targets: BoxTargets) -> Loss:
        """Return the loss as a sum over the boxes of a batch; without any, as if there were one.

        Each set of predictions is assigned to the boxes separately, unless it brings its own assignment, and
        is divided by the number of predictions assigned to a box.

        Sums of several batches add up to those of all their images together, except the class term of a
        softmax: that is a mean over queries, and of several batches the mean weighted by their boxes.

        Raises:
            ConfigError: the number of logits does not fit the classes, or a prediction is infinite or NaN.
        """
        counts = targets.counts.tolist()
        self._check(output.logits, counts)
        predictions = (AuxiliaryOutput(output.logits, output.boxes), *output.auxiliary)
        count, settings = max(sum(counts), 1), self.settings
        weighed, parts = [], []
        for prediction, assigned in zip(predictions, self._assign(predictions, targets, counts), strict=True):
            terms = self._terms(prediction, targets, assigned)
            boxes = settings.l1_weight * terms["l1"] + settings.giou_weight * terms["giou"]
            weighed.append(count * prediction.weight * (settings.class_weight * terms["class"] + boxes))
            parts.append(terms)
        total = torch.stack(weighed).sum()
        return Loss(
            total=total,
            count=total.new_full((), sum(counts)),
            parts={name: count * part.detach() for name, part in parts[0].items()}
            | {"auxiliary": (total - weighed[0]).detach()},
        )

    def _assign(
        self, predictions: Sequence[AuxiliaryOutput], targets: BoxTargets, counts: list[int]
    ) -> list[Int[Tensor, "batch _"]]:
        # All costs first: a device computes the next ones while the assignment of the former is solved.
        costs = {
            index: matching_costs(each.logits, each.boxes, targets, self.scoring, self.settings)
            for index, each in enumerate(predictions)
            if each.assigned is None
        }
        return [
            assign(costs[index], counts, num_matches=each.num_matches)
            if each.assigned is None
            else each.assigned
            for index, each in enumerate(predictions)
        ]

    def _terms(
        self, prediction: AuxiliaryOutput, targets: BoxTargets, assigned: Int[Tensor, "batch queries"]
    ) -> dict[str, Float[Tensor, ""]]:
        """Return the terms of one set of predictions, each the mean over boxes.

        ``l1`` is the L1 distance of the normalised boxes, summed over their four numbers, and ``giou`` one
        minus their generalised IoU.
        """
        logits, boxes = prediction.logits.float(), prediction.boxes.float()
        is_assigned = assigned >= 0
        images, _ = is_assigned.nonzero(as_tuple=True)
        chosen = assigned[is_assigned]
        found, wanted = boxes[is_assigned], targets.boxes[images, chosen].float()
        labels = targets.labels[images, chosen]
        found_xyxy, wanted_xyxy = cxcywh_to_xyxy(found), cxcywh_to_xyxy(wanted)

        # If boxes have several predictions each, a box counts as much as one with a single prediction.
        num_boxes = targets.counts.sum().clamp(min=1)
        normaliser = num_boxes.clamp(min=len(chosen)).float()
        if self.scoring == "softmax":
            weight = self.settings.no_object_weight
            classes = softmax_class_loss(logits, assigned, is_assigned, labels, no_object_weight=weight)
        else:
            fits = paired_iou(found_xyxy.detach(), wanted_xyxy)
            classes = sigmoid_class_loss(logits, assigned, is_assigned, labels, fits) / normaliser
        giou = 1 - paired_generalised_iou(found_xyxy, wanted_xyxy)
        l1 = (found - wanted).abs().sum() / normaliser
        return {"class": classes, "l1": l1, "giou": giou.sum() / normaliser}

    def _check(self, logits: Tensor, counts: list[int]) -> None:
        expected = self.num_classes + (self.scoring == "softmax")
        if logits.shape[-1] != expected:
            raise ConfigError(
                f"the model predicts {logits.shape[-1]} logits for each box",
                expected=f"{expected}, for {self.num_classes} classes and a {self.scoring}",
                remedy="Set model.num_classes to the number of classes of the data, no object not included",
            )
        most, num_queries = max(counts, default=0), logits.shape[1]
        if most > num_queries and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "an image has %d boxes, but the model predicts %d: the others are never learned from; "
                "raise model.num_queries",
                most,
                num_queries,
            )


def softmax_class_loss(
    logits: Float[Tensor, "batch queries logits"],
    assigned: Int[Tensor, "batch queries"],
    is_assigned: Bool[Tensor, "batch queries"],
    labels: Int[Tensor, " assigned"],
    *,
    no_object_weight: float,
) -> Float[Tensor, ""]:
    """Average the cross entropy of the queries, weighting those without a box by ``no_object_weight``.

    The sum is divided by that of the weights, as in DETR's published code; it is 0 if all weights are.

    Args:
        logits: of each query; the last one is for no object.
        assigned: box of each query; ``NO_BOX`` for no object, anything lower excludes the query.
        is_assigned: which queries have a box.
        labels: class of each of these, in order.
    """
    wanted = torch.full_like(assigned, logits.shape[-1] - 1)
    wanted[is_assigned] = labels
    weights = torch.where(is_assigned, 1.0, no_object_weight) * (assigned >= NO_BOX)
    losses = F.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")
    total = weights.sum()
    return (weights * losses).sum() / torch.where(total > 0, total, 1)


def sigmoid_class_loss(
    logits: Float[Tensor, "batch queries classes"],
    assigned: Int[Tensor, "batch queries"],
    is_assigned: Bool[Tensor, "batch queries"],
    labels: Int[Tensor, " assigned"],
    fits: Float[Tensor, " assigned"],
) -> Float[Tensor, ""]:
    """Sum the matchability-aware loss over queries and classes.

    For the class of a query's box, whose IoU with the query's own is q, it is the cross entropy of the score
    p with q^1.5; for all other classes and queries -p^1.5 log(1 - p), so that doubtful ones hardly count.

    Paper: Huang et al. 2025, DEIM: DETR with Improved Matching for Fast Convergence, section 3.3.

    Args:
        fits: IoU of each query that has a box with it, without gradient; the others as for a softmax.
    """
    images, queries = is_assigned.nonzero(as_tuple=True)
    wanted = torch.zeros_like(logits)
    wanted[images, queries, labels] = fits**QUALITY_EXPONENT
    weights = logits.detach().sigmoid() ** QUALITY_EXPONENT
    weights[images, queries, labels] = 1.0
    weights = weights * (assigned >= NO_BOX)[..., None]
    return F.binary_cross_entropy_with_logits(logits, wanted, weight=weights, reduction="sum")
