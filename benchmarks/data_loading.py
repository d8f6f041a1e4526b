"""How many images a second reach the model: decode, crop, augment and join, against what a model consumes.

    python benchmarks/data_loading.py --data FOLDER [--image-size 224] [--batch-size 64] [--workers 0 1 2]

Each row reads batches with ``training_batches`` as a training run does (random crops, flips, colour changes,
erasing, mixup and CutMix), with 0, 1 and 2 worker processes, from files and from the cache of decoded pixels.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import PIL
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.augment import augment, mix
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.settings import AugmentSettings
from vitrail.data.source import ImageSource
from vitrail.data.stream import training_batches
from vitrail.tasks.classification.opening import open_dataset
from vitrail.train.machine import keep_freed_memory

AUGMENT = AugmentSettings(
    min_crop_area=0.35, flip=True, colour=0.3, erase=0.25, mixup=0.2, cutmix=1.0
)  # what a training run of photographs uses


class JoinBatch:
    """Join samples as the classification task does: normalise, vary, mix."""

    def __init__(self, preprocessing: Preprocessing, augment: AugmentSettings, num_classes: int) -> None:
        self.preprocessing, self.augment, self.num_classes = preprocessing, augment, num_classes

    def collate(self, samples: Sequence[Any], generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Return normalised images and soft targets."""
        images = self.preprocessing.normalise(torch.stack([sample.image for sample in samples]))
        labels = torch.tensor([sample.label for sample in samples])
        targets = F.one_hot(labels, self.num_classes).float()
        if generator is None:
            return images, targets
        return mix(augment(images, self.augment, generator), targets, self.augment, generator)


def measure(
    source: ImageSource, task: JoinBatch, *, batch_size: int, num_workers: int, seconds: float
) -> tuple[float, float]:
    """Return images per second of the clock, and milliseconds of this process's core per image.

    The first batches of every worker are left out.
    """
    batches = training_batches(
        source, task, batch_size=batch_size, seed=0, start_step=0, num_steps=1 << 30, num_workers=num_workers
    )
    for _ in range(2 * max(num_workers, 1)):
        next(batches)
    num_images, start, core_start = 0, time.perf_counter(), time.process_time()
    while (elapsed := time.perf_counter() - start) < seconds:
        next(batches)
        num_images += batch_size
    return num_images / elapsed, 1000 * (time.process_time() - core_start) / num_images


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="a folder of class folders, or any other data set")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()

    torch.set_num_threads(1)  # in this process as in a worker
    keep_freed_memory()  # as a training run does
    dataset = open_dataset(arguments.data)
    preprocessing = Preprocessing(image_size=(arguments.image_size, arguments.image_size))
    print(f"data {dataset.source}: {len(dataset.train)} training images")
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, Pillow {PIL.__version__}, ", end=""
    )
    print(f"numpy {np.__version__}, {torch.get_num_threads()} torch thread per process")
    print(f"{arguments.repeats} x {arguments.seconds:g} s, batch {arguments.batch_size}\n")
    print("| pixels from | augmentation | workers | images/s | spread | core ms/image |")
    print("|---|---|---|---|---|---|")
    for cache in (False, True):
        for settings, called in ((AugmentSettings(), "none"), (AUGMENT, "crop, flip, colour, erase, mix")):
            source = ImageSource(dataset.train, preprocessing, settings, cache=cache)
            source.prepare()
            task = JoinBatch(preprocessing, settings, len(dataset.class_names))
            for num_workers in arguments.workers:
                measured = [
                    measure(
                        source,
                        task,
                        batch_size=arguments.batch_size,
                        num_workers=num_workers,
                        seconds=arguments.seconds,
                    )
                    for _ in range(arguments.repeats)
                ]
                rates = [rate for rate, _ in measured]
                core = f"{min(cost for _, cost in measured):.2f}" if num_workers == 0 else ""
                place = "cache" if source.is_cached else "files"
                print(
                    f"| {place} | {called} | {num_workers} | {statistics.median(rates):,.0f} "
                    f"| {min(rates):,.0f} to {max(rates):,.0f} | {core} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
