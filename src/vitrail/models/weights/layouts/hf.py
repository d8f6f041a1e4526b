"""Key tables of the models of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from vitrail.core.errors import ConfigError
from vitrail.models.bert import BertConfig
from vitrail.models.bit import BiTConfig
from vitrail.models.clip import CLIPConfig
from vitrail.models.detr import DETRConfig
from vitrail.models.efficientnet import EfficientNetConfig
from vitrail.models.pvt import PVTConfig
from vitrail.models.pvtv2 import PVTv2Config
from vitrail.models.resnet import ResNetConfig
from vitrail.models.swin import SwinConfig
from vitrail.models.swinv2 import SwinV2Config
from vitrail.models.transformer import TransformerConfig
from vitrail.models.vit import ViTConfig
from vitrail.models.weights.layouts.timm import bit_blocks, merging, resnet_backbone, scaled_cosine
from vitrail.models.weights.table import (
    Entry,
    Source,
    Table,
    batched,
    blocks,
    joined,
    kernel,
    layer,
    layers,
    normed,
    pointwise,
    rows,
    same,
)

BLOCK = "stages.{}.blocks.{}"
QKV = ("query", "key", "value")
PROJECTIONS = ("q_proj", "k_proj", "v_proj")
SELF_QKV, CROSS_QKV = ([f"{part}.{name}" for name in PROJECTIONS] for part in ("self_attn", "encoder_attn"))
MLP = {"mlp.expand": "mlp.fc1", "mlp.contract": "mlp.fc2"}
VIT_NORMS = {"mixer_norm": "layernorm_before", "mlp_norm": "layernorm_after"}


def _vit(config: ViTConfig) -> Iterator[Entry]:
    """Map every tensor of a plain model, or of a distilled ``DeiTForImageClassificationWithTeacher``."""
    model = "deit" if config.distilled else "vit"
    embeddings = f"{model}.embeddings"
    prefix = [f"{embeddings}.cls_token", f"{embeddings}.distillation_token"][: config.num_prefix]
    yield from layer("stem", f"{embeddings}.patch_embeddings.projection")
    yield rows("prefix", prefix, to_theirs=(1, 1, config.width))
    yield batched("positions.table", f"{embeddings}.position_embeddings")
    for ours, theirs in blocks(config.depth, "blocks.{}", model + ".layers.{}"):
        yield from layers(ours, theirs, {**VIT_NORMS, **MLP, "mixer.projection": "attention.o_proj"})
        parts = [f"{theirs}.attention.{part}" for part in PROJECTIONS]
        yield from layer(f"{ours}.mixer.qkv", parts, bias=config.qkv_bias)
    yield from layer("norm", f"{model}.layernorm")
    heads = {"head.label": "cls_classifier", "head.teacher": "distillation_classifier"}
    yield from layers("", "", heads if config.distilled else {"head": "classifier"})


def _swin(config: SwinConfig) -> Iterator[Entry]:
    yield from _swin_frame(config, "swin", {**MLP, "mixer.projection": "attention.o_proj"})
    for ours, theirs in blocks(config.depths, BLOCK, "swin.encoder.layers.{}.blocks.{}"):
        mixer, attention = f"{ours}.mixer", f"{theirs}.attention"
        parts = [f"{attention}.{part}" for part in PROJECTIONS]
        yield from layer(f"{mixer}.qkv", parts, bias=config.qkv_bias)
        biases = f"{attention}.relative_position_bias.relative_position_bias_table"
        yield same(f"{mixer}.relative_bias.table", biases)


def _swin_frame(config: SwinConfig, model: str, names: Mapping[str, str]) -> Iterator[Entry]:
    """Map the tensors that Swin and Swin V2 share; ``names`` are further layers of a block."""
    stem = {"stem.0": "patch_embeddings.projection", "stem.1.norm": "norm"}
    yield from layers("", f"{model}.embeddings", stem)
    for stage in range(1, len(config.depths)):
        yield from merging(f"stages.{stage}.downsample", f"{model}.encoder.layers.{stage - 1}.downsample")
    for ours, theirs in blocks(config.depths, BLOCK, model + ".encoder.layers.{}.blocks.{}"):
        yield from layers(ours, theirs, {**VIT_NORMS, **names})
    yield from layers("", "", {"final.norm": f"{model}.layernorm", "head": "classifier"})


def _swinv2(config: SwinV2Config) -> Iterator[Entry]:
    names = {
        "mixer.projection": "attention.output.dense",
        "mlp.expand": "intermediate.dense",
        "mlp.contract": "output.dense",
    }
    yield from _swin_frame(config, "swinv2", names)
    for ours, theirs in blocks(config.depths, BLOCK, "swinv2.encoder.layers.{}.blocks.{}"):
        mixer, attention = f"{ours}.mixer", f"{theirs}.attention.self"
        yield joined(f"{mixer}.qkv.weight", [f"{attention}.{part}.weight" for part in QKV])
        if config.qkv_bias:
            yield same(f"{mixer}.query_bias", f"{attention}.query.bias")
            yield same(f"{mixer}.value_bias", f"{attention}.value.bias")
        distances = f"{attention}.continuous_position_bias_mlp"
        yield from scaled_cosine(mixer, f"{attention}.logit_scale", distances)


PVT_BLOCK = {
    "mixer_norm": "layer_norm_1",
    "mlp_norm": "layer_norm_2",
    "mlp.expand": "mlp.dense1",
    "mlp.contract": "mlp.dense2",
}


def _pvt(config: PVTConfig) -> Iterator[Entry]:
    for stage, ratio in enumerate(config.reductions):
        ours, theirs = f"stages.{stage}", f"pvt.encoder.patch_embeddings.{stage}"
        yield from layer(f"{ours}.patches.convolution", f"{theirs}.projection")
        yield from layer(f"{ours}.patches.norm.norm", f"{theirs}.layer_norm")
        yield batched(f"{ours}.positions.table", f"{theirs}.position_embeddings")
        if stage == len(config.depths) - 1:
            yield batched(f"{ours}.prefix", f"{theirs}.cls_token")
        names = f"{ours}.blocks.{{}}", f"pvt.encoder.block.{stage}.{{}}"
        for block, published in blocks(config.depths[stage], *names):
            yield from layers(block, published, {**PVT_BLOCK, "mixer.projection": "attention.output.dense"})
            reduction = None if ratio == 1 else "sequence_reduction"
            yield from _reduced_attention(f"{block}.mixer", f"{published}.attention.self", reduction)
    yield from layers("", "", {"norm": "pvt.encoder.layer_norm", "head": "classifier"})


def _reduced_attention(ours: str, theirs: str, reduction: str | None) -> Iterator[Entry]:
    """Map queries, keys and values, and the convolution of that name, which reduces the keys."""
    if reduction is None:
        yield from layers(ours, theirs, {"qkv": QKV})
        return
    names = {"query": "query", "key_value": QKV[1:], "reduction.convolution": reduction}
    yield from layers(ours, theirs, {**names, "reduction.norm.norm": "layer_norm"})


def _pvtv2(config: PVTv2Config) -> Iterator[Entry]:
    names = {**PVT_BLOCK, "mlp.depthwise": "mlp.dwconv.dwconv", "mixer.projection": "attention.proj"}
    for stage, depth in enumerate(config.depths):
        published = f"pvt_v2.encoder.layers.{stage}"
        patches = f"stages.{stage}.downsample" if stage else "stem"
        embedding = {"convolution": "proj", "norm.norm": "layer_norm"}
        yield from layers(patches, f"{published}.patch_embedding", embedding)
        for ours, theirs in blocks(depth, f"stages.{stage}.blocks.{{}}", published + ".blocks.{}"):
            mixer, attention = f"{ours}.mixer", f"{theirs}.attention"
            yield from layers(ours, theirs, names)
            if config.pooled_keys is None:
                reduction = None if config.reductions[stage] == 1 else "spatial_reduction"
                yield from _reduced_attention(mixer, attention, reduction)
            else:
                names_of_pooled = {"query": "query", "key_value": QKV[1:], "reduction.norm": "layer_norm"}
                yield from layers(mixer, attention, names_of_pooled)
                yield from pointwise(f"{mixer}.reduction.projection", f"{attention}.spatial_reduction")
        yield from layer(f"stages.{stage}.norm", f"{published}.layer_norm")
    yield from layer("head", "classifier")


def _resnet(config: ResNetConfig) -> Iterator[Entry]:
    yield from _resnet_backbone(config, "", "resnet.")
    yield from layer("head", "classifier.1")


def _resnet_backbone(config: ResNetConfig, ours: str, theirs: str) -> Iterator[Entry]:
    """Map all but the head; both names are prefixes. Frozen batch norms keep no counts."""
    names = [(f"{ours}stem.first", f"{theirs}embedder.embedder")]
    for stage, depth in enumerate(config.depths):
        published_stage = f"{theirs}encoder.stages.{stage}.layers.{{}}"
        for index, (block, published) in enumerate(
            blocks(depth, f"{ours}stages.{stage}.{{}}", published_stage)
        ):
            for part in range(config.num_convolutions):
                names.append((f"{block}.branch.{part}", f"{published}.layer.{part}"))
            if config.has_projection(stage, index):
                names.append((f"{block}.shortcut", f"{published}.shortcut"))
    for name, published in names:
        parts = f"{published}.convolution", f"{published}.normalization"
        yield from normed(name, *parts, counts=config.norm == "batch")


def _bit(config: BiTConfig) -> Iterator[Entry]:
    # transformers has the narrow ones only: its last norm has no width factor.
    yield kernel("stem.first", "bit.embedder.convolution")
    yield from bit_blocks(config, "bit.encoder.stages.{}.layers.{}")
    yield from layers("", "", {"final.norm": "bit.norm", "head": "classifier.1"})


def _efficientnet(config: EfficientNetConfig) -> Iterator[Entry]:
    """Map every tensor of a model; blocks are numbered across stages."""
    model = "efficientnet"
    yield from normed("stem.first", f"{model}.embeddings.convolution", f"{model}.embeddings.batchnorm")
    for number, (stage, index, expansion) in enumerate(config.blocks()):
        ours, theirs = f"stages.{stage}.{index}", f"{model}.encoder.blocks.{number}"
        if expansion > 1:
            widen = f"{theirs}.expansion.expand"
            yield from normed(f"{ours}.widen", f"{widen}_conv", f"{widen}_bn")
        depthwise = f"{theirs}.depthwise_conv.depthwise"
        yield from normed(f"{ours}.depthwise", f"{depthwise}_conv", f"{depthwise}_norm")
        yield from pointwise(f"{ours}.squeeze.reduce", f"{theirs}.squeeze_excite.reduce")
        yield from pointwise(f"{ours}.squeeze.expand", f"{theirs}.squeeze_excite.expand")
        narrow = f"{theirs}.projection.project"
        yield from normed(f"{ours}.narrow", f"{narrow}_conv", f"{narrow}_bn")
    yield from normed("final", f"{model}.encoder.top_conv", f"{model}.encoder.top_bn")
    yield from layer("head.classifier", "classifier")


def _detr(
    config: DETRConfig, backbone: Callable[[ResNetConfig, str, str], Iterator[Entry]] = resnet_backbone
) -> Iterator[Entry]:
    """Map every tensor of a model with timm's backbone, or with the library's own."""
    yield from backbone(config.resnet, "backbone.", "model.backbone.model.")
    rest = {**MLP, "mlp_norm": "final_layer_norm"}
    encoder = {
        "attention.projection": "self_attn.o_proj",
        "attention.qkv": SELF_QKV,
        "attention_norm": "self_attn_layer_norm",
        **rest,
    }
    decoder = {
        "self_attention.projection": "self_attn.o_proj",
        "self_attention.qkv": SELF_QKV,
        "self_norm": "self_attn_layer_norm",
        "cross_attention.projection": "encoder_attn.o_proj",
        "cross_attention.qkv": CROSS_QKV,
        "cross_norm": "encoder_attn_layer_norm",
        **rest,
    }
    yield from pointwise("projection", "model.input_projection")
    yield same("queries", "model.query_position_embeddings.weight")
    for names in blocks(config.encoder_depth, "encoder.{}", "model.encoder.layers.{}"):
        yield from layers(*names, encoder)
    for names in blocks(config.decoder_depth, "decoder.{}", "model.decoder.layers.{}"):
        yield from layers(*names, decoder)
    yield from layers(
        "", "", {"decoder_norm": "model.decoder.layernorm", "class_head": "class_labels_classifier"}
    )
    for index in range(3):  # activations stand in between ours
        yield from layer(f"box_head.{2 * index}", f"bbox_predictor.layers.{index}")


def _clip(config: CLIPConfig) -> Iterator[Entry]:
    """Map every tensor of a CLIP.

    Raises:
        ConfigError: transformers does not have the model's image tower.
    """
    refuse_other_towers(config)
    vision, text = "vision_model", "text_model"
    yield rows("image.prefix", [f"{vision}.embeddings.class_embedding"], to_theirs=(config.image_width,))
    yield same("image.positions.table", f"{vision}.embeddings.position_embedding.weight")
    yield same("image.stem.weight", f"{vision}.embeddings.patch_embedding.weight")
    yield from layer("image.input_norm", f"{vision}.pre_layrnorm")  # as it is spelt there
    yield from _clip_blocks("image", vision, config.image_depth)
    yield from layer("image.norm", f"{vision}.post_layernorm")
    yield same("image.head.weight", "visual_projection.weight")
    yield same("text.table.weight", f"{text}.embeddings.token_embedding.weight")
    yield same("text.positions.table", f"{text}.embeddings.position_embedding.weight")
    yield from _clip_blocks("text", text, config.text_depth)
    yield from layer("text.norm", f"{text}.final_layer_norm")
    yield same("text.projection.weight", "text_projection.weight")
    yield same("logit_scale", "logit_scale")


def refuse_other_towers(config: CLIPConfig) -> None:
    """Raise ConfigError unless the image tower is CLIP's own."""
    if config.image_model is not None:
        raise ConfigError(
            f"published weights were to be related to a CLIP whose image tower is {config.image_model}",
            expected="image_model null, CLIP's own Vision Transformer",
            remedy="Name a published model, such as clip_b32",
        )


def _clip_blocks(ours: str, theirs: str, depth: int) -> Iterator[Entry]:
    names = {
        "mixer_norm": "layer_norm1",
        "mixer.qkv": SELF_QKV,
        "mixer.projection": "self_attn.out_proj",
        "mlp_norm": "layer_norm2",
        **MLP,
    }
    for block, published in blocks(depth, ours + ".blocks.{}", theirs + ".encoder.layers.{}"):
        yield from layers(block, published, names)


BERT_BLOCK = {
    "mixer.qkv": [f"attention.self.{part}" for part in QKV],
    "mixer.projection": "attention.output.dense",
    "mixer_norm": "attention.output.LayerNorm",
    "mlp.expand": "intermediate.dense",
    "mlp.contract": "output.dense",
    "mlp_norm": "output.LayerNorm",
}


def _bert(config: BertConfig) -> Iterator[Entry]:
    """Map every tensor of a BERT for labels of sentences or of words; those of means have no pooler."""
    embeddings = "bert.embeddings"
    yield same("embedding.weight", f"{embeddings}.word_embeddings.weight")
    yield same("positions.table", f"{embeddings}.position_embeddings.weight")
    yield same("segments", f"{embeddings}.token_type_embeddings.weight")
    yield from layer("norm", f"{embeddings}.LayerNorm")
    for names in blocks(config.depth, "blocks.{}", "bert.encoder.layer.{}"):
        yield from layers(*names, BERT_BLOCK)
    if config.labels == "sentence" and config.pool == "begin":
        yield from layer("pooled_head.0", "bert.pooler.dense")
    yield from layer("head", "classifier")


MARIAN_SHARED, MARIAN_LOGITS_BIAS, MARIAN_OUTPUT = (
    "model.shared.weight",
    "final_logits_bias",
    "lm_head.weight",
)
MARIAN_SOURCE, MARIAN_TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"


def _transformer(config: TransformerConfig) -> Iterator[Entry]:
    """Map every tensor of a Marian model.

    Raises:
        ConfigError: Marian has no such Transformer.
    """
    _check_expressible(config)
    rest = {"mlp.expand": "fc1", "mlp.contract": "fc2", "mlp_norm": "final_layer_norm"}
    encoder = {
        "mixer.qkv": SELF_QKV,
        "mixer.projection": "self_attn.out_proj",
        "mixer_norm": "self_attn_layer_norm",
        **rest,
    }
    decoder = {
        "self_attention.qkv": SELF_QKV,
        "self_attention.projection": "self_attn.out_proj",
        "self_norm": "self_attn_layer_norm",
        "cross_attention.query": "encoder_attn.q_proj",
        "cross_attention.key_value": CROSS_QKV[1:],
        "cross_attention.projection": "encoder_attn.out_proj",
        "cross_norm": "encoder_attn_layer_norm",
        **rest,
    }
    yield from _embeddings(config)
    for names in blocks(config.encoder_depth, "encoder.{}", "model.encoder.layers.{}"):
        yield from layers(*names, encoder)
    for names in blocks(config.decoder_depth, "decoder.{}", "model.decoder.layers.{}"):
        yield from layers(*names, decoder)


def _check_expressible(config: TransformerConfig) -> None:
    wanted = {"norm": "post", "positions": "sinusoidal_halves", "mixer": "attention", "output_bias": True}
    faults = [
        f"{name} {getattr(config, name)!r}"
        for name, value in wanted.items()
        if getattr(config, name) != value
    ]
    if faults:
        raise ConfigError(
            f"transformers has no translation model of this kind with {', '.join(faults)}",
            expected=", ".join(f"{name} {value!r}" for name, value in wanted.items()),
            remedy="Use the weights as they are, or export them to another format",
        )


def _embeddings(config: TransformerConfig) -> Iterator[Entry]:
    yield batched("output.bias" if config.tie == "none" else "output_bias", MARIAN_LOGITS_BIAS)
    if config.tie == "all":
        names = MARIAN_SHARED, MARIAN_SOURCE, MARIAN_TARGET, MARIAN_OUTPUT
        yield _tied("target_embedding.weight", names)
        return
    yield same("source_embedding.weight", MARIAN_SOURCE)
    if config.tie == "output":
        yield _tied("target_embedding.weight", (MARIAN_TARGET, MARIAN_OUTPUT))
        return
    yield same("target_embedding.weight", MARIAN_TARGET)
    yield same("output.weight", MARIAN_OUTPUT)


def _tied(ours: str, theirs: tuple[str, ...]) -> Entry:
    """Map one tensor to tied names, under all of which it must be equal."""

    def join(tensors: list[Tensor]) -> list[Tensor]:
        for name, tensor in zip(theirs, tensors, strict=True):
            if not torch.equal(tensor, tensors[0]):
                raise RuntimeError(f"{name} differs from {theirs[0]}")  # to_ours says what was converted
        return tensors[:1]

    return Entry((ours,), theirs, join, lambda tensors: tensors * len(theirs))


_TABLES: dict[str, Table] = {
    "vit": _vit,
    "swin": _swin,
    "swinv2": _swinv2,
    "pvt": _pvt,
    "pvtv2": _pvtv2,
    "resnet": _resnet,
    "bit": _bit,
    "efficientnet": _efficientnet,
    "detr": _detr,
    "clip": _clip,
    "transformer": _transformer,
    "bert": _bert,
}
_IGNORED = {
    "swin": ("relative_position_index",),
    "swinv2": ("relative_position_index", "relative_coords_table"),
    "resnet": ("num_batches_tracked",),
    "detr": ("num_batches_tracked",),
    "clip": ("position_ids",),
    "transformer": ("embed_positions.weight",),  # sines and cosines
}
_NAMES = {
    "WinKawaks/vit-tiny-patch16-224": "vit_ti16",
    "WinKawaks/vit-small-patch16-224": "vit_s16",
    "google/vit-base-patch16-224": "vit_b16",
    "google/vit-base-patch16-384": "vit_b16",
    "google/vit-base-patch32-384": "vit_b32",
    "google/vit-large-patch16-224": "vit_l16",
    "google/vit-large-patch16-384": "vit_l16",
    "google/vit-large-patch32-384": "vit_l32",
    "facebook/deit-tiny-patch16-224": "deit_ti16",
    "facebook/deit-small-patch16-224": "deit_s16",
    "facebook/deit-base-patch16-224": "deit_b16",
    "facebook/deit-tiny-distilled-patch16-224": "deit_ti16_distilled",
    "facebook/deit-small-distilled-patch16-224": "deit_s16_distilled",
    "facebook/deit-base-distilled-patch16-224": "deit_b16_distilled",
    "facebook/deit-base-patch16-384": "deit_b16",
    "facebook/deit-base-distilled-patch16-384": "deit_b16_distilled",
    "microsoft/swin-tiny-patch4-window7-224": "swin_t",
    "microsoft/swin-small-patch4-window7-224": "swin_s",
    "microsoft/swin-base-patch4-window7-224": "swin_b",
    "microsoft/swin-base-patch4-window7-224-in22k": "swin_b",
    "microsoft/swin-base-patch4-window12-384": "swin_b_384",
    "microsoft/swin-base-patch4-window12-384-in22k": "swin_b_384",
    "microsoft/swin-large-patch4-window7-224": "swin_l",
    "microsoft/swin-large-patch4-window7-224-in22k": "swin_l",
    "microsoft/swin-large-patch4-window12-384": "swin_l_384",
    "microsoft/swin-large-patch4-window12-384-in22k": "swin_l_384",
    "microsoft/swinv2-tiny-patch4-window8-256": "swinv2_t",
    "microsoft/swinv2-tiny-patch4-window16-256": "swinv2_t_w16",
    "microsoft/swinv2-small-patch4-window8-256": "swinv2_s",
    "microsoft/swinv2-small-patch4-window16-256": "swinv2_s_w16",
    "microsoft/swinv2-base-patch4-window8-256": "swinv2_b",
    "microsoft/swinv2-base-patch4-window16-256": "swinv2_b_w16",
    "microsoft/swinv2-base-patch4-window12-192-22k": "swinv2_b_w12_192",
    "microsoft/swinv2-base-patch4-window12to16-192to256-22kto1k-ft": "swinv2_b_w12to16",
    "microsoft/swinv2-base-patch4-window12to24-192to384-22kto1k-ft": "swinv2_b_w12to24_384",
    "microsoft/swinv2-large-patch4-window12-192-22k": "swinv2_l_w12_192",
    "microsoft/swinv2-large-patch4-window12to16-192to256-22kto1k-ft": "swinv2_l_w12to16",
    "microsoft/swinv2-large-patch4-window12to24-192to384-22kto1k-ft": "swinv2_l_w12to24_384",
    **{f"pvt-{size}-224": f"pvt_{size[0]}" for size in ("tiny", "small", "medium", "large")},
    **{f"pvt_v2_b{size}": f"pvtv2_b{size}" for size in range(6)},
    "pvt_v2_b2_linear": "pvtv2_b2_li",
    **{f"resnet-{depth}": f"resnet{depth}" for depth in (18, 34, 50, 101, 152)},
    "bit-50": "bit_r50x1",
    "bit-101": "bit_r101x1",
    **{f"efficientnet-b{size}": f"efficientnet_b{size}" for size in range(8)},
    "facebook/detr-resnet-50": "detr_r50",
    "facebook/detr-resnet-101": "detr_r101",
    "facebook/detr-resnet-50-dc5": "detr_r50_dc5",
    "facebook/detr-resnet-101-dc5": "detr_r101_dc5",
    "google-bert/bert-base-uncased": "bert_base",
    "google-bert/bert-large-uncased": "bert_large",
    "google/bert_uncased_L-2_H-128_A-2": "bert_tiny",
    "google/bert_uncased_L-4_H-256_A-4": "bert_mini",
    "google/bert_uncased_L-4_H-512_A-8": "bert_small",
    "sentence-transformers/all-MiniLM-L6-v2": "minilm_l6",
    "openai/clip-vit-base-patch32": "clip_b32",
    "openai/clip-vit-base-patch16": "clip_b16",
    "openai/clip-vit-large-patch14": "clip_l14",
    "openai/clip-vit-large-patch14-336": "clip_l14_336",
}
SOURCE = Source(
    "hf", _TABLES, _NAMES, ignored=_IGNORED, other_tables={"detr": partial(_detr, backbone=_resnet_backbone)}
)

# Names in files to names in the library's models since 5.0; longer patterns come before those they contain.
_VIT_AND_SWIN = (
    (r"\b(vit|deit)\.encoder\.layer\.", r"\1.layers."),
    (r"\.attention\.(?:attention|self)\.([qkv])(?:uery|ey|alue)\.", r".attention.\1_proj."),
    (
        r"\.attention\.self\.relative_position_(bias_table|index)$",
        r".attention.relative_position_bias.relative_position_\1",
    ),
    (r"\.attention\.output\.dense\.", ".attention.o_proj."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"(?<!attention)\.output\.dense\.", ".mlp.fc2."),
)
_DETR = (
    (r"\.backbone\.conv_encoder\.model\.(?:_backbone\.)?", ".backbone.model."),
    (r"\.out_proj\.", ".o_proj."),
    (r"(coder\.layers\.\d+)\.(fc[12])\.", r"\1.mlp.\2."),
)
RENAMED = {  # by model_type; the files and models of all other types agree
    "vit": _VIT_AND_SWIN,
    "deit": _VIT_AND_SWIN,
    "swin": _VIT_AND_SWIN,
    "detr": _DETR,
}
