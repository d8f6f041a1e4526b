"""Hungarian matching of predictions to ground-truth boxes, image by image."""

from __future__ import annotations

from typing import Literal

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
    costs = class_weight * class_costs.gather(2, columns)
    found, wanted = boxes.float(), targets.boxes.float()
    costs = costs + l1_weight * (found[:, :, None] - wanted[:, None]).abs().sum(dim=-1)
    return costs - giou_weight * generalised_box_iou(cxcywh_to_xyxy(found), cxcywh_to_xyxy(wanted))


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
