"""Hungarian matching of predictions to ground-truth boxes, image by image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.core.boxes import cxcywh_to_xyxy, generalised_box_iou
from vitrail.core.errors import ConfigError
from vitrail.models.contract import BoxTargets

Scoring = Literal["softmax", "sigmoid"]
"""How logits become scores: a softmax over the classes and "no object", or a sigmoid per class."""

NO_BOX = -1
"""The assignment of a prediction to "no object"; lower numbers exclude the prediction."""

FOCAL_ALPHA, FOCAL_GAMMA = 0.25, 2.0  # Lin et al. 2017, section 4.1; Zhu et al. 2021, appendix
LEAST_PROBABILITY = 1e-8  # lower bound of a probability in a logarithm


def match(
    logits: Float[Tensor, "batch queries logits"],
    boxes: Float[Tensor, "batch queries 4"],
    targets: BoxTargets,
    *,
    scoring: Scoring,
    class_weight: float = 1.0,
    l1_weight: float = 5.0,
    giou_weight: float = 2.0,
    num_matches: int = 1,
) -> Int[Tensor, "batch queries"]:
    """Assign boxes to predictions at the least total cost.

    Paper: Carion et al. 2020, equation 1; with several predictions of one box, Jia et al. 2023, DETRs with
    Hybrid Matching.

    Args:
        logits: of each query; with a softmax the last one is for no object.
        boxes: of each query, centre and size.
        num_matches: predictions that each box is assigned to; fewer in an image with too many boxes for it,
            and if there are more boxes than queries, only those of least cost are assigned at all.

    Returns:
        For each query the index of its box in the image's row, or ``NO_BOX``; on the device of the logits.

    Raises:
        ConfigError: a prediction is infinite or NaN, or scipy is not installed.
    """
    costs = matching_costs(
        logits,
        boxes,
        targets,
        scoring=scoring,
        class_weight=class_weight,
        l1_weight=l1_weight,
        giou_weight=giou_weight,
    )
    return assign(costs, targets.counts.tolist(), num_matches=num_matches)


@torch.no_grad()
def matching_costs(
    logits: Float[Tensor, "batch queries logits"],
    boxes: Float[Tensor, "batch queries 4"],
    targets: BoxTargets,
    *,
    scoring: Scoring,
    class_weight: float,
    l1_weight: float,
    giou_weight: float,
) -> Float[Tensor, "batch queries boxes"]:
    """Return the cost of assigning each box to each query, in float32; arguments are those of ``match``.

    The class cost is minus the probability with a softmax (Carion et al. 2020, section 3.1), and with
    sigmoids the focal loss of the class as present less that as absent (Zhu et al. 2021). Values for padding
    boxes are meaningless.
    """
    class_cost = _softmax_cost if scoring == "softmax" else _sigmoid_cost
    costs = class_weight * _of_labels(class_cost(logits.float()), targets.labels)
    found, wanted = boxes.float(), targets.boxes.float()
    costs = costs + l1_weight * (found[:, :, None] - wanted[:, None]).abs().sum(dim=-1)
    return costs - giou_weight * generalised_box_iou(cxcywh_to_xyxy(found), cxcywh_to_xyxy(wanted))


def assign(
    costs: Float[Tensor, "batch queries boxes"], counts: list[int], *, num_matches: int = 1
) -> Int[Tensor, "batch queries"]:
    """Solve the assignment of every image separately.

    Args:
        counts: boxes of each image, which come first in its rows.
        num_matches: as in ``match``.

    Returns:
        As ``match`` does.

    Raises:
        ConfigError: a cost is infinite or NaN, or scipy is not installed.
    """
    solve = _import_solver()
    table = costs.float().cpu().numpy()
    assigned = np.full(table.shape[:2], NO_BOX, dtype=np.int64)
    for image, count in enumerate(counts):
        if not count:
            continue
        cost = table[image, :, :count]
        _check_finite(cost)
        repeats = max(1, min(num_matches, cost.shape[0] // count))
        queries, columns = solve(np.tile(cost, (1, repeats)))
        assigned[image, queries] = columns % count
    return torch.from_numpy(assigned).to(costs.device)


def _softmax_cost(
    logits: Float[Tensor, "batch queries logits"],
) -> Float[Tensor, "batch queries classes"]:
    return -logits.softmax(dim=-1)[..., :-1]


def _sigmoid_cost(
    logits: Float[Tensor, "batch queries classes"],
) -> Float[Tensor, "batch queries classes"]:
    scores = logits.sigmoid()
    there = -(scores + LEAST_PROBABILITY).log() * FOCAL_ALPHA * (1 - scores) ** FOCAL_GAMMA
    absent = -(1 - scores + LEAST_PROBABILITY).log() * (1 - FOCAL_ALPHA) * scores**FOCAL_GAMMA
    return there - absent


def _of_labels(
    values: Float[Tensor, "batch queries classes"], labels: Int[Tensor, "batch boxes"]
) -> Float[Tensor, "batch queries boxes"]:
    """Select the value of each box's class; labels of padding boxes may be anything."""
    columns = labels.clamp(0, values.shape[-1] - 1)[:, None].expand(-1, values.shape[1], -1)
    return values.gather(2, columns)


def _check_finite(cost: np.ndarray) -> None:
    if not np.isfinite(cost).all():
        raise ConfigError(
            "predictions of the model are infinite or NaN, so that no box can be assigned to them",
            expected="finite logits and boxes",
            remedy=(
                "Lower optim.learning_rate, raise optim.warmup_fraction or use train.precision=float32; "
                "vitrail train --resume goes on from the last checkpoint"
            ),
        )


def _import_solver() -> Callable[[np.ndarray], tuple[Any, Any]]:
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError:
        raise ConfigError(
            "learning to detect needs the package scipy, which is not installed",
            expected="scipy beside vitrail",
            remedy="Install it with: pip install 'vitrail[detection]'",
        ) from None
    return linear_sum_assignment
