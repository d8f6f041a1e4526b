"""Small data sets that pre-trained models are fine-tuned on: CIFAR, Oxford Pets and Oxford Flowers."""

from __future__ import annotations

from vitrail.tasks.classification.benchmarks.contract import VIT_PREPARATION, Benchmark, vit_fine_tuning

RATES = (0.001, 0.003, 0.01, 0.03)
TOP_1 = "Dosovitskiy et al. 2021, table 2"
MEAN = "Kornblith et al. 2019, table 1"

_ALL = (
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
        fine_tuning=vit_fine_tuning(10_000, RATES),
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
        fine_tuning=vit_fine_tuning(10_000, RATES),
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
        fine_tuning=vit_fine_tuning(500, RATES),
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
        fine_tuning=vit_fine_tuning(500, RATES),
    ),
)

BENCHMARKS = {benchmark.name: benchmark for benchmark in _ALL}
