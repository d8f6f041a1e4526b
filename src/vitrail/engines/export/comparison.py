"""Comparison of a model and its export on the same images: differences of outputs, and scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from vitrail.core.errors import CheckpointError, DataError
from vitrail.data.stream import SampleSource
from vitrail.engines.contract import Inputs, Outputs
from vitrail.engines.export.formats import Runner
from vitrail.engines.export.package import Comparison, PortSpec, Precision, ScorePair
from vitrail.engines.export.tracing import is_detector
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import DetectionOutput, class_scores
from vitrail.train.objective import Objective

NUM_COMPARED = 64  # images, where not all are scored
NUM_CALIBRATED = 128  # calibration images; more change the ranges little
COARSE = 7  # rows and columns of the noise that a generated image is upsampled from
BATCH_SIZES = (1, 3, 2, 8)  # in turn, to detect a graph that is right for one batch size only
DEFAULT_LOSS_POINTS = 0.5  # percentage points
ROUNDING_POINTS = 1e-9  # rounding of equal fractions
TOLERANCES: dict[Precision, float] = {"float32": 1e-3, "bfloat16": 0.05, "int8": 0.5}
"""Of the maximum logit difference in float32, of the mean in others; scaled up if a logit exceeds
``PLAIN_LOGIT``.
"""
PLAIN_LOGIT = 10.0
BOX_TOLERANCES: dict[Precision, float] = {"float32": 1e-3, "bfloat16": 0.01, "int8": 0.05}
"""The same for box coordinates, relative to the image."""
CONFIDENCE_THRESHOLD = 0.05  # from which a box matters, in either output
# Some detectors select queries among encoder tokens: rounding decides ties at the cutoff, so that one query
# in a hundred may differ.
COMPARED_SHARE = 0.99


@runtime_checkable
class ExportObjective(Objective, Protocol):
    """The objective of a task whose models are exported by ``vitrail.engines``."""

    headline: str
    """The score that an export may not lose."""

    def unlabelled(self, image: UInt8[Tensor, "3 height width"], index: int) -> Any:
        """Return a sample without labels."""

    def inputs(self, batch: Any) -> Inputs:
        """Return what the model reads: normalised images; of a detector also sizes without padding."""


class Samples(NamedTuple):
    """Images to compare on, possibly with labels."""

    objective: ExportObjective
    """Collates and scores."""
    source: SampleSource
    """Compared and scored images."""
    title: str
    """Description for the user."""
    has_labels: bool
    """Whether scores are meaningful."""
    calibration: SampleSource | None = None
    """Images for int8 calibration."""


class GeneratedImages:
    """Images of smooth noise in all colours, without labels; a ``SampleSource``."""

    def __init__(self, objective: ExportObjective, sizes: Sequence[tuple[int, int]]) -> None:
        self.objective, self.sizes = objective, sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def load(self, index: int, generator: torch.Generator | None) -> Any:
        noise = torch.rand(1, 3, COARSE, COARSE, generator=torch.Generator().manual_seed(index))
        smooth = F.interpolate(noise, size=self.sizes[index], mode="bilinear", antialias=True)[0]
        return self.objective.unlabelled((255 * smooth).round().to(torch.uint8), index)


def generate_samples(loaded: LoadedModel, objective: ExportObjective, count: int = NUM_COMPARED) -> Samples:
    """Return generated images of the model's own size, if its data is not available."""
    height, width = loaded.preprocessing["image_size"]
    sizes = [(height, width)] * count
    if is_detector(loaded.model):  # the rest is padding, as for images of varying aspect ratios
        sizes[::2] = [(height, max(width * 3 // 4, 1))] * len(sizes[::2])
    title = f"{count} generated images"
    return Samples(objective, GeneratedImages(objective, sizes), title, has_labels=False)


def batches_of(
    samples: Samples, source: SampleSource, indices: Sequence[int], ports: Sequence[PortSpec]
) -> Iterator[tuple[Any, Inputs]]:
    """Yield batches of several sizes, each with the inputs of an exported model.

    Unreadable samples are left out.
    """
    start = 0
    for size in chain(BATCH_SIZES, repeat(BATCH_SIZES[-1])):
        if start >= len(indices):
            return
        read = []
        for index in indices[start : start + size]:
            try:
                read.append(source.load(index, None))
            except DataError:
                continue
        start += size
        if read:
            batch = samples.objective.collate(read, None)
            images, *sizes = samples.objective.inputs(batch)
            yield batch, (fit_canvas(images, ports[0]) if sizes else images, *sizes)


def calibration_batches(samples: Samples, ports: Sequence[PortSpec]) -> list[Inputs]:
    """Return batches for int8 calibration.

    Raises:
        DataError: no image can be read.
    """
    source = samples.source if samples.calibration is None else samples.calibration
    indices = spread(len(source), NUM_CALIBRATED)
    batches = [inputs for _, inputs in batches_of(samples, source, indices, ports)]
    if not batches:
        raise DataError(
            "none of the calibration images can be read",
            expected="images to calibrate the ranges of int8 on",
            remedy="Name other data with --data",
        )
    return batches


def spread(count: int, most: int) -> list[int]:
    """Return up to ``most`` evenly spaced indices below ``count``, ascending.

    >>> spread(10, 3)
    [0, 4, 9]
    """
    if count <= most:
        return list(range(count))
    return sorted({round(index * (count - 1) / max(most - 1, 1)) for index in range(most)})


def fit_canvas(
    images: Float[Tensor, "batch 3 height width"], port: PortSpec
) -> Float[Tensor, "batch 3 padded_height padded_width"]:
    """Zero-pad a detector's images at the bottom and right to a size that an exported model supports.

    Raises:
        DataError: they are larger than the only size that the model supports.
    """
    missing = []
    for length, axis in zip(images.shape[2:], port.axes[2:], strict=True):
        wanted = (
            axis
            if isinstance(axis, int)
            else max(-(-length // port.multiple_of) * port.multiple_of, port.at_least)
        )
        if wanted < length:
            raise DataError(
                f"images of {images.shape[2]}x{images.shape[3]} pixels",
                expected=f"at most {port.axes[2]}x{port.axes[3]}, the size that the model was exported with",
                remedy="Make the images smaller",
            )
        missing.append(wanted - length)
    return F.pad(images, (0, missing[1], 0, missing[0])) if any(missing) else images


def compare(
    model: nn.Module, runner: Runner, samples: Samples, indices: Sequence[int], ports: Sequence[PortSpec]
) -> Comparison:
    """Run both on the same images, in batches of several sizes.

    Raises:
        DataError: no image can be read.
    """
    num_images = 0
    rows: list[_Row] = []
    evaluators = samples.objective.evaluator(), samples.objective.evaluator()
    for batch, inputs in batches_of(samples, samples.source, indices, ports):
        outputs = run_model(model, inputs), runner(inputs)
        num_images += len(batch)
        if len(inputs) == 1:
            rows.append(_compare_logits(outputs[0][0], outputs[1][0]))
        else:
            scoring: Any = getattr(model.config, "scoring", "softmax")
            for of_image in zip(*outputs[0], *outputs[1], strict=True):
                rows.append(_compare_boxes(of_image[:2], of_image[2:], scoring=scoring))
        for evaluator, output in zip(evaluators, outputs, strict=True):
            evaluator.update(_Precomputed(output), batch)
    if not rows:
        raise DataError(
            "none of the images could be read",
            expected="images to compare the model and its export on",
            remedy="Name other data with --data",
        )
    logits, is_same = torch.cat([row.logits for row in rows]), torch.cat([row.is_same for row in rows])
    of_boxes = [row.boxes for row in rows if row.boxes is not None]
    boxes = torch.cat(of_boxes) if of_boxes else None
    ours, theirs = (evaluator.result() for evaluator in evaluators)
    names = [name for name in ours if name != "count"] if samples.has_labels else []
    return Comparison(
        images=samples.title,
        num_images=num_images,
        largest_logit_difference=float(logits[:, 0].max()),
        mean_logit_difference=float(logits[:, 1].mean()),
        largest_logit=float(logits[:, 2].max()),
        top1_agreement=float(is_same.float().mean()) if len(is_same) else 1.0,
        largest_box_difference=None if boxes is None else float(boxes[:, 0].max()),
        mean_box_difference=None if boxes is None else float(boxes[:, 1].mean()),
        scores={name: ScorePair(model=ours[name], export=theirs[name]) for name in names},
        num_scored=num_images if samples.has_labels else 0,
    )


class _Row(NamedTuple):
    logits: Float[Tensor, "n 3"]
    """Maximum and mean difference of the logits of an image or query, and the largest logit."""
    boxes: Float[Tensor, "n 2"] | None
    """Maximum and mean difference of coordinates."""
    is_same: Tensor
    """Whether the predicted class is the same."""


class _Precomputed(nn.Module):
    """Stands for a model whose outputs are known, so that evaluators do not run it again."""

    def __init__(self, output: Outputs) -> None:
        super().__init__()
        self.output = output

    def forward(self, *inputs: Any) -> Tensor | DetectionOutput:
        return self.output[0] if len(self.output) == 1 else DetectionOutput(self.output[0], self.output[1])


def run_model(model: nn.Module, inputs: Inputs) -> Outputs:
    """Return a torch model's outputs, in an export's form."""
    with torch.inference_mode():
        output = model(*inputs)
    return (output.logits, output.boxes) if isinstance(output, DetectionOutput) else (output,)


def _compare_logits(ours: Float[Tensor, "batch classes"], theirs: Float[Tensor, "batch classes"]) -> _Row:
    difference = (ours - theirs).abs()
    logits = torch.stack((difference.amax(dim=1), difference.mean(dim=1), ours.abs().amax(dim=1)), dim=1)
    return _Row(logits, None, ours.argmax(dim=1) == theirs.argmax(dim=1))


def _compare_boxes(
    ours: Sequence[Tensor],  # logits (queries classes) and boxes (queries 4) of one image
    theirs: Sequence[Tensor],
    *,
    scoring: Any,
) -> _Row:
    """Compare the boxes of one image with their counterparts."""
    from scipy.optimize import linear_sum_assignment

    # Queries are matched with the least total difference, as their order may change.
    pairs = zip(ours, theirs, strict=True)
    cost: Any = sum(torch.cdist(one.float(), other.float(), p=1) for one, other in pairs)
    found = linear_sum_assignment(cost.nan_to_num(nan=1e6, posinf=1e6, neginf=1e6).numpy())
    rows, columns = (torch.from_numpy(each) for each in found)
    logits, other_logits = ours[0][rows], theirs[0][columns]
    of_logits, of_boxes = (logits - other_logits).abs(), (ours[1][rows] - theirs[1][columns]).abs()
    worst = of_logits.amax(dim=1) + of_boxes.amax(dim=1)
    count = math.ceil(COMPARED_SHARE * len(worst)) if worst.isfinite().all() else len(worst)  # includes NaN
    kept = worst.argsort()[:count]
    scores, other_scores = class_scores(logits, scoring), class_scores(other_logits, scoring)
    matters = torch.maximum(scores.amax(dim=1), other_scores.amax(dim=1)) >= CONFIDENCE_THRESHOLD
    return _Row(
        torch.stack((of_logits.amax(dim=1), of_logits.mean(dim=1), logits.abs().amax(dim=1)), dim=1)[kept],
        torch.stack((of_boxes.amax(dim=1), of_boxes.mean(dim=1)), dim=1)[kept],
        (scores.argmax(dim=1) == other_scores.argmax(dim=1))[matters],
    )


def tolerance_of(found: Comparison, precision: Precision, asked: float | None = None) -> float:
    """Return the tolerance of logits: the user's, or from ``TOLERANCES``."""
    if asked is not None:
        return asked
    return TOLERANCES[precision] * max(1.0, found.largest_logit / PLAIN_LOGIT)


def check_differences(
    found: Comparison, precision: Precision, asked: float | None = None, *, box_tolerance: float | None = None
) -> None:
    """Refuse an export whose outputs differ.

    Args:
        precision: in float32 the maximum difference counts, otherwise the mean.
        asked: tolerance of logits, as for ``tolerance_of``.
        box_tolerance: of box coordinates, relative to the image; ``BOX_TOLERANCES`` by default.

    Raises:
        CheckpointError: it does.
    """
    is_exact = precision == "float32"
    tolerance = tolerance_of(found, precision, asked)
    difference = found.largest_logit_difference if is_exact else found.mean_logit_difference
    which = "" if is_exact else " on average"
    faults, options = [], []
    if not difference <= tolerance:  # NaN is out of tolerance, too
        faults.append(f"logits differ by {difference:.1e}{which}, more than {tolerance:.1e}")
        options.append("--tolerance")
    most = BOX_TOLERANCES[precision] if box_tolerance is None else box_tolerance
    of_boxes = found.largest_box_difference if is_exact else found.mean_box_difference
    if of_boxes is not None and not of_boxes <= most:
        faults.append(f"boxes by {of_boxes:.1e} of the image{which}, more than {most:.1e}")
        options.append("--box-tolerance")
    if faults:
        raise CheckpointError(
            f"the exported model computes something else: on {found.images}, {'; '.join(faults)}",
            expected="outputs within the tolerance; nothing was written",
            remedy=f"Export in another format or precision, or allow more with {' and '.join(options)}",
        )


def is_scored_whole(precision: Precision, samples: Samples) -> bool:
    """Return whether all images are scored and not some: where rounding may cost what only many show."""
    return precision != "float32" and samples.has_labels


def check_loss(found: Comparison, headline: str, precision: Precision, allowed_points: float) -> None:
    """Refuse an export that loses too much of the headline score, if it was computed.

    Args:
        precision: other than int8, one image may be lost however few there are, by a tie.
        allowed_points: percentage points.

    Raises:
        CheckpointError: it does.
    """
    if headline not in found.scores:
        return
    pair = found.scores[headline]
    lost = 100 * (pair.model - pair.export)
    if precision != "int8" and headline == "accuracy":
        allowed_points = max(allowed_points, 100 / max(found.num_scored, 1))
    if lost > allowed_points + ROUNDING_POINTS:
        raise CheckpointError(
            f"the exported model loses {lost:.2f} points of {headline}, {100 * pair.model:.2f} became "
            f"{100 * pair.export:.2f} on {found.images}",
            expected=f"at most {allowed_points:g} points; nothing was written",
            remedy=f"Allow it with --allow-accuracy-loss {math.ceil(10 * lost) / 10:g}, or choose another "
            "precision or format",
        )
