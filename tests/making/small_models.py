"""How each family is made small for tests, and its choices that no variant has."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vitrail.data.preprocessing import Preprocessing
from vitrail.data.text.subwords import vocabulary_to_files
from vitrail.data.text.words import WordVocabulary
from vitrail.data.text_preprocessing import CaptionPreprocessing
from vitrail.models import MODELS, build, model_settings
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import ModelConfig
from vitrail.nn.mixers import MIXERS

IMAGES = {"num_classes": 5, "image_size": (16, 24)}
VIT = {**IMAGES, "width": 12, "depth": 2, "num_heads": 3, "drop_path": 0.0, "patch_size": 4}
MLP_MIXER = {
    **IMAGES,
    "width": 12,
    "depth": 2,
    "token_hidden_dim": 7,
    "channel_hidden_dim": 17,
    "patch_size": 4,
}
SEQUENCER2D = {
    **IMAGES,
    "patch_sizes": (4, 2, 1),
    "widths": (6, 11, 9),
    "hidden_dims": (2, 5, 3),
    "depths": (1, 2, 1),
    "drop_path": 0.0,
}
SWIN = {
    **IMAGES,
    "patch_size": 2,
    "width": 6,
    "depths": (2, 3, 2),
    "num_heads": (1, 3, 2),
    "window_size": 3,  # leaves windows to complete, and more than one in the first two stages
    "mlp_ratio": 2.0,
    "drop_path": 0.0,
}
SWINV2 = {**SWIN, "trained_windows": ()}
PVT = {
    **IMAGES,
    "patch_size": 2,
    "widths": (6, 8, 12, 10),
    "depths": (1, 2, 1, 1),
    "num_heads": (1, 2, 3, 2),
    "reductions": (4, 2, 1, 1),  # leaves more than one key in each stage
    "mlp_ratios": (2.0, 2.0, 1.5, 2.0),
    "drop_path": 0.0,
}
PVTV2 = PVT
MVIT = {**IMAGES, "depths": (1, 2), "width": 8, "num_heads": 2, "key_stride": 2}
MVITV2 = {**IMAGES, "depths": (1, 2), "width": 8, "num_heads": 2, "key_stride": 2}
RESNET = {**IMAGES, "width": 8, "depths": (1, 2, 1, 1)}
BIT = {**IMAGES, "width": 32, "depths": (1, 2, 1)}  # the norms have 32 groups
EFFICIENTNET = {**IMAGES, "width_factor": 0.25, "depth_factor": 0.3, "dropout": 0.0, "drop_path": 0.0}

DETR = {
    "backbone_width": 8,
    "backbone_depths": (1, 1, 2),
    "width": 12,
    "hidden_dim": 20,
    "num_heads": 3,
    "encoder_depth": 2,
    "decoder_depth": 3,
    "dropout": 0.0,
    "num_classes": 5,
    "num_queries": 7,
    "image_size": (48, 64),
}
SAMPLED_DETR = {
    "backbone": None,
    "backbone_width": 6,
    "backbone_depths": (1, 1, 2, 1),
    "width": 24,
    "hidden_dim": 20,
    "num_heads": 3,
    "num_points": 2,
    "encoder_depth": 2,
    "decoder_depth": 2,
    "num_classes": 5,
    "num_queries": 7,
    "num_proposals": 11,
    "proposal_matches": 2,
    "num_denoising": 6,
    "image_size": (48, 64),
}

RECURRENT = {
    "source_vocabulary_size": 17,
    "target_vocabulary_size": 17,
    "embedding_dim": 7,
    "hidden_dim": 12,
    "dropout": 0.0,
}
TRANSFORMER = {
    "source_vocabulary_size": 17,
    "target_vocabulary_size": 17,
    "width": 12,
    "hidden_dim": 20,
    "num_heads": 3,
    "encoder_depth": 2,
    "decoder_depth": 2,
    "dropout": 0.0,
    "max_length": 9,
}

TEXT_ENCODER = {
    "vocabulary_size": 17,
    "num_classes": 5,
    "width": 12,
    "num_heads": 3,
    "hidden_dim": 20,
    "max_length": 9,
    "dropout": 0.0,
}
BERT = {**TEXT_ENCODER, "depth": 2, "begin_id": 1, "end_id": 2}

ENCODER = {"encoder": "vit_nano", "encoder_changes": {"width": 12, "num_heads": 3, "depth": 1}}
CAPTIONER = {
    **ENCODER,
    "encoder_stage": -1,
    "vocabulary_size": 13,
    "image_size": (16, 12),
    "embedding_dim": 6,
    "hidden_dim": 8,
    "attention_dim": 5,
    "dropout": 0.0,
}
CAPTION_TRANSFORMER = {
    **ENCODER,
    "vocabulary_size": 13,
    "image_size": (16, 12),
    "width": 12,
    "hidden_dim": 10,
    "num_heads": 3,
    "refining_depth": 1,
    "decoder_depth": 2,
    "dropout": 0.0,
}

CHANGES: dict[str, dict[str, Any]] = {
    "bert": BERT,
    "bit": BIT,
    "caption_transformer": CAPTION_TRANSFORMER,
    "captioner": CAPTIONER,
    "detr": DETR,
    "efficientnet": EFFICIENTNET,
    "mlp_mixer": MLP_MIXER,
    "mvit": MVIT,
    "mvitv2": MVITV2,
    "pvt": PVT,
    "pvtv2": PVTV2,
    "recurrent": RECURRENT,
    "resnet": RESNET,
    "sampled_detr": SAMPLED_DETR,
    "sequencer2d": SEQUENCER2D,
    "swin": SWIN,
    "swinv2": SWINV2,
    "text_encoder": TEXT_ENCODER,
    "transformer": TRANSFORMER,
    "vit": VIT,
}
"""Settings that make a model of a family small."""

HYBRID = {"stem": {"depths": (1,), "width": 32}}  # the stem's norms have 32 groups

FOR_PHOTOGRAPHS: dict[str, dict[str, Any]] = {
    "vit": {"patch_size": 16},
    "pvt": {"patch_size": 4},
    "pvtv2": {"patch_size": 4},
    "mvitv2": {"key_stride": 8},
}
"""Further settings with which a large image costs little."""

STEADY_QUERIES = {"queries": "learned"}  # positions whose scores are nearly equal change places by rounding

MEAN = {"class_token": False, "pool": "mean"}
DEEP = {"encoder_depth": 2, "decoder_depth": 3}
APART = {"target_vocabulary_size": 19, "tie": "output"}
FURTHER: dict[str, tuple[str, dict[str, Any]]] = {
    # image models
    "vit_pairwise_post_flatten": (
        "vit_ti16",
        {"positions": "pairwise", "norm_place": "post", "pool": "flatten", "layer_scale": 0.5},
    ),
    "vit_rotary_branch_post": (
        "vit_ti16",
        {"positions": "rotary", "norm_place": "branch_post", "stem": "mlp", "head_hidden_dim": 7},
    ),
    # A class token has no position, so in the last block its pool would leave the table without a gradient.
    "vit_relative_general_mean": (
        "vit_ti16",
        {"positions": "relative_bias", "score": "general", "stem_norm": True, **MEAN},
    ),
    "vit_sinusoidal_additive": ("vit_ti16", {"positions": "sinusoidal", "score": "additive"}),
    "vit_learned_relative_free_heads": (
        "vit_ti16",
        {"positions": "learned+relative_bias", "head_dim": 5, "value_dim": 2, "norm_layer": "batch"},
    ),
    "vit_sinusoidal_rotary": ("vit_ti16", {"positions": "sinusoidal+rotary", "head_dim": 8}),
    "vit_kernels": (
        "vit_ti16",
        {"mixer": "dynamic_convolution", "kernel_sizes": (3, 5), "kernel_dropout": 0.2, **MEAN},
    ),
    # A class token at the start of a sequence hears too little of its end.
    **{f"vit_{mixer}": ("vit_ti16", {"mixer": mixer, **MEAN}) for mixer in MIXERS if mixer != "attention"},
    "mvit_max": ("mvit_b16", {"pooling": "max"}),
    "mvitv2_max": ("mvitv2_t", {"pooling": "max"}),
    # detectors
    "detr_scratch": ("detr_r50", {"backbone_norm": "batch", "num_frozen": 0}),
    "detr_named": ("detr_r50", {"backbone": "resnet18", "backbone_changes": {"width": 4}, "num_frozen": 1}),
    "sdetr_named": ("sdetr_nano", {"backbone": "resnet18", "backbone_changes": {"width": 4}}),
    "sdetr_learned": ("sdetr_nano", {"queries": "learned"}),
    "sdetr_one_level": ("sdetr_nano", {"strides": (16,), "num_denoising": 0}),
    "sdetr_finer": ("sdetr_nano", {"strides": (4, 8), "encoder_depth": 0}),
    # translation models
    "rnn_deep": ("rnn", {**DEEP, "tie": "all"}),
    "rnn_general_deep": ("rnn_general", {**DEEP, "tie": "none", "target_vocabulary_size": 13}),
    "rnn_scaled_dot_unfed": ("rnn_scaled_dot", {"input_feeding": False, "decoder_depth": 2}),
    "rnn_additive_unfed": ("rnn_additive", {"input_feeding": False}),
    "rnn_dot_unfed": ("rnn_dot", {"input_feeding": False, "encoder_depth": 2}),
    "gru_dot_deep": ("gru_luong", {**DEEP, "attention": "dot"}),
    "gru_general_unfed": ("gru_luong", {"attention": "general", "input_feeding": False}),
    "gru_additive_deep": ("gru_additive", {**DEEP, "tie": "none", "bidirectional": False}),
    "rnn_tanh_forward": ("rnn_tanh", {**DEEP, "bidirectional": False}),
    "rnn_tanh_dot_context": ("rnn_dot", {"cell": "tanh", "input_feeding": "context"}),
    "transformer_pre": ("transformer_base", {"norm": "pre", "activation": "gelu", "output_bias": True}),
    "transformer_halves": ("transformer_base", {"positions": "sinusoidal_halves", **APART}),
    "transformer_learned": ("transformer_base", {"positions": "learned", "scale_embedding": False}),
    "transformer_relative_pre": ("transformer_base", {"positions": "relative", "norm": "pre"}),
    "transformer_relative": ("transformer_base", {"positions": "relative", "tie": "none"}),
    "transformer_rotary_pre": ("transformer_base", {"positions": "rotary", "norm": "pre", **APART}),
    "transformer_rotary": ("transformer_base", {"positions": "rotary", "activation": "silu"}),
    "transformer_sinusoidal_relative": ("transformer_base", {"positions": "sinusoidal+relative"}),
    "transformer_learned_rotary": ("transformer_base", {"positions": "learned+rotary", "norm": "pre"}),
    "transformer_free_heads": ("transformer_base", {"head_dim": 5, "value_dim": 2, "num_heads": 5}),
    "transformer_wide_heads": ("transformer_base", {"head_dim": 7, "value_dim": 7, "tie": "none"}),
    "transformer_batch_norm": ("transformer_base", {"norm_layer": "batch"}),
    "transformer_batch_norm_pre": ("transformer_base", {"norm_layer": "batch", "norm": "pre"}),
    "transformer_light_in_both": (
        "transformer_base",
        {"mixer": "light_convolution", "decoder_mixer": "light_convolution", "kernel_sizes": (3, 5)},
    ),
    "transformer_dynamic_decoder": (
        "transformer_base",
        {"decoder_mixer": "dynamic_convolution", "kernel_dropout": 0.3, "norm": "pre"},
    ),
    "transformer_none": (
        "transformer_base",
        {"positions": "none", "tie": "none", "output_bias": True, "target_vocabulary_size": 13},
    ),
    **{
        f"transformer_{mixer}": ("transformer_base", {"mixer": mixer})
        for mixer in MIXERS
        if mixer not in ("attention", "lstm_2d")  # the latter reads the rows and columns of images
    },
    # models that label texts
    "text_words": ("text_transformer", {"labels": "words"}),
    "text_rnn_words": ("text_rnn", {"labels": "words", "depth": 2}),
    "text_rnn_ahead": ("text_rnn", {"bidirectional": False}),
    "text_summary_post": ("text_transformer", {"pool": "summary", "norm": "post", "positions": "learned"}),
    **{
        f"text_{mixer}": ("text_transformer", {"mixer": mixer, "positions": "sinusoidal"})
        for mixer in MIXERS
        if mixer not in ("attention", "lstm_2d")
    },
    "bert_words": ("bert_base", {"labels": "words"}),
    # captioners
    "nothing between encoder and decoder": ("caption_transformer", {"refining_depth": 0, "tie": False}),
    "a GRU of two layers, untied": ("show_attend_tell", {"cell": "gru", "depth": 2, "tie": False}),
    "a frozen encoder": ("show_attend_tell", {"encoder_frozen": True, "pool": 2}),
    "a stage of a residual network": (
        "show_attend_tell",
        {"encoder": "resnet18", "encoder_changes": {"width": 4}, "encoder_stage": -3},
    ),
}
"""Settings that no variant has, with the variant that they differ from."""


def shrink(name: str) -> ModelConfig:
    """Return the settings of a named model, made small."""
    return MODELS[name].with_changes(small_changes(name))


def small_changes(name: str) -> dict[str, Any]:
    """Return the settings that make a named model small."""
    changes = CHANGES[MODELS[name].family]
    return {**changes, **HYBRID} if name.startswith("vit_r") else changes


def small_configs(kind: type[ModelConfig] = ModelConfig) -> dict[str, Any]:
    """Return every variant and every further choice of a kind of models, made small, each once."""
    named = {name: (name, {}) for name in sorted(MODELS) if MODELS[name].family in CHANGES} | FURTHER
    configs: dict[str, Any] = {}
    seen: set[str] = set()
    for title, (name, changes) in named.items():
        config = shrink(name).with_changes(changes) if isinstance(MODELS[name], kind) else None
        key = "" if config is None else f"{config.family} {config.model_dump(exclude={'name'})}"
        if config is not None and key not in seen:
            configs[title] = config
            seen.add(key)
    return configs


def build_shaken(config: ModelConfig, std: float = 0.02) -> nn.Module:
    """Build a model without the zeros that some layers begin with, which would hide what is behind them."""
    model = config.build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(std * torch.randn_like(parameter))
    return model


WORDS = ("a", "dog", "runs", "on", "grass", "red", "the", "two", "boats")


def small_captioner() -> LoadedModel:
    """Return a captioner with the weights that its seed gives."""
    torch.manual_seed(12)
    preprocessing = CaptionPreprocessing(images=Preprocessing(image_size=(16, 12)))
    return LoadedModel(
        build("show_attend_tell", **CAPTIONER).eval(),
        model_settings("show_attend_tell", **CAPTIONER),
        preprocessing.model_dump(mode="json"),
        [],
        {"task": {"max_length": 6}},
        vocabulary_to_files(WordVocabulary(WORDS)),
    )
