"""EfficientNets of timm, the authors' (``tf_``) and those trained in PyTorch.

Of the latter, timm's B5 has the small epsilon: its weights need ``norm_eps=1e-5`` with our
``efficientnet_b5_symmetric``, and its name is therefore not among the published ones here.
"""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.models.efficientnet import EfficientNetConfig
from vitrail.models.weights.table import Entry, batch_norm, kernel, layer, pointwise


def entries(config: EfficientNetConfig) -> Iterator[Entry]:
    """Name every tensor of a model; a block that does not widen counts its layers from its second one."""
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


TABLES = {"efficientnet": entries}
NAMES = {
    **{f"tf_efficientnet_{size}": f"efficientnet_{size}" for size in (*(f"b{i}" for i in range(8)), "l2")},
    **{f"efficientnet_b{i}": f"efficientnet_b{i}_symmetric" for i in range(5)},
}
