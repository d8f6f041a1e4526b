"""Differences are those that were made, in whatever order queries stand, and too large ones fail."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from making.small_detection import CLASSES, small_split, small_task
from making.small_exports import comparison, generated, load_small
from vitrail.core.errors import CheckpointError
from vitrail.engines.export.comparison import (
    Samples,
    check_differences,
    check_loss,
    compare,
    tolerance_of,
)
from vitrail.engines.export.package import PortSpec, ScorePair
from vitrail.models.contract import DetectionOutput
from vitrail.tasks.detection.samples import BoxSource

IMAGES = PortSpec(name="images", dtype="float32", axes=("batch", 3, 16, 24))
ALIKE = comparison()


def test_a_difference_of_logits_is_found():
    loaded = load_small("mixer_s16")
    shift = torch.tensor([0.0, 0.25, 0.0, 0.0, 0.0])

    found = compare(
        loaded.model,
        lambda inputs: (loaded.model(*inputs).detach() + shift,),
        generated(loaded, 7),
        range(7),
        [IMAGES],
    )

    assert found.largest_logit_difference == pytest.approx(0.25, abs=1e-6)
    assert found.mean_logit_difference == pytest.approx(0.05, abs=1e-6)
    assert found.num_images == 7
    assert found.scores == {}  # there are no labels


def test_batches_have_several_sizes():
    loaded, seen = load_small("mixer_s16"), []

    def run_export(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        seen.append(len(inputs[0]))
        return (loaded.model(*inputs).detach(),)

    compare(loaded.model, run_export, generated(loaded, 19), range(19), [IMAGES])

    assert seen == [1, 3, 2, 8, 5]


class FixedDetector(nn.Module):
    """Answers with the same boxes to every image."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.logits = torch.randn(7, CLASSES, generator=generator)
        self.boxes = torch.rand(7, 4, generator=generator)

    def forward(self, images: Tensor, sizes: Tensor | None = None, targets: None = None) -> DetectionOutput:
        batch = images.shape[0]
        return DetectionOutput(self.logits.expand(batch, -1, -1), self.boxes.expand(batch, -1, -1))


@pytest.fixture
def detector() -> FixedDetector:
    model = FixedDetector()
    model.config = load_small("sdetr_nano").model.config
    return model


def scenes() -> Samples:
    task = small_task()
    return Samples(task, BoxSource(small_split((3, 0, 2)), task.preprocessing), "scenes", has_labels=True)


PORTS = [
    PortSpec(name="images", dtype="float32", axes=("batch", 3, "height", "width"), multiple_of=32),
    PortSpec(name="sizes", dtype="int64", axes=("batch", 2)),
]


def test_queries_in_another_order_are_the_same(detector):
    order = torch.tensor([3, 1, 6, 0, 2, 5, 4])

    def run_export(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        assert inputs[0].shape[2:] == (32, 32)  # a canvas of whole multiples
        found = detector(*inputs)
        return found.logits[:, order], found.boxes[:, order]

    found = compare(detector, run_export, scenes(), range(3), PORTS)

    assert found.largest_logit_difference == 0
    assert found.largest_box_difference == 0
    assert found.top1_agreement == 1
    assert found.scores["ap"].model == found.scores["ap"].export
    assert found.num_scored == 3


def test_a_moved_box_is_found(detector):
    def run_export(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        found = detector(*inputs)
        boxes = found.boxes.clone()
        boxes[:, 4, 1] += 0.125
        return found.logits, boxes

    found = compare(detector, run_export, scenes(), range(3), PORTS)

    assert found.largest_box_difference == pytest.approx(0.125)
    with pytest.raises(CheckpointError, match=r"boxes by 1\.2e-01 of the image"):
        check_differences(found, "float32", 1e-3)


@pytest.mark.parametrize("value", [0.1, float("nan")])
def test_too_large_a_difference_is_refused(value):
    with pytest.raises(CheckpointError, match="photos, logits differ"):
        check_differences(comparison(largest_logit_difference=value), "float32", 1e-3)


def test_rounded_precisions_are_judged_by_the_mean():
    check_differences(comparison(largest_logit_difference=0.3, mean_logit_difference=0.01), "bfloat16", 0.05)
    with pytest.raises(CheckpointError, match="on average"):
        check_differences(
            comparison(largest_logit_difference=0.3, mean_logit_difference=0.06), "bfloat16", 0.05
        )


def test_large_logits_may_differ_more_unless_the_user_says_so():
    large = comparison(largest_logit=40.0)

    assert tolerance_of(ALIKE, "float32") == pytest.approx(1e-3)
    assert tolerance_of(large, "float32") == pytest.approx(4e-3)
    assert tolerance_of(large, "float32", 1e-5) == 1e-5


def test_a_loss_above_what_is_allowed_is_refused():
    found = comparison(num_scored=200, scores={"accuracy": ScorePair(model=0.905, export=0.8925)})

    check_loss(found, "accuracy", "int8", 1.3)
    for precision in ("float32", "bfloat16", "int8"):
        with pytest.raises(CheckpointError, match=r"1\.25 points of accuracy.*--allow-accuracy-loss 1\.3"):
            check_loss(found, "accuracy", precision, 0.5)


def test_one_image_of_few_may_be_lost_except_in_int8():
    found = comparison(num_scored=50, scores={"accuracy": ScorePair(model=0.95, export=0.93)})

    check_loss(found, "accuracy", "bfloat16", 0.5)
    with pytest.raises(CheckpointError, match="loses 2"):
        check_loss(found, "accuracy", "int8", 0.5)


def test_boxes_have_a_tolerance_of_their_own_that_can_be_set():
    moved = comparison(largest_box_difference=0.2, mean_box_difference=0.02)

    with pytest.raises(CheckpointError, match=r"boxes by 2\.0e-02.*more than 1\.0e-02.*with --box-tolerance"):
        check_differences(moved, "bfloat16", 0.05)
    check_differences(moved, "bfloat16", 0.05, box_tolerance=0.03)
