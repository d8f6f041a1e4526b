"""Benchmarks with published scores: ImageNet, small data sets to fine-tune on, and the tasks of VTAB-1k."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

Metric = Literal["accuracy", "mean_per_class_accuracy", "real_accuracy"]

METRIC_TEXTS: dict[Metric, str] = {
    "accuracy": "top-1 accuracy",
    "mean_per_class_accuracy": "mean accuracy of the classes",
    "real_accuracy": "share of images predicted as one of their ReaL labels",
}


class Preparation(NamedTuple):
    """Preprocessing of published results; mean and standard deviation are the model's."""

    resize: Literal["squash", "crop"]
    crop_fraction: float
    interpolation: Literal["bilinear", "bicubic"]
    source: str


class FineTuning(NamedTuple):
    """How published results were fine-tuned: SGD with momentum, cosine schedule, no weight decay."""

    steps: int
    rates: tuple[float, ...]
    """Learning rates that were tried."""
    batch_size: int = 512
    side_px: int = 384
    source: str = "Dosovitskiy et al. 2021, table 4"


VIT_PREPARATION = Preparation("squash", 1.0, "bilinear", "Dosovitskiy et al. 2021, published code")
TRANSFER_RATES = (0.001, 0.003, 0.01, 0.03)


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A data set with published scores."""

    name: str
    title: str
    """Its name in papers."""
    paper: str
    num_classes: int
    counts: tuple[int, int, int]
    """Published numbers of train, validation and test images; 0 where there is no such split."""
    metric: Metric
    metric_source: str
    """Who reports this metric."""
    beside: Metric | None = None
    """Metric of other papers, which is reported as well."""
    folders: tuple[str, ...]
    """Folders to look in, below ``VITRAIL_DATA``."""
    layout: str
    download: str
    hub: str | None = None
    """Name on the Hugging Face hub, if it is there."""
    preparation: Preparation = VIT_PREPARATION
    fine_tuning: FineTuning | None = None
    """Published fine-tuning settings, if any."""
    group: str = ""
    """VTAB only: natural, specialised or structured."""

    @property
    def scored_split(self) -> Literal["validation", "test"]:
        """The published split that papers score on; opened as the test split."""
        return "test" if self.counts[2] else "validation"

    @property
    def num_scored(self) -> int:
        """Number of images in that split."""
        return self.counts[2] or self.counts[1]


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
    fine_tuning=FineTuning(20_000, (0.003, 0.01, 0.03, 0.06)),
)
IMAGENET_REAL = replace(
    IMAGENET,
    name="imagenet-real",
    title="ImageNet-ReaL",
    paper="Beyer et al. 2020",
    metric="real_accuracy",
    metric_source="Beyer et al. 2020, section 3: images without a label are left out",
    hub=None,
    layout=f"{IMAGENET.layout}; and real.json there, or in imagenet-real/ beside it",
    download="real.json of https://github.com/google-research/reassessed-imagenet, and ImageNet",
)
CIFAR10 = Benchmark(
    name="cifar10",
    title="CIFAR-10",
    paper="Krizhevsky 2009",
    num_classes=10,
    counts=(50_000, 0, 10_000),
    metric="accuracy",
    metric_source="Dosovitskiy et al. 2021, table 2",
    folders=("cifar10", "cifar-10", "cifar-10-batches-py", "cifar-10-batches-bin"),
    layout="data_batch_1 to data_batch_5, test_batch and batches.meta; or the binary version; or "
    "train.parquet and test.parquet",
    download="https://www.cs.toronto.edu/~kriz/cifar.html",
    hub="uoft-cs/cifar10",
    fine_tuning=FineTuning(10_000, TRANSFER_RATES),
)
CIFAR100 = replace(
    CIFAR10,
    name="cifar100",
    title="CIFAR-100",
    num_classes=100,
    folders=("cifar100", "cifar-100", "cifar-100-python", "cifar-100-binary"),
    layout="train, test and meta; or the binary version; or train.parquet and test.parquet",
    hub="uoft-cs/cifar100",
)
PETS = Benchmark(
    name="oxford-pets",
    title="Oxford-IIIT Pet",
    paper="Parkhi et al. 2012",
    num_classes=37,
    counts=(3680, 0, 3669),
    metric="accuracy",
    metric_source="Dosovitskiy et al. 2021, tables 2 and 5",
    beside="mean_per_class_accuracy",
    folders=("oxford-pets", "oxford-iiit-pet", "oxford_pets"),
    layout="images/ with Abyssinian_1.jpg and so on, beside annotations/trainval.txt and test.txt",
    download="https://www.robots.ox.ac.uk/~vgg/data/pets/",
    hub="timm/oxford-iiit-pet",
    fine_tuning=FineTuning(500, TRANSFER_RATES),
)
FLOWERS = replace(
    PETS,
    name="flowers102",
    title="Oxford Flowers-102",
    paper="Nilsback and Zisserman 2008",
    num_classes=102,
    counts=(1020, 1020, 6149),
    folders=("flowers102", "flowers-102", "oxford-flowers"),
    layout="jpg/ with image_00001.jpg and so on, beside imagelabels.mat and setid.mat",
    download="https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
    hub="dpdl-benchmark/oxford_flowers102",
)
# The same data by another protocol: Kornblith et al. 2019, table 1.
KORNBLITH = tuple(
    replace(
        benchmark,
        name=f"kornblith-{benchmark.name}",
        title=f"{benchmark.title}, Kornblith's protocol",
        metric="mean_per_class_accuracy",
        metric_source="Kornblith et al. 2019, table 1",
        beside=None,
        preparation=Preparation("crop", 1.0, "bicubic", "Chen et al. 2020 (SimCLR), appendix B.8"),
        fine_tuning=None,
    )
    for benchmark in (PETS, FLOWERS)
)

GROUP = "vtab-1k"
"""Name of all VTAB tasks together, where several data sets can be scored at once."""
GROUPS = ("natural", "specialised", "structured")

# Title, group, folder, classes, test images; 800 training and 200 validation images each. Zhai et al. 2020,
# table 2; the folders are those of the archive of lists that adapters' papers share.
VTAB = (
    ("Caltech101", "natural", "caltech101", 102, 6084),
    ("CIFAR-100", "natural", "cifar", 100, 10_000),
    ("DTD", "natural", "dtd", 47, 1880),
    ("Flowers102", "natural", "oxford_flowers102", 102, 6149),
    ("Pets", "natural", "oxford_iiit_pet", 37, 3669),
    ("SVHN", "natural", "svhn", 10, 26_032),
    ("Sun397", "natural", "sun397", 397, 21_750),
    ("Patch Camelyon", "specialised", "patch_camelyon", 2, 32_768),
    ("EuroSAT", "specialised", "eurosat", 10, 5400),
    ("Resisc45", "specialised", "resisc45", 45, 6300),
    ("Retinopathy", "specialised", "diabetic_retinopathy", 5, 42_670),
    ("Clevr/count", "structured", "clevr_count", 8, 15_000),
    ("Clevr/distance", "structured", "clevr_dist", 6, 15_000),
    ("DMLab", "structured", "dmlab", 6, 22_735),
    ("KITTI/distance", "structured", "kitti", 4, 711),
    ("dSprites/location", "structured", "dsprites_loc", 16, 73_728),
    ("dSprites/orientation", "structured", "dsprites_ori", 16, 73_728),
    ("SmallNORB/azimuth", "structured", "smallnorb_azi", 18, 12_150),
    ("SmallNORB/elevation", "structured", "smallnorb_ele", 9, 12_150),
)
VTAB_PAPER = "Zhai et al. 2020"


def _vtab_task(title: str, group: str, folder: str, num_classes: int, num_test: int) -> Benchmark:
    return Benchmark(
        name=f"vtab-{folder.replace('_', '-')}",
        title=f"VTAB-1k {title}",
        paper=VTAB_PAPER,
        num_classes=num_classes,
        counts=(800, 200, num_test),
        metric="accuracy",
        metric_source=VTAB_PAPER,
        folders=(f"vtab-1k/{folder}", f"vtab/{folder}"),
        layout="train800.txt, val200.txt and test.txt with lines such as 'images/train/000.jpg 12', and "
        "these images",
        download="https://github.com/google-research/task_adaptation, written out as lists and images",
        preparation=VIT_PREPARATION._replace(source=f"{VTAB_PAPER}, section 3: squares, not cropped"),
        fine_tuning=FineTuning(2500, (0.01,)),
        group=group,
    )


BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        *(IMAGENET, IMAGENET_REAL, CIFAR10, CIFAR100, PETS, FLOWERS, *KORNBLITH),
        *(_vtab_task(*row) for row in VTAB),
    )
}


def benchmark_of(source: str) -> Benchmark | None:
    """Return the benchmark that ``NAME`` or ``NAME:FOLDER`` names; None for any other source.

    >>> benchmark_of("oxford-pets:data/pets").num_classes
    37
    >>> benchmark_of("photos/") is None
    True
    """
    return BENCHMARKS.get(source.partition(":")[0].strip().lower())
