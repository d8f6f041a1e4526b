from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from making.small_detection import (
    CLASSES,
    PREPROCESSING,
    SHARES,
    SmallDetector,
    small_split,
    small_task,
    take_steps,
)
from vitrail.core.boxes import xyxy_to_cxcywh
from vitrail.core.errors import DataError
from vitrail.models import build
from vitrail.models.contract import DetectionOutput, Scoring
from vitrail.tasks.detection.detections import UNCHOSEN_THRESHOLD
from vitrail.tasks.detection.objective import DetectionObjective
from vitrail.tasks.detection.samples import BoxSample, BoxSource
from vitrail.tasks.detection.scores import DetectionTables
from vitrail.train.evaluate import evaluate, run_evaluator
from vitrail.train.objective import Counting, Objective, Ranking, Settling, TensorBatch
from vitrail.train.processes import single_process

SCRIPT = Path(__file__).parents[2] / "making" / "small_detection.py"
SCORINGS: list[Scoring] = ["softmax", "sigmoid"]


def samples(*counts: int) -> list[BoxSample]:
    source = BoxSource(small_split(counts), PREPROCESSING)
    return [source.load(index, None) for index in range(len(counts))]


class Answers(nn.Module):
    """Answer with what is in the images of the batches that it was told of."""

    def __init__(self, split_samples: list[BoxSample], miss: int = 0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.known = {tuple(sample.image.shape): sample for sample in split_samples}
        self.miss = miss

    def forward(self, images: torch.Tensor, sizes: torch.Tensor | None, targets: None) -> DetectionOutput:
        every = [tuple(images.shape[2:])] * len(images) if sizes is None else map(tuple, sizes.tolist())
        logits, boxes = torch.full((len(images), 9, CLASSES), -9.0), torch.full((len(images), 9, 4), 0.01)
        for row, size in enumerate(every):
            sample = self.known[(3, *size)]
            for query, (label, box) in enumerate(zip(sample.labels, sample.boxes, strict=True)):
                if query >= self.miss:
                    logits[row, query, label], boxes[row, query] = 5.0 - query, box
        return DetectionOutput(logits, boxes)


def test_a_batch_holds_images_of_several_sizes_and_their_boxes() -> None:
    given = samples(3, 0, 1)

    batch = small_task().collate(given, None)

    assert isinstance(batch, TensorBatch)
    assert len(batch) == 3
    assert batch.is_padded
    assert batch.targets.counts.tolist() == [2, 0, 1]  # the last of several is a crowd
    assert [int(sample.is_crowd.sum()) for sample in batch.samples] == [1, 0, 0]
    assert [sample.index for sample in batch.samples] == [0, 1, 2]
    assert [sample.original_size for sample in batch.samples] == [sample.original_size for sample in given]
    for sample, image, (height, width) in zip(given, batch.images, batch.sizes.tolist(), strict=True):
        assert torch.equal(image[:, :height, :width], sample.image)
        assert image.long().sum() == sample.image.long().sum()  # nothing but zeros beside it
    assert torch.equal(batch.targets.boxes[0], given[0].boxes[:2])
    assert torch.equal(batch.samples[0].labels, given[0].labels)
    assert [sample.image.numel() for sample in batch.samples] == [0, 0, 0]


def test_images_of_one_size_are_not_padded() -> None:
    (sample,) = samples(2)

    batch = small_task().collate([sample, sample], None)

    assert not batch.is_padded
    assert batch.images.shape[2:] == sample.image.shape[1:]


def test_a_batch_moves_every_tensor() -> None:
    moved = small_task().collate(samples(3, 0), None).to(torch.device("meta"))

    tensors = [moved.images, moved.sizes, *moved.targets]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert {sample.boxes.device.type for sample in moved.samples} == {"cpu"}


def test_labels_that_are_no_class_are_refused() -> None:
    (sample,) = samples(1)
    wrong = replace(sample, labels=torch.tensor([CLASSES]), index=7)

    with pytest.raises(DataError, match=r"image 7 has boxes with the labels \[3\].*from 0 to 2"):
        small_task().collate([wrong], None)


def test_what_is_no_box_is_left_out() -> None:
    boxes = torch.tensor([[0.5, 0.5, 0.2, 0.3], [0.5, torch.nan, 0.2, 0.3], [0.5, 0.5, -0.2, 0.3]])
    image = torch.zeros(3, 5, 7, dtype=torch.uint8)
    is_crowd, areas = torch.zeros(3, dtype=torch.bool), torch.zeros(3)
    sample = BoxSample(image, boxes, torch.tensor([2, 1, 0]), 0, (5, 7), is_crowd, areas)

    batch = small_task().collate([sample], None)

    assert batch.targets.counts.tolist() == [1]
    assert batch.targets.labels.tolist() == [[2]]


def test_models_see_normalised_images_and_in_training_the_boxes() -> None:
    task, model = small_task(), SmallDetector()
    padded, whole = task.collate(samples(3, 1), None), task.collate(samples(2), None)

    task.loss(model, padded)
    task.evaluator().update(model.eval(), whole)

    assert model.seen[0] == (padded.sizes, padded.targets)
    assert model.seen[1] == (None, None)


@pytest.mark.parametrize("scoring", SCORINGS)
def test_loss_counts_boxes_and_reaches_every_parameter(scoring: Scoring) -> None:
    for counts, num_boxes in (((4, 0, 1), 4), ((0, 0), 0)):
        task, model = small_task(scoring), SmallDetector(scoring)

        loss = task.loss(model, task.collate(samples(*counts), None))
        loss.total.backward()

        assert loss.count.item() == num_boxes
        assert set(loss.parts) == {"class", "l1", "giou", "auxiliary"}
        gradients = [parameter.grad for parameter in model.parameters()]
        assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
        assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients)


@pytest.mark.parametrize("scoring", SCORINGS)
def test_padding_and_other_images_of_the_batch_change_no_loss(scoring: Scoring) -> None:
    task, model = small_task(scoring), SmallDetector(scoring)
    given = samples(4, 0, 2)

    together = task.loss(model, task.collate(given, None))
    alone = [task.loss(model, task.collate([sample], None)) for sample in given]

    for name in ("l1", "giou"):
        torch.testing.assert_close(sum(loss.parts[name] for loss in alone), together.parts[name])


def test_a_detector_that_finds_everything_scores_one() -> None:
    given = samples(3, 0, 4, 1)
    task = small_task()
    evaluator = task.evaluator()

    evaluator.update(Answers(given), task.collate(given, None))

    result = evaluator.result()
    assert (result["ap"], result["ap50"], result["count"]) == (pytest.approx(1), pytest.approx(1), 4)


def test_the_confidence_threshold_is_chosen_on_other_images() -> None:
    task, source = small_task(), BoxSource(small_split((3, 4, 2)), PREPROCESSING)
    model = Answers([source.load(index, None) for index in range(3)], miss=1)
    validated = task.evaluator()
    run_evaluator(validated, task, model, source, batch_size=2)

    settled = task.settled(validated)

    assert isinstance(task, Settling)
    # Of the images, the second has the most boxes: a query each, with logits of 4 and 3, the crowd left out.
    assert settled.threshold.value == pytest.approx(torch.sigmoid(torch.tensor(3.0)).item())
    assert evaluate(settled, model, source, batch_size=2).scores["threshold"] == settled.threshold.value
    assert evaluate(task, model, source, batch_size=2).scores["threshold"] == UNCHOSEN_THRESHOLD.value


def test_boxes_are_scored_in_pixels_of_the_original_images() -> None:
    split = small_split((3, 0, 4))
    source = BoxSource(split, PREPROCESSING)
    given = [source.load(index, None) for index in range(3)]
    task = small_task()
    evaluator = task.evaluator()

    evaluator.update(Answers(given, miss=1), task.collate(given, None))

    state = evaluator.state()
    wanted = np.concatenate(split.boxes).astype(float).round(2)
    np.testing.assert_array_equal(state["boxes_xyxy"].numpy(), wanted)
    assert state["num_true"].tolist() == [3, 0, 4]
    _, tables = evaluator.report()
    assert [entry["missed"] for entry in tables["images"]] == [1, 0, 1]
    assert tables["worst"][0]["true"][0]["outcome"] == "missed"
    np.testing.assert_allclose(tables["worst"][0]["true"][0]["box"], split.boxes[0][0], atol=1e-5)


def test_boxes_that_are_found_end_at_the_edge_of_the_image() -> None:
    (sample,) = samples(1)
    beyond = xyxy_to_cxcywh(torch.tensor([[-0.2, 0.1, 1.3, 0.9]]))
    given = replace(sample, boxes=beyond, original_size=(50, 70))
    task = small_task()
    evaluator = task.evaluator()

    evaluator.update(Answers([given]), task.collate([given], None))

    state = evaluator.state()
    assert state["found_xyxy"][0].tolist() == pytest.approx([0, 5, 70, 45])
    assert state["boxes_xyxy"][0].tolist() == pytest.approx([-14, 5, 91, 45])  # as annotated


@pytest.mark.parametrize("scoring", SCORINGS)
def test_batches_and_processes_change_no_score(scoring: Scoring) -> None:
    given = samples(3, 0, 4, 1, 2)
    task, model = small_task(scoring), SmallDetector(scoring).eval()
    whole, first, second, idle = (task.evaluator() for _ in range(4))
    whole.update(model, task.collate(given, None))
    for evaluator, places in ((first, [4]), (first, [0, 2]), (second, [3, 1]), (second, [2])):
        evaluator.update(model, task.collate([given[place] for place in places], None))

    idle.absorb(second.state())
    idle.absorb(task.evaluator().state())
    idle.absorb(first.state())

    assert idle.result() == pytest.approx(whole.result(), abs=1e-6)
    assert idle.state().keys() == whole.state().keys()
    for name, value in whole.state().items():
        torch.testing.assert_close(idle.state()[name], value, rtol=1e-4, atol=0.011)  # a hundredth of a pixel
    assert idle.report()[0] == pytest.approx(whole.report()[0], abs=1e-5)


def test_no_image_and_images_without_any_box_have_a_result() -> None:
    task = small_task()
    evaluator = task.evaluator()

    assert evaluator.result() == {"ap": 0.0, "ap50": 0.0, "count": 0}
    evaluator.update(SmallDetector().eval(), task.collate(samples(0, 0), None))

    assert evaluator.result() == {"ap": 0.0, "ap50": 0.0, "count": 2}
    assert evaluator.report()[0]["ap"] == 0


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_reports_of_evaluations_hold_tables_as_json(precision: str) -> None:
    source = BoxSource(small_split((3, 0, 4)), PREPROCESSING)

    report = evaluate(small_task(), SmallDetector(), source, batch_size=2, precision=precision)

    assert {"ap", "ap50", "f1", "threshold"} <= set(report.scores)
    tables = DetectionTables.from_tree(json.loads(json.dumps(report.tables)))
    assert len(tables.images) == 3
    assert len(tables.per_class) == CLASSES


def test_a_small_detector_learns_one_image() -> None:
    """Overfit one image: the boxes that it should find become those that it finds."""
    task, model = small_task(), SmallDetector()
    batch = task.collate(samples(3), None)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(60):
        optimiser.zero_grad()
        loss = task.loss(model, batch)
        loss.total.backward()
        optimiser.step()
    evaluator = task.evaluator()

    evaluator.update(model.eval(), batch)

    assert evaluator.result()["ap50"] == pytest.approx(1)
    found = evaluator.state()["found_xyxy"][:2]
    wanted = PREPROCESSING.to_image(batch.targets.boxes[0], batch.samples[0].original_size)
    assert (found[:, None] - wanted).abs().amax(-1).amin(0).max() < 3


def test_the_task_is_what_the_loop_knows() -> None:
    task = small_task()

    assert isinstance(task, Objective)
    assert isinstance(task, Ranking)
    assert task.best_by[0] in task.evaluator().result()
    assert isinstance(task, Counting)
    assert task.unit == "boxes"
    with pytest.raises(TypeError):
        DetectionObjective(3, PREPROCESSING)  # type: ignore[call-arg]  # softmax or sigmoid must be said


def test_two_processes_train_where_one_has_no_box_or_none_has(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, str(SCRIPT), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )

    assert done.returncode == 0, done.stderr
    assert np.isfinite(np.load(tmp_path / "softmax.npy")).all()
    alone = take_steps(single_process(), "sigmoid", SHARES).model
    flat = torch.cat([parameter.flatten() for parameter in alone.parameters()])
    # The sums of the loss are those of one process; Adam divides small differences by small gradients.
    np.testing.assert_allclose(np.load(tmp_path / "sigmoid.npy"), flat.detach().numpy(), atol=2e-5)


def test_two_threads_repeat_a_step_bit_by_bit() -> None:
    torch.set_num_threads(2)
    try:
        task = small_task()
        changes = {"num_classes": CLASSES, "width": 32, "num_queries": 20, "num_proposals": 50}
        model = build("sdetr_nano", **changes).train()
        batch = task.collate(samples(3, 0, 6, 2), None)
        batch = replace(batch, images=batch.images.repeat(1, 1, 6, 6), sizes=batch.sizes * 6)
        steps = []
        for _ in range(3):
            torch.manual_seed(5)  # of the boxes that are spoiled
            model.zero_grad()
            loss = task.loss(model, batch)
            loss.total.backward()
            steps.append([loss.total.detach(), *(each.grad for each in model.parameters())])
    finally:
        torch.set_num_threads(1)

    for repeated in steps[1:]:
        assert all(torch.equal(first, second) for first, second in zip(steps[0], repeated, strict=True))
