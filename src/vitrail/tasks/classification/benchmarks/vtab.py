"""The 19 tasks of VTAB-1k: 800 images to learn from, 200 to choose on, and the whole test of each."""

from __future__ import annotations

from typing import NamedTuple

from vitrail.tasks.classification.benchmarks.contract import Benchmark, FineTuning, Preparation

PAPER = "Zhai et al. 2020"
SQUASHED = Preparation("squash", 1.0, "bilinear", "Zhai et al. 2020, section 3: squares, not cropped")
TUNING = FineTuning(2500, 512, (0.01,), 384, "Dosovitskiy et al. 2021, table 4")


class _Task(NamedTuple):
    title: str
    group: str
    folder: str
    num_classes: int
    num_test: int


# Zhai et al. 2020, table 2; the folders are those of the archive of lists that adapters' papers share.
TASKS = (
    _Task("Caltech101", "natural", "caltech101", 102, 6084),
    _Task("CIFAR-100", "natural", "cifar", 100, 10_000),
    _Task("DTD", "natural", "dtd", 47, 1880),
    _Task("Flowers102", "natural", "oxford_flowers102", 102, 6149),
    _Task("Pets", "natural", "oxford_iiit_pet", 37, 3669),
    _Task("SVHN", "natural", "svhn", 10, 26_032),
    _Task("Sun397", "natural", "sun397", 397, 21_750),
    _Task("Patch Camelyon", "specialised", "patch_camelyon", 2, 32_768),
    _Task("EuroSAT", "specialised", "eurosat", 10, 5400),
    _Task("Resisc45", "specialised", "resisc45", 45, 6300),
    _Task("Retinopathy", "specialised", "diabetic_retinopathy", 5, 42_670),
    _Task("Clevr/count", "structured", "clevr_count", 8, 15_000),
    _Task("Clevr/distance", "structured", "clevr_dist", 6, 15_000),
    _Task("DMLab", "structured", "dmlab", 6, 22_735),
    _Task("KITTI/distance", "structured", "kitti", 4, 711),
    _Task("dSprites/location", "structured", "dsprites_loc", 16, 73_728),
    _Task("dSprites/orientation", "structured", "dsprites_ori", 16, 73_728),
    _Task("SmallNORB/azimuth", "structured", "smallnorb_azi", 18, 12_150),
    _Task("SmallNORB/elevation", "structured", "smallnorb_ele", 9, 12_150),
)

GROUPS = ("natural", "specialised", "structured")


def _benchmark(task: _Task) -> Benchmark:
    return Benchmark(
        name=f"vtab-{task.folder.replace('_', '-')}",
        title=f"VTAB-1k {task.title}",
        paper=PAPER,
        num_classes=task.num_classes,
        counts=(800, 200, task.num_test),
        metric="accuracy",
        metric_source=PAPER,
        folders=(f"vtab-1k/{task.folder}", f"vtab/{task.folder}"),
        layout="train800.txt, val200.txt and test.txt with lines such as 'images/train/000.jpg 12', and "
        "these images",
        download="https://github.com/google-research/task_adaptation, written out as lists and images",
        hub=None,
        preparation=SQUASHED,
        fine_tuning=TUNING,
        group=task.group,
    )


BENCHMARKS = {benchmark.name: benchmark for benchmark in map(_benchmark, TASKS)}
