"""ImageNet, and ImageNet with reassessed labels."""

from __future__ import annotations

from dataclasses import replace

from vitrail.tasks.classification.benchmarks.contract import Benchmark, Preparation, vit_fine_tuning

RATES = (0.003, 0.01, 0.03, 0.06)

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
    fine_tuning=vit_fine_tuning(20_000, RATES),
)

BENCHMARKS = {
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
