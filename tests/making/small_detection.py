"""A tiny detector and tiny images with boxes, and a script that trains with them on two processes.

The script trains under torchrun: ``torchrun --nproc-per-node 2 small_detection.py FOLDER``. One process sees
images with boxes, the other one images without any.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.box_preprocessing import BoxPreprocessing
from vitrail.models.contract import AuxiliaryOutput, BoxTargets, DetectionOutput, Scoring
from vitrail.tasks.detection.dataset import BoxSplit
from vitrail.tasks.detection.objective import DetectionObjective
from vitrail.tasks.detection.samples import BoxSource
from vitrail.tasks.detection.settings import BoxDataSettings, DetectionExperiment, DetectionSettings
from vitrail.train.processes import Processes, join_processes
from vitrail.train.settings import OptimSettings, TrainSettings
from vitrail.train.step import TrainStep

CLASSES = 3
PREPROCESSING = BoxPreprocessing(image_size=(20, 28), resize="fit")


class SmallDetector(nn.Module):
    """Answer with a box for each of a few queries, after one look at a coarse image."""

    def __init__(self, scoring: Scoring = "sigmoid", num_queries: int = 5) -> None:
        super().__init__()
        torch.manual_seed(4)
        width = CLASSES + (scoring == "softmax") + 4
        self.num_queries = num_queries
        self.inner = nn.Linear(3 * 4 * 4, num_queries * width)
        self.outer = nn.Linear(3 * 4 * 4, num_queries * width)
        self.seen: list[tuple[Tensor | None, BoxTargets | None]] = []

    def forward(
        self, images: Tensor, sizes: Tensor | None = None, targets: BoxTargets | None = None
    ) -> DetectionOutput:
        self.seen.append((sizes, targets))
        every = [tuple(images.shape[2:])] * len(images) if sizes is None else sizes.tolist()
        coarse = torch.cat(
            [
                nn.functional.adaptive_avg_pool2d(image[:, :height, :width], 4).flatten()[None]
                for image, (height, width) in zip(images, every, strict=True)
            ]
        )
        inner, outer = (
            layer(coarse).unflatten(1, (self.num_queries, -1)) for layer in (self.inner, self.outer)
        )
        hidden = AuxiliaryOutput(inner[..., 4:], inner[..., :4].sigmoid(), num_matches=2)
        auxiliary = (hidden,) if self.training else ()
        return DetectionOutput(outer[..., 4:], outer[..., :4].sigmoid(), auxiliary)


def small_split(counts: tuple[int, ...], seed: int = 0) -> BoxSplit:
    """Return images of several sizes with so many boxes each; of several, the last is a crowd."""
    random = np.random.default_rng(seed)
    images, boxes, labels, is_crowd = [], [], [], []
    for count in counts:
        height, width = random.integers(15, 60, size=2)
        images.append(random.integers(0, 256, (height, width, 3), dtype=np.uint8))
        first = random.uniform(0, 0.6, (count, 2))
        corners = np.concatenate((first, first + random.uniform(0.1, 0.4, (count, 2))), axis=1)
        boxes.append(np.round(corners * [width, height, width, height], 2))
        labels.append(random.integers(0, CLASSES, count))
        is_crowd.append(np.arange(count) == max(count - 1, 1))
    names = [f"image-{number}" for number in range(len(counts))]
    return BoxSplit(images, boxes, labels, names, is_crowd=is_crowd)


def small_task(scoring: Scoring = "sigmoid") -> DetectionObjective:
    """Return the task of the small detector."""
    return DetectionObjective(CLASSES, PREPROCESSING, DetectionSettings(), scoring=scoring)


def take_steps(processes: Processes, scoring: Scoring, shares: list[list[list[int]]]) -> TrainStep:
    """Take one step for each entry of ``shares``, which says which images each process sees."""
    experiment = DetectionExperiment(
        data=BoxDataSettings(source="small", image_size=PREPROCESSING.image_size),
        model={"name": "sdetr_nano"},
        optim=OptimSettings(learning_rate=0.01, ema_fraction=0),
        train=TrainSettings(steps=len(shares), batch_size=2),
    )
    task, source = small_task(scoring), BoxSource(small_split((4, 0, 0, 6)), PREPROCESSING)
    train_step = TrainStep(task, SmallDetector(scoring), experiment, processes)
    for step, share in enumerate(shares):
        own = (
            share[processes.rank] if processes.world_size > 1 else [index for part in share for index in part]
        )
        generators = [torch.Generator().manual_seed(index) for index in own]
        samples = [source.load(index, generator) for index, generator in zip(own, generators, strict=True)]
        train_step([task.collate(samples, None)], step, experiment.train)
    return train_step


SHARES = [[[0], [1]], [[2], [1]], [[1, 2], [3]]]
"""Steps in which one process has no box, none has any, and the other one has none."""


def main(root: Path) -> None:
    """Train on both processes, and keep the weights of the first."""
    with join_processes("cpu") as processes:
        for scoring in ("softmax", "sigmoid"):
            train_step = take_steps(processes, scoring, SHARES)  # type: ignore[arg-type]
            if processes.is_first:
                flat = torch.cat([parameter.flatten() for parameter in train_step.model.parameters()])
                np.save(root / f"{scoring}.npy", flat.detach().numpy())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
