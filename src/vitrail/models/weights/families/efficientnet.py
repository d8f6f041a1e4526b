"""Key tables of EfficientNet: timm, transformers, torchvision."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.models.efficientnet import STAGES, EfficientNetConfig
from vitrail.models.weights.table import Entry, batch_norm, kernel, layer, pointwise


def _timm_efficientnet(config: EfficientNetConfig) -> Iterator[Entry]:
    """Map every tensor of a model; a block without expansion numbers its layers from its second one."""
    yield from _normed("stem.first", "conv_stem", "bn1")
    for stage, index, expansion in config.blocks():
        ours, theirs = f"stages.{stage}.{index}", f"blocks.{stage}.{index}"
        narrow, first = ("conv_pwl", 2) if expansion > 1 else ("conv_pw", 1)
        if expansion > 1:
            yield from _normed(f"{ours}.widen", f"{theirs}.conv_pw", f"{theirs}.bn1")
        yield from _normed(f"{ours}.depthwise", f"{theirs}.conv_dw", f"{theirs}.bn{first}")
        yield from pointwise(f"{ours}.squeeze.reduce", f"{theirs}.se.conv_reduce")
        yield from pointwise(f"{ours}.squeeze.expand", f"{theirs}.se.conv_expand")
        yield from _normed(f"{ours}.narrow", f"{theirs}.{narrow}", f"{theirs}.bn{first + 1}")
    yield from _normed("final", "conv_head", "bn2")
    yield from layer("head.classifier", "classifier")


def _normed(ours: str, convolution: str, norm: str) -> Iterator[Entry]:
    yield kernel(ours, convolution)
    yield from batch_norm(f"{ours}.norm", norm)


_HF_MODEL = "efficientnet"


def _hf_efficientnet(config: EfficientNetConfig) -> Iterator[Entry]:
    """Map every tensor of a model; blocks are numbered across stages."""
    yield from _normed(
        "stem.first", f"{_HF_MODEL}.embeddings.convolution", f"{_HF_MODEL}.embeddings.batchnorm"
    )
    for number, (stage, index, expansion) in enumerate(config.blocks()):
        ours, theirs = f"stages.{stage}.{index}", f"{_HF_MODEL}.encoder.blocks.{number}"
        if expansion > 1:
            widen = f"{theirs}.expansion.expand"
            yield from _normed(f"{ours}.widen", f"{widen}_conv", f"{widen}_bn")
        depthwise = f"{theirs}.depthwise_conv.depthwise"
        yield from _normed(f"{ours}.depthwise", f"{depthwise}_conv", f"{depthwise}_norm")
        yield from pointwise(f"{ours}.squeeze.reduce", f"{theirs}.squeeze_excite.reduce")
        yield from pointwise(f"{ours}.squeeze.expand", f"{theirs}.squeeze_excite.expand")
        narrow = f"{theirs}.projection.project"
        yield from _normed(f"{ours}.narrow", f"{narrow}_conv", f"{narrow}_bn")
    yield from _normed("final", f"{_HF_MODEL}.encoder.top_conv", f"{_HF_MODEL}.encoder.top_bn")
    yield from layer("head.classifier", "classifier")


def _torchvision_efficientnet(config: EfficientNetConfig) -> Iterator[Entry]:
    """Map every tensor of a model; the parts of a block are numbered, one fewer without expansion."""
    yield from _torchvision_normed("stem.first", "features.0")
    for stage, index, expansion in config.blocks():
        ours, theirs = f"stages.{stage}.{index}", f"features.{stage + 1}.{index}.block"
        first = 1 if expansion > 1 else 0
        if expansion > 1:
            yield from _torchvision_normed(f"{ours}.widen", f"{theirs}.0")
        yield from _torchvision_normed(f"{ours}.depthwise", f"{theirs}.{first}")
        yield from pointwise(f"{ours}.squeeze.reduce", f"{theirs}.{first + 1}.fc1")
        yield from pointwise(f"{ours}.squeeze.expand", f"{theirs}.{first + 1}.fc2")
        yield from _torchvision_normed(f"{ours}.narrow", f"{theirs}.{first + 2}")
    yield from _torchvision_normed("final", f"features.{len(STAGES) + 1}")
    yield from layer("head.classifier", "classifier.1")


def _torchvision_normed(ours: str, theirs: str) -> Iterator[Entry]:
    yield kernel(ours, f"{theirs}.0")
    yield from batch_norm(f"{ours}.norm", f"{theirs}.1")


TABLES = {
    "timm": {"efficientnet": _timm_efficientnet},
    "hf": {"efficientnet": _hf_efficientnet},
    "torchvision": {"efficientnet": _torchvision_efficientnet},
}
NAMES = {
    "timm": {
        **{
            f"tf_efficientnet_{size}": f"efficientnet_{size}" for size in (*(f"b{i}" for i in range(8)), "l2")
        },
        **{f"efficientnet_b{i}": f"efficientnet_b{i}_symmetric" for i in range(5)},
    },
    "hf": {f"efficientnet-b{size}": f"efficientnet_b{size}" for size in range(8)},
    "torchvision": {f"efficientnet_b{size}": f"efficientnet_b{size}_symmetric" for size in range(8)},
}
