"""A model and its export on the same images: how far their answers differ, and what both score."""

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
from vitrail.tasks.detection.outputs import scores_of

HEADLINES = {"classification": "accuracy", "detection": "ap"}
"""The score of each kind that an export may lose."""
DEFAULT_LOSS_POINTS = 0.5  # of a hundred
ROUNDING_POINTS = 1e-9  # that shares of images differ by where they are equal
TOLERANCES: dict[Precision, float] = {"float32": 1e-3, "bfloat16": 0.05, "int8": 0.5}
"""Of the greatest difference of logits in float32, of their mean in others, where no logit exceeds
``PLAIN_LOGIT``; of greater logits as many times more."""
PLAIN_LOGIT = 10.0
BOX_TOLERANCES: dict[Precision, float] = {"float32": 1e-3, "bfloat16": 0.01, "int8": 0.05}
"""The same of the numbers of a box, as shares of the image."""
LEAST_SCORE = 0.05  # of a box that matters, in either answer
# Cells propose the queries of some detectors; of those that are nearly equal, rounding decides which is the
# last to be chosen, so that one query in a hundred may be another one.
COMPARED_SHARE = 0.99


class Differences(NamedTuple):
    """What the answers to some images differ by."""

    num_images: int
    """Images that were compared."""
    largest: float
    """Difference of a logit."""
    mean: float
    """Likewise, of all."""
    largest_logit: float
    """Logit of the model, of either sign."""
    same_class: float
    """Share of images, or of boxes that matter, with the same best class."""
    largest_box: float | None
    """Difference of a number of a box."""
    mean_box: float | None
    """Likewise, of all."""


class _Tally:
    """Differences, collected batch by batch."""

    def __init__(self) -> None:
        self.num_images = 0
        self.logits: list[Tensor] = []  # of each row: greatest and mean difference, greatest logit
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
        model: in evaluation mode, on the processor.
        runner: the exported one.
        samples: the images.
        indices: which of them.
        ports: the inputs of the export.

    Returns:
        The differences, and all that a package says of them.

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
    """Return what a model in torch answers, in the form of an exported one."""
    with torch.inference_mode():
        answer = model(*inputs)
    return (answer.logits, answer.boxes) if isinstance(answer, DetectionOutput) else (answer,)


def tolerance_of(found: Differences, precision: Precision, asked: float | None) -> float:
    """Return what the differences of logits must stay within: what the user asked for, or ``TOLERANCES``."""
    if asked is not None:
        return asked
    return TOLERANCES[precision] * max(1.0, found.largest_logit / PLAIN_LOGIT)


def box_tolerance_of(found: Differences, precision: Precision, asked: float | None) -> float | None:
    """Return what numbers of boxes must stay within, likewise; None where there are no boxes."""
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
    """Refuse an export that computes something else.

    Args:
        found: what was measured.
        precision: in float32 the greatest difference counts, otherwise the mean.
        tolerance: of logits.
        box_tolerance: of the numbers of a box, as shares of the image; ``BOX_TOLERANCES`` by default.
        title: what was compared on.

    Raises:
        CheckpointError: it does.
    """
    is_exact = precision == "float32"
    difference = found.largest if is_exact else found.mean
    which = "" if is_exact else " on average"
    faults, options = [], []
    if not difference <= tolerance:  # a NaN is not within it either
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
    """Return what an export scores less than the model, in points of a hundred; 0 without labels."""
    pair = comparison.scores.get(HEADLINES[kind])
    return 0.0 if pair is None else 100 * (pair.model - pair.export)


def is_scored_whole(precision: Precision, samples: Samples) -> bool:
    """Tell whether all images are scored and not some: where rounding may cost what only many show."""
    return precision != "float32" and samples.has_labels


def check_loss(comparison: Comparison, kind: str, precision: Precision, allowed_points: float) -> None:
    """Refuse an export that scores less than it may.

    Args:
        comparison: what both score.
        kind: ``images`` or ``boxes``.
        precision: in others than int8, one image may be lost however few there are: its classes may be level.
        allowed_points: of a hundred.

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
    """Stands for a model that has answered already, so that evaluators do not ask again."""

    def __init__(self, answer: Outputs) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, *inputs: Any) -> Tensor | DetectionOutput:
        """Return the answer."""
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
    """Compare the boxes of one image, each with that of the other answer which it is."""
    rows, columns = _pair_queries(ours, theirs)
    logits, other_logits = ours[0][rows], theirs[0][columns]
    of_logits, of_boxes = (logits - other_logits).abs(), (ours[1][rows] - theirs[1][columns]).abs()
    worst = of_logits.amax(dim=1) + of_boxes.amax(dim=1)
    count = math.ceil(COMPARED_SHARE * len(worst)) if worst.isfinite().all() else len(worst)  # NaNs are seen
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
    """Return which queries belong together: those that differ least in all, as queries may change places."""
    from scipy.optimize import linear_sum_assignment

    cost = sum(torch.cdist(one.float(), other.float(), p=1) for one, other in zip(ours, theirs, strict=True))
    assert isinstance(cost, Tensor)
    found = linear_sum_assignment(cost.nan_to_num(nan=1e6, posinf=1e6, neginf=1e6).numpy())
    rows, columns = (torch.from_numpy(each) for each in found)
    return rows, columns


def _of_image(answer: Outputs, image: int) -> tuple[Tensor, Tensor]:
    logits, boxes = answer
    return logits[image], boxes[image]
