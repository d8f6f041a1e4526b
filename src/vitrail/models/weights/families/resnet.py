"""Key tables of ResNet and BiT: timm, transformers, torchvision."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.models.bit import BiTConfig
from vitrail.models.resnet import ResNetConfig
from vitrail.models.weights.table import Entry, batch_norm, kernel, layer, pointwise


def _timm_resnet(config: ResNetConfig) -> Iterator[Entry]:
    for ours, convolution, norm in timm_convolutions(config):
        yield kernel(ours, convolution)
        yield from batch_norm(f"{ours}.norm", norm, counts=config.norm == "batch")
    yield from layer("head", "fc")


def _timm_uncounted(config: ResNetConfig) -> Iterator[str]:
    """Yield the batch counts, which frozen batch norms do not keep."""
    if config.norm == "frozen":
        for _, _, norm in timm_convolutions(config):
            yield f"{norm}.num_batches_tracked"


def timm_convolutions(config: ResNetConfig) -> Iterator[tuple[str, str, str]]:
    """Map the layers outside the head to their convolutions and norms in timm."""
    yield "stem.first", "conv1", "bn1"
    for stage, depth in enumerate(config.depths):
        for index in range(depth):
            ours, theirs = f"stages.{stage}.{index}", f"layer{stage + 1}.{index}"
            for part in range(config.num_convolutions):
                yield f"{ours}.branch.{part}", f"{theirs}.conv{part + 1}", f"{theirs}.bn{part + 1}"
            if config.has_projection(stage, index):
                yield f"{ours}.shortcut", f"{theirs}.downsample.0", f"{theirs}.downsample.1"


def _hf_resnet(config: ResNetConfig) -> Iterator[Entry]:
    for ours, theirs in hf_convolutions(config):
        yield kernel(ours, f"{theirs}.convolution")
        yield from batch_norm(f"{ours}.norm", f"{theirs}.normalization", counts=config.norm == "batch")
    yield from layer("head", "classifier.1")


def _hf_uncounted(config: ResNetConfig) -> Iterator[str]:
    """Yield the batch counts, which frozen batch norms do not keep."""
    if config.norm == "frozen":
        for _, theirs in hf_convolutions(config):
            yield f"{theirs}.normalization.num_batches_tracked"


def hf_convolutions(config: ResNetConfig) -> Iterator[tuple[str, str]]:
    """Map the layers outside the head to transformers' names."""
    yield "stem.first", "resnet.embedder.embedder"
    for stage, depth in enumerate(config.depths):
        for index in range(depth):
            ours, theirs = f"stages.{stage}.{index}", f"resnet.encoder.stages.{stage}.layers.{index}"
            for part in range(config.num_convolutions):
                yield f"{ours}.branch.{part}", f"{theirs}.layer.{part}"
            if config.has_projection(stage, index):
                yield f"{ours}.shortcut", f"{theirs}.shortcut"


def _timm_bit(config: BiTConfig) -> Iterator[Entry]:
    yield kernel("stem.first", "stem.conv")
    for stage, depth in enumerate(config.depths):
        for index in range(depth):
            yield from _bit_block(
                f"stages.{stage}.{index}", f"stages.{stage}.blocks.{index}", projects=index == 0
            )
    yield from layer("final.norm", "norm")
    yield from pointwise("head", "head.fc")


def _bit_block(ours: str, theirs: str, *, projects: bool) -> Iterator[Entry]:
    """Map the tensors of a block, the same in transformers."""
    yield from layer(f"{ours}.activation.norm", f"{theirs}.norm1")
    yield kernel(f"{ours}.branch.0", f"{theirs}.conv1")
    yield from layer(f"{ours}.branch.1.norm", f"{theirs}.norm2")
    yield kernel(f"{ours}.branch.2", f"{theirs}.conv2")
    yield from layer(f"{ours}.branch.3.norm", f"{theirs}.norm3")
    yield kernel(f"{ours}.branch.4", f"{theirs}.conv3")
    if projects:
        yield kernel(f"{ours}.shortcut", f"{theirs}.downsample.conv")


# transformers has the narrow ones only: its last norm has no width factor.
def _hf_bit(config: BiTConfig) -> Iterator[Entry]:
    yield kernel("stem.first", "bit.embedder.convolution")
    for stage, depth in enumerate(config.depths):
        for index in range(depth):
            yield from _bit_block(
                f"stages.{stage}.{index}",
                f"bit.encoder.stages.{stage}.layers.{index}",
                projects=index == 0,
            )
    yield from layer("final.norm", "bit.norm")
    yield from layer("head", "classifier.1")


TABLES = {
    "timm": {"resnet": _timm_resnet, "bit": _timm_bit},
    "hf": {"resnet": _hf_resnet, "bit": _hf_bit},
    "torchvision": {"resnet": _timm_resnet},  # has timm's names, as the original DETR has
}
IGNORED = {
    "timm": {"resnet": _timm_uncounted},
    "torchvision": {"resnet": _timm_uncounted},
    "hf": {"resnet": _hf_uncounted},
}
SIZES = (18, 34, 50, 101, 152)
NAMES = {
    "torchvision": {f"resnet{depth}": f"resnet{depth}" for depth in SIZES},
    "timm": {
        **{f"resnet{depth}": f"resnet{depth}" for depth in SIZES},
        **{
            f"resnetv2_{size}_bit": f"bit_r{size}"
            for size in ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")
        },
    },
    "hf": {
        **{f"resnet-{depth}": f"resnet{depth}" for depth in SIZES},
        "bit-50": "bit_r50x1",
        "bit-101": "bit_r101x1",
    },
}
