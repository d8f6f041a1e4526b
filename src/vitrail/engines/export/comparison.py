"""Comparison of a model and its export on the same images: differences of outputs, and scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import CheckpointError, DataError
from vitrail.engines.export.contract import Inputs, Outputs, Runner
from vitrail.engines.export.package import Comparison, PortSpec, Precision, ScorePair
from vitrail.engines.export.samples import Samples, batches_of
from vitrail.models.contract import DetectionOutput
from vitrail.tasks.detection.detections import scores_of

HEADLINES = {"classification": "accuracy", "detection": "ap"}
"""The score of each task that an export may lose."""
DEFAULT_LOSS_POINTS = 0.5  # percentage points
ROUNDING_POINTS = 1e-9  # rounding of equal fractions
TOLERANCES: dict[Precision, float] = {"float32": 1e-3, "bfloat16": 0.05, "int8": 0.5}
"""Of the maximum logit difference in float32, of the mean in others; scaled up if a logit exceeds
``PLAIN_LOGIT``.
"""
PLAIN_LOGIT = 10.0
BOX_TOLERANCES: dict[Precision, float] = {"float32": 1e-3, "bfloat16": 0.01, "int8": 0.05}
"""The same for box coordinates, relative to the image."""
LEAST_SCORE = 0.05  # confidence from which a box matters, in either output
# Some detectors select queries among encoder tokens: rounding decides ties at the cutoff, so that one query
# in a hundred may differ.
COMPARED_SHARE = 0.99


class Differences(NamedTuple):
    """Differences of outputs."""

    num_images: int
    largest: float
    """Maximum difference of a logit."""
    mean: float
    """Mean difference of a logit."""
    largest_logit: float
    """Largest absolute logit of the model."""
    same_class: float
    """Fraction of images, or of boxes that matter, with the same predicted class."""
    largest_box: float | None
    """Maximum difference of a box coordinate."""
    mean_box: float | None
    """Mean difference of a box coordinate."""


class _Tally:
    """Differences, collected batch by batch."""

    def __init__(self) -> None:
        self.num_images = 0
        self.logits: list[Tensor] = []  # of each row: maximum and mean difference, largest logit
        self.boxes: list[Tensor] = []
        self.is_same: list[Tensor] = []

    def summarise(self) -> Differences:
        """Return the differences of all batches."""
        if not self.num_images:
            raise DataError(
                "none of the images could be read",
                expected="images to compare the model and its export on",
                remedy="Name other data with --data",
            )
        logits, is_same = torch.cat(self.logits), torch.cat(self.is_same)
        boxes = torch.cat(self.boxes) if self.boxes else None
        return Differences(
            num_images=self.num_images,
            largest=float(logits[:, 0].max()),
            mean=float(logits[:, 1].mean()),
            largest_logit=float(logits[:, 2].max()),
            same_class=float(is_same.float().mean()) if len(is_same) else 1.0,
            largest_box=None if boxes is None else float(boxes[:, 0].max()),
            mean_box=None if boxes is None else float(boxes[:, 1].mean()),
        )


def compare(
    model: nn.Module,
    runner: Runner,
    samples: Samples,
    indices: Sequence[int],
    ports: Sequence[PortSpec],
) -> tuple[Differences, Comparison]:
    """Run both on the same images, in batches of several sizes.

    Args:
        model: in evaluation mode, on the CPU.
        runner: of the export.

    Raises:
        DataError: no image can be read.
    """
    tally = _Tally()
    evaluators = samples.objective.evaluator(), samples.objective.evaluator()
    for batch, inputs in batches_of(samples, samples.source, indices, ports):
        answers = run_model(model, inputs), runner(inputs)
        tally.num_images += len(batch)
        if len(inputs) == 1:
            _compare_logits(tally, answers[0][0], answers[1][0])
        else:
            scoring: Any = getattr(model.config, "scoring", "softmax")
            for image in range(len(batch)):
                _compare_boxes(tally, *(_of_image(answer, image) for answer in answers), scoring=scoring)
        for evaluator, answer in zip(evaluators, answers, strict=True):
            evaluator.update(_Answered(answer), batch)
    found = tally.summarise()
    ours, theirs = (evaluator.result() for evaluator in evaluators)
    names = [name for name in ours if name != "count"] if samples.has_labels else []
    return found, Comparison(
        images=samples.title,
        num_images=found.num_images,
        largest_logit_difference=found.largest,
        mean_logit_difference=found.mean,
        top1_agreement=found.same_class,
        largest_box_difference=found.largest_box,
        mean_box_difference=found.mean_box,
        scores={name: ScorePair(model=ours[name], export=theirs[name]) for name in names},
        num_scored=found.num_images if samples.has_labels else 0,
    )


def run_model(model: nn.Module, inputs: Inputs) -> Outputs:
    """Return a torch model's outputs, in an export's form."""
    with torch.inference_mode():
        answer = model(*inputs)
    return (answer.logits, answer.boxes) if isinstance(answer, DetectionOutput) else (answer,)


def tolerance_of(found: Differences, precision: Precision, asked: float | None) -> float:
    """Return the tolerance of logits: the user's, or from ``TOLERANCES``."""
    if asked is not None:
        return asked
    return TOLERANCES[precision] * max(1.0, found.largest_logit / PLAIN_LOGIT)


def box_tolerance_of(found: Differences, precision: Precision, asked: float | None) -> float | None:
    """Return the tolerance of box coordinates, likewise; None without boxes."""
    if found.largest_box is None:
        return None
    return BOX_TOLERANCES[precision] if asked is None else asked


def check_differences(
    found: Differences,
    precision: Precision,
    tolerance: float,
    *,
    box_tolerance: float | None = None,
    title: str,
) -> None:
    """Refuse an export whose outputs differ.

    Args:
        precision: in float32 the maximum difference counts, otherwise the mean.
        tolerance: of logits.
        box_tolerance: of box coordinates, relative to the image; ``BOX_TOLERANCES`` by default.
        title: of the images.

    Raises:
        CheckpointError: it does.
    """
    is_exact = precision == "float32"
    difference = found.largest if is_exact else found.mean
    which = "" if is_exact else " on average"
    faults, options = [], []
    if not difference <= tolerance:  # NaN is out of tolerance, too
        faults.append(f"logits differ by {difference:.1e}{which}, more than {tolerance:.1e}")
        options.append("--tolerance")
    most = BOX_TOLERANCES[precision] if box_tolerance is None else box_tolerance
    of_boxes = found.largest_box if is_exact else found.mean_box
    if of_boxes is not None and not of_boxes <= most:
        faults.append(f"boxes by {of_boxes:.1e} of the image{which}, more than {most:.1e}")
        options.append("--box-tolerance")
    if faults:
        raise CheckpointError(
            f"the exported model does not compute what the model does: on {title}, {'; '.join(faults)}",
            expected="answers within the tolerance; nothing was written",
            remedy=f"Export in another format or precision, or allow more with {' and '.join(options)}",
        )


def lost_points(comparison: Comparison, kind: str) -> float:
    """Return how many percentage points an export loses; 0 without labels."""
    pair = comparison.scores.get(HEADLINES[kind])
    return 0.0 if pair is None else 100 * (pair.model - pair.export)


def is_scored_whole(precision: Precision, samples: Samples) -> bool:
    """Tell whether all images are scored and not some: where rounding may cost what only many show."""
    return precision != "float32" and samples.has_labels


def check_loss(comparison: Comparison, kind: str, precision: Precision, allowed_points: float) -> None:
    """Refuse an export that loses too much of the score.

    Args:
        comparison: has both scores.
        precision: other than int8, one image may be lost however few there are, by a tie.
        allowed_points: percentage points.

    Raises:
        CheckpointError: it does.
    """
    lost = lost_points(comparison, kind)
    if precision != "int8" and kind == "classification":
        allowed_points = max(allowed_points, 100 / max(comparison.num_scored, 1))
    if lost > allowed_points + ROUNDING_POINTS:
        name, pair = HEADLINES[kind], comparison.scores[HEADLINES[kind]]
        raise CheckpointError(
            f"the exported model loses {lost:.2f} points of {name}, {100 * pair.model:.2f} became "
            f"{100 * pair.export:.2f} on {comparison.images}",
            expected=f"at most {allowed_points:g} points; nothing was written",
            remedy=f"Allow it with --allow-accuracy-loss {math.ceil(10 * lost) / 10:g}, or take another "
            "precision or format",
        )


class _Answered(nn.Module):
    """Stands for a model with precomputed outputs, so that evaluators do not run it again."""

    def __init__(self, answer: Outputs) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, *inputs: Any) -> Tensor | DetectionOutput:
        return self.answer[0] if len(self.answer) == 1 else DetectionOutput(self.answer[0], self.answer[1])


def _compare_logits(
    tally: _Tally, ours: Float[Tensor, "batch classes"], theirs: Float[Tensor, "batch classes"]
) -> None:
    difference = (ours - theirs).abs()
    tally.logits.append(
        torch.stack((difference.amax(dim=1), difference.mean(dim=1), ours.abs().amax(dim=1)), dim=1)
    )
    tally.is_same.append(ours.argmax(dim=1) == theirs.argmax(dim=1))


def _compare_boxes(
    tally: _Tally,
    ours: tuple[Float[Tensor, "queries classes"], Float[Tensor, "queries 4"]],
    theirs: tuple[Float[Tensor, "queries classes"], Float[Tensor, "queries 4"]],
    *,
    scoring: Any,
) -> None:
    """Compare the boxes of one image with their counterparts."""
    rows, columns = _pair_queries(ours, theirs)
    logits, other_logits = ours[0][rows], theirs[0][columns]
    of_logits, of_boxes = (logits - other_logits).abs(), (ours[1][rows] - theirs[1][columns]).abs()
    worst = of_logits.amax(dim=1) + of_boxes.amax(dim=1)
    count = math.ceil(COMPARED_SHARE * len(worst)) if worst.isfinite().all() else len(worst)  # includes NaN
    kept = worst.argsort()[:count]
    tally.logits.append(
        torch.stack((of_logits.amax(dim=1), of_logits.mean(dim=1), logits.abs().amax(dim=1)), dim=1)[kept]
    )
    tally.boxes.append(torch.stack((of_boxes.amax(dim=1), of_boxes.mean(dim=1)), dim=1)[kept])
    scores, other_scores = scores_of(logits, scoring), scores_of(other_logits, scoring)
    matters = torch.maximum(scores.amax(dim=1), other_scores.amax(dim=1)) >= LEAST_SCORE
    tally.is_same.append((scores.argmax(dim=1) == other_scores.argmax(dim=1))[matters])


def _pair_queries(
    ours: tuple[Float[Tensor, "queries classes"], Float[Tensor, "queries 4"]],
    theirs: tuple[Float[Tensor, "queries classes"], Float[Tensor, "queries 4"]],
) -> tuple[Tensor, Tensor]:
    """Match queries with the least total difference, as their order may change."""
    from scipy.optimize import linear_sum_assignment

    cost = sum(torch.cdist(one.float(), other.float(), p=1) for one, other in zip(ours, theirs, strict=True))
    assert isinstance(cost, Tensor)
    found = linear_sum_assignment(cost.nan_to_num(nan=1e6, posinf=1e6, neginf=1e6).numpy())
    rows, columns = (torch.from_numpy(each) for each in found)
    return rows, columns


def _of_image(answer: Outputs, image: int) -> tuple[Tensor, Tensor]:
    logits, boxes = answer
    return logits[image], boxes[image]
