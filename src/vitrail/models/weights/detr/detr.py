"""DETR as its authors published it: a matrix for query, key and value, as ours; torchvision's backbone."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.models.detr import DETRConfig
from vitrail.models.weights.table import Entry, batch_norm, kernel, layer, pointwise, same
from vitrail.models.weights.timm.resnet import convolutions

BACKBONE = "backbone.0.body"
BOX_LAYERS = (0, 2, 4)  # of our head, between which the activations stand


def entries(config: DETRConfig) -> Iterator[Entry]:
    """Name every tensor of a model."""
    for ours, convolution, norm in convolutions(config.backbone):
        yield kernel(f"backbone.{ours}", f"{BACKBONE}.{convolution}")
        yield from batch_norm(
            f"backbone.{ours}.norm", f"{BACKBONE}.{norm}", counts=config.backbone_norm == "batch"
        )
    yield from pointwise("projection", "input_proj")
    yield same("queries", "query_embed.weight")
    for index in range(config.encoder_depth):
        ours, theirs = f"encoder.{index}", f"transformer.encoder.layers.{index}"
        yield from _attention(f"{ours}.attention", f"{theirs}.self_attn")
        yield from layer(f"{ours}.attention_norm", f"{theirs}.norm1")
        yield from _mlp(ours, theirs)
        yield from layer(f"{ours}.mlp_norm", f"{theirs}.norm2")
    for index in range(config.decoder_depth):
        ours, theirs = f"decoder.{index}", f"transformer.decoder.layers.{index}"
        yield from _attention(f"{ours}.self_attention", f"{theirs}.self_attn")
        yield from layer(f"{ours}.self_norm", f"{theirs}.norm1")
        yield from _attention(f"{ours}.cross_attention", f"{theirs}.multihead_attn")
        yield from layer(f"{ours}.cross_norm", f"{theirs}.norm2")
        yield from _mlp(ours, theirs)
        yield from layer(f"{ours}.mlp_norm", f"{theirs}.norm3")
    yield from layer("decoder_norm", "transformer.decoder.norm")
    yield from layer("class_head", "class_embed")
    for index, ours_index in enumerate(BOX_LAYERS):
        yield from layer(f"box_head.{ours_index}", f"bbox_embed.layers.{index}")


def uncounted(config: DETRConfig) -> Iterator[str]:
    """Name the numbers of batches, of which a frozen norm keeps none."""
    if config.backbone_norm == "frozen":
        for _, _, norm in convolutions(config.backbone):
            yield f"{BACKBONE}.{norm}.num_batches_tracked"


def _attention(ours: str, theirs: str) -> Iterator[Entry]:
    for name in ("weight", "bias"):
        yield same(f"{ours}.qkv.{name}", f"{theirs}.in_proj_{name}")
    yield from layer(f"{ours}.projection", f"{theirs}.out_proj")


def _mlp(ours: str, theirs: str) -> Iterator[Entry]:
    yield from layer(f"{ours}.mlp.expand", f"{theirs}.linear1")
    yield from layer(f"{ours}.mlp.contract", f"{theirs}.linear2")


TABLES = {"detr": entries}
IGNORED = {"detr": uncounted}
NAMES = {
    "detr_resnet50": "detr_r50",
    "detr_resnet101": "detr_r101",
    "detr_resnet50_dc5": "detr_r50_dc5",
    "detr_resnet101_dc5": "detr_r101_dc5",
}
