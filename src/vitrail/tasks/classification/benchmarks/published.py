"""ImageNet, small data sets for fine-tuning, and the 19 tasks of VTAB-1k."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from vitrail.tasks.classification.benchmarks import (
    VIT_PREPARATION,
    Benchmark,
    FineTuning,
    Preparation,
    vit_fine_tuning,
)

IMAGENET_RATES = (0.003, 0.01, 0.03, 0.06)

IMAGENET = Benchmark(
    name="imagenet",
    title="ImageNet (ILSVRC 2012)",
    paper="Russakovsky et al. 2015",
    num_classes=1000,
    counts=(1_281_167, 50_000, 0),
    metric="accuracy",
    metric_source="on the validation images, as all papers do",
    folders=("imagenet", "imagenet-1k", "ILSVRC2012"),
    layout="val/ with ILSVRC2012_val_00000001.JPEG and so on, flat beside LOC_val_solution.csv (or "
    "imagenet_2012_validation_synset_labels.txt, or the devkit), or in folders by wnid; and train/ with "
    "folders by wnid, which vitrail evaluate does not need",
    download="https://www.image-net.org (an account is needed)",
    hub="ILSVRC/imagenet-1k",
    preparation=Preparation("crop", 0.875, "bicubic", "Caron et al. 2021, published code: 224 of 256 pixels"),
    fine_tuning=vit_fine_tuning(20_000, IMAGENET_RATES),
)

_OF_IMAGENET = {
    "imagenet": IMAGENET,
    "imagenet-real": replace(
        IMAGENET,
        name="imagenet-real",
        title="ImageNet-ReaL",
        paper="Beyer et al. 2020",
        metric="real_accuracy",
        metric_source="Beyer et al. 2020, section 3: images without a label are left out",
        hub=None,
        layout=f"{IMAGENET.layout}; and real.json there, or in imagenet-real/ beside it",
        download="real.json of https://github.com/google-research/reassessed-imagenet, and ImageNet",
    ),
}


TRANSFER_RATES = (0.001, 0.003, 0.01, 0.03)
TOP_1 = "Dosovitskiy et al. 2021, table 2"
MEAN = "Kornblith et al. 2019, table 1"

_SMALL = (
    Benchmark(
        name="cifar10",
        title="CIFAR-10",
        paper="Krizhevsky 2009",
        num_classes=10,
        counts=(50_000, 0, 10_000),
        metric="accuracy",
        metric_source=TOP_1,
        folders=("cifar10", "cifar-10", "cifar-10-batches-py", "cifar-10-batches-bin"),
        layout="data_batch_1 to data_batch_5, test_batch and batches.meta; or the binary version; or "
        "train.parquet and test.parquet",
        download="https://www.cs.toronto.edu/~kriz/cifar.html",
        hub="uoft-cs/cifar10",
        preparation=VIT_PREPARATION,
        fine_tuning=vit_fine_tuning(10_000, TRANSFER_RATES),
    ),
    Benchmark(
        name="cifar100",
        title="CIFAR-100",
        paper="Krizhevsky 2009",
        num_classes=100,
        counts=(50_000, 0, 10_000),
        metric="accuracy",
        metric_source=TOP_1,
        folders=("cifar100", "cifar-100", "cifar-100-python", "cifar-100-binary"),
        layout="train, test and meta; or the binary version; or train.parquet and test.parquet",
        download="https://www.cs.toronto.edu/~kriz/cifar.html",
        hub="uoft-cs/cifar100",
        preparation=VIT_PREPARATION,
        fine_tuning=vit_fine_tuning(10_000, TRANSFER_RATES),
    ),
    Benchmark(
        name="oxford-pets",
        title="Oxford-IIIT Pet",
        paper="Parkhi et al. 2012",
        num_classes=37,
        counts=(3680, 0, 3669),
        metric="mean_per_class_accuracy",
        metric_source=MEAN,
        folders=("oxford-pets", "oxford-iiit-pet", "oxford_pets"),
        layout="images/ with Abyssinian_1.jpg and so on, beside annotations/trainval.txt and test.txt",
        download="https://www.robots.ox.ac.uk/~vgg/data/pets/",
        hub="timm/oxford-iiit-pet",
        preparation=VIT_PREPARATION,
        fine_tuning=vit_fine_tuning(500, TRANSFER_RATES),
    ),
    Benchmark(
        name="flowers102",
        title="Oxford Flowers-102",
        paper="Nilsback and Zisserman 2008",
        num_classes=102,
        counts=(1020, 1020, 6149),
        metric="mean_per_class_accuracy",
        metric_source=MEAN,
        folders=("flowers102", "flowers-102", "oxford-flowers"),
        layout="jpg/ with image_00001.jpg and so on, beside imagelabels.mat and setid.mat",
        download="https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
        hub="dpdl-benchmark/oxford_flowers102",
        preparation=VIT_PREPARATION,
        fine_tuning=vit_fine_tuning(500, TRANSFER_RATES),
    ),
)


VTAB_PAPER = "Zhai et al. 2020"
SQUASHED = Preparation("squash", 1.0, "bilinear", "Zhai et al. 2020, section 3: squares, not cropped")
TUNING = FineTuning(2500, 512, (0.01,), 384, "Dosovitskiy et al. 2021, table 4")


class _Task(NamedTuple):
    title: str
    group: str
    folder: str
    num_classes: int
    num_test: int


# 800 training and 200 validation images each. Zhai et al. 2020, table 2; the folders are those of the archive
# of lists that adapters' papers share.
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
        paper=VTAB_PAPER,
        num_classes=task.num_classes,
        counts=(800, 200, task.num_test),
        metric="accuracy",
        metric_source=VTAB_PAPER,
        folders=(f"vtab-1k/{task.folder}", f"vtab/{task.folder}"),
        layout="train800.txt, val200.txt and test.txt with lines such as 'images/train/000.jpg 12', and "
        "these images",
        download="https://github.com/google-research/task_adaptation, written out as lists and images",
        hub=None,
        preparation=SQUASHED,
        fine_tuning=TUNING,
        group=task.group,
    )


BENCHMARKS = {
    benchmark.name: benchmark for benchmark in (*_OF_IMAGENET.values(), *_SMALL, *map(_benchmark, TASKS))
}
