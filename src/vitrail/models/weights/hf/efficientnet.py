"""EfficientNets of transformers, whose fixed paddings are those of ``same`` at the native size."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.models.efficientnet import EfficientNetConfig
from vitrail.models.weights.table import Entry, batch_norm, kernel, layer, pointwise

MODEL = "efficientnet"


def entries(config: EfficientNetConfig) -> Iterator[Entry]:
    """Name every tensor of a model; the blocks of all stages are counted through."""
    yield from _normed("stem.first", f"{MODEL}.embeddings.convolution", f"{MODEL}.embeddings.batchnorm")
    for number, (stage, index, expansion) in enumerate(config.blocks()):
        ours, theirs = f"stages.{stage}.{index}", f"{MODEL}.encoder.blocks.{number}"
        if expansion > 1:
            widen = f"{theirs}.expansion.expand"
            yield from _normed(f"{ours}.widen", f"{widen}_conv", f"{widen}_bn")
        depthwise = f"{theirs}.depthwise_conv.depthwise"
        yield from _normed(f"{ours}.depthwise", f"{depthwise}_conv", f"{depthwise}_norm")
        yield from pointwise(f"{ours}.squeeze.reduce", f"{theirs}.squeeze_excite.reduce")
        yield from pointwise(f"{ours}.squeeze.expand", f"{theirs}.squeeze_excite.expand")
        narrow = f"{theirs}.projection.project"
        yield from _normed(f"{ours}.narrow", f"{narrow}_conv", f"{narrow}_bn")
    yield from _normed("final", f"{MODEL}.encoder.top_conv", f"{MODEL}.encoder.top_bn")
    yield from layer("head.classifier", "classifier")


def _normed(ours: str, convolution: str, norm: str) -> Iterator[Entry]:
    yield kernel(ours, convolution)
    yield from batch_norm(f"{ours}.norm", norm)


TABLES = {"efficientnet": entries}
NAMES = {f"efficientnet-b{size}": f"efficientnet_b{size}" for size in range(8)}
