"""Key tables of Swin and Swin V2: timm, transformers, torchvision."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from vitrail.models.swin import SwinConfig
from vitrail.models.swinv2 import SwinV2Config
from vitrail.models.weights.table import Entry, joined, joined_layers, layer, reshaped, same


def _timm_swin(config: SwinConfig) -> Iterator[Entry]:
    yield from _timm_frame(config)
    for block in _timm_blocks(config):
        yield from layer(f"stages.{block}.mixer.qkv", f"layers.{block}.attn.qkv", bias=config.qkv_bias)
        yield same(
            f"stages.{block}.mixer.relative_bias.table", f"layers.{block}.attn.relative_position_bias_table"
        )


def _timm_frame(config: SwinConfig) -> Iterator[Entry]:
    """Map the tensors that Swin and Swin V2 share: all but those of the attention weights."""
    yield from layer("stem.0", "patch_embed.proj")
    yield from layer("stem.1.norm", "patch_embed.norm")
    for stage in range(1, len(config.depths)):
        ours, theirs = f"stages.{stage}.downsample", f"layers.{stage}.downsample"
        yield from layer(f"{ours}.norm", f"{theirs}.norm")
        yield from layer(f"{ours}.reduction", f"{theirs}.reduction", bias=False)
    for block in _timm_blocks(config):
        ours, theirs = f"stages.{block}", f"layers.{block}"
        yield from layer(f"{ours}.mixer_norm", f"{theirs}.norm1")
        yield from layer(f"{ours}.mixer.projection", f"{theirs}.attn.proj")
        yield from layer(f"{ours}.mlp_norm", f"{theirs}.norm2")
        yield from layer(f"{ours}.mlp.expand", f"{theirs}.mlp.fc1")
        yield from layer(f"{ours}.mlp.contract", f"{theirs}.mlp.fc2")
    yield from layer("final.norm", "norm")
    yield from layer("head", "head.fc")


def _timm_blocks(config: SwinConfig) -> Iterator[str]:
    for stage, depth in enumerate(config.depths):
        for index in range(depth):
            yield f"{stage}.blocks.{index}"


def _timm_swinv2(config: SwinV2Config) -> Iterator[Entry]:
    yield from _timm_frame(config)
    for block in _timm_blocks(config):
        ours, theirs = f"stages.{block}.mixer", f"layers.{block}.attn"
        yield same(f"{ours}.qkv.weight", f"{theirs}.qkv.weight")
        if config.qkv_bias:
            yield same(f"{ours}.query_bias", f"{theirs}.q_bias")
            yield same(f"{ours}.value_bias", f"{theirs}.v_bias")
        yield reshaped(f"{ours}.log_scale", f"{theirs}.logit_scale", to_ours=(-1,), to_theirs=(-1, 1, 1))
        yield from layer(f"{ours}.relative_bias.expand", f"{theirs}.cpb_mlp.0")
        yield from layer(f"{ours}.relative_bias.contract", f"{theirs}.cpb_mlp.2", bias=False)


def _hf_swin(config: SwinConfig) -> Iterator[Entry]:
    yield from _hf_frame(config, "swin")
    for ours, theirs in _hf_blocks(config, "swin"):
        attention = f"{theirs}.attention"
        yield from joined_layers(
            f"{ours}.mixer.qkv", [f"{attention}.{part}_proj" for part in "qkv"], bias=config.qkv_bias
        )
        yield same(
            f"{ours}.mixer.relative_bias.table",
            f"{attention}.relative_position_bias.relative_position_bias_table",
        )
        yield from layer(f"{ours}.mixer.projection", f"{attention}.o_proj")
        yield from layer(f"{ours}.mlp.expand", f"{theirs}.mlp.fc1")
        yield from layer(f"{ours}.mlp.contract", f"{theirs}.mlp.fc2")


def _hf_swin_ignored(config: SwinConfig) -> Iterator[str]:
    """Yield the index tables, which files hold and models do not."""
    for _, theirs in _hf_blocks(config, "swin"):
        yield f"{theirs}.attention.relative_position_bias.relative_position_index"


def _hf_frame(config: SwinConfig, model: str) -> Iterator[Entry]:
    """Map the tensors with the same names in Swin and Swin V2."""
    yield from layer("stem.0", f"{model}.embeddings.patch_embeddings.projection")
    yield from layer("stem.1.norm", f"{model}.embeddings.norm")
    for stage in range(1, len(config.depths)):
        ours, theirs = f"stages.{stage}.downsample", f"{model}.encoder.layers.{stage - 1}.downsample"
        yield from layer(f"{ours}.norm", f"{theirs}.norm")
        yield from layer(f"{ours}.reduction", f"{theirs}.reduction", bias=False)
    for ours, theirs in _hf_blocks(config, model):
        yield from layer(f"{ours}.mixer_norm", f"{theirs}.layernorm_before")
        yield from layer(f"{ours}.mlp_norm", f"{theirs}.layernorm_after")
    yield from layer("final.norm", f"{model}.layernorm")
    yield from layer("head", "classifier")


def _hf_blocks(config: SwinConfig, model: str) -> Iterator[tuple[str, str]]:
    """Yield every block, ours and theirs."""
    for stage, depth in enumerate(config.depths):
        for index in range(depth):
            yield f"stages.{stage}.blocks.{index}", f"{model}.encoder.layers.{stage}.blocks.{index}"


def _hf_swinv2(config: SwinV2Config) -> Iterator[Entry]:
    yield from _hf_frame(config, "swinv2")
    for ours, theirs in _hf_blocks(config, "swinv2"):
        mixer, attention = f"{ours}.mixer", f"{theirs}.attention.self"
        yield joined(
            f"{mixer}.qkv.weight", [f"{attention}.{part}.weight" for part in ("query", "key", "value")]
        )
        if config.qkv_bias:
            yield same(f"{mixer}.query_bias", f"{attention}.query.bias")
            yield same(f"{mixer}.value_bias", f"{attention}.value.bias")
        yield reshaped(f"{mixer}.log_scale", f"{attention}.logit_scale", to_ours=(-1,), to_theirs=(-1, 1, 1))
        distances = f"{attention}.continuous_position_bias_mlp"
        yield from layer(f"{mixer}.relative_bias.expand", f"{distances}.0")
        yield from layer(f"{mixer}.relative_bias.contract", f"{distances}.2", bias=False)
        yield from layer(f"{mixer}.projection", f"{theirs}.attention.output.dense")
        yield from layer(f"{ours}.mlp.expand", f"{theirs}.intermediate.dense")
        yield from layer(f"{ours}.mlp.contract", f"{theirs}.output.dense")


def _hf_swinv2_ignored(config: SwinV2Config) -> Iterator[str]:
    """Yield the tables of indices and coordinates, which older files hold."""
    for _, theirs in _hf_blocks(config, "swinv2"):
        yield f"{theirs}.attention.self.relative_position_index"
        yield f"{theirs}.attention.self.relative_coords_table"


def _torchvision_swin(config: SwinConfig) -> Iterator[Entry]:
    yield from _torchvision_frame(config)
    for ours, theirs in _torchvision_mixers(config):
        yield from layer(f"{ours}.qkv", f"{theirs}.qkv", bias=config.qkv_bias)
        yield same(f"{ours}.relative_bias.table", f"{theirs}.relative_position_bias_table")


def _torchvision_swin_ignored(config: SwinConfig) -> Iterator[str]:
    for _, theirs in _torchvision_mixers(config):
        yield f"{theirs}.relative_position_index"


def _torchvision_frame(config: SwinConfig) -> Iterator[Entry]:
    """Map the tensors that Swin and Swin V2 share: all but those of the attention weights."""
    yield from layer("stem.0", "features.0.0")
    yield from layer("stem.1.norm", "features.0.2")
    for stage in range(1, len(config.depths)):
        ours, theirs = f"stages.{stage}.downsample", f"features.{2 * stage}"
        yield from layer(f"{ours}.norm", f"{theirs}.norm")
        yield from layer(f"{ours}.reduction", f"{theirs}.reduction", bias=False)
    for ours, theirs in _torchvision_blocks(config):
        yield from layer(f"{ours}.mixer_norm", f"{theirs}.norm1")
        yield from layer(f"{ours}.mixer.projection", f"{theirs}.attn.proj")
        yield from layer(f"{ours}.mlp_norm", f"{theirs}.norm2")
        yield from layer(f"{ours}.mlp.expand", f"{theirs}.mlp.0")
        yield from layer(f"{ours}.mlp.contract", f"{theirs}.mlp.3")
    yield from layer("final.norm", "norm")
    yield from layer("head", "head")


def _torchvision_mixers(config: SwinConfig) -> Iterator[tuple[str, str]]:
    """Yield every attention layer, ours and theirs."""
    for ours, theirs in _torchvision_blocks(config):
        yield f"{ours}.mixer", f"{theirs}.attn"


def _torchvision_blocks(config: SwinConfig) -> Iterator[tuple[str, str]]:
    for stage, depth in enumerate(config.depths):
        for index in range(depth):
            yield f"stages.{stage}.blocks.{index}", f"features.{2 * stage + 1}.{index}"


def _torchvision_swinv2(config: SwinV2Config) -> Iterator[Entry]:
    yield from _torchvision_frame(config)
    for ours, theirs in _torchvision_mixers(config):
        yield same(f"{ours}.qkv.weight", f"{theirs}.qkv.weight")
        if config.qkv_bias:
            yield Entry(
                (f"{ours}.query_bias", f"{ours}.value_bias"),
                (f"{theirs}.qkv.bias",),
                _without_key_bias,
                _with_key_bias,
            )
        yield reshaped(f"{ours}.log_scale", f"{theirs}.logit_scale", to_ours=(-1,), to_theirs=(-1, 1, 1))
        yield from layer(f"{ours}.relative_bias.expand", f"{theirs}.cpb_mlp.0")
        yield from layer(f"{ours}.relative_bias.contract", f"{theirs}.cpb_mlp.2", bias=False)


def _torchvision_swinv2_ignored(config: SwinV2Config) -> Iterator[str]:
    for _, theirs in _torchvision_mixers(config):
        yield f"{theirs}.relative_position_index"
        yield f"{theirs}.relative_coords_table"


def _without_key_bias(tensors: list[Tensor]) -> list[Tensor]:
    query, _, value = tensors[0].chunk(3)
    return [query, value]


def _with_key_bias(tensors: list[Tensor]) -> list[Tensor]:
    query, value = tensors
    return [torch.cat((query, torch.zeros_like(query), value))]


TABLES = {
    "timm": {"swin": _timm_swin, "swinv2": _timm_swinv2},
    "hf": {"swin": _hf_swin, "swinv2": _hf_swinv2},
    "torchvision": {"swin": _torchvision_swin, "swinv2": _torchvision_swinv2},
}
IGNORED = {
    "hf": {"swin": _hf_swin_ignored, "swinv2": _hf_swinv2_ignored},
    "torchvision": {"swin": _torchvision_swin_ignored, "swinv2": _torchvision_swinv2_ignored},
}
NAMES = {
    "timm": {
        "swin_tiny_patch4_window7_224": "swin_t",
        "swin_small_patch4_window7_224": "swin_s",
        "swin_base_patch4_window7_224": "swin_b",
        "swin_large_patch4_window7_224": "swin_l",
        "swin_base_patch4_window12_384": "swin_b_384",
        "swin_large_patch4_window12_384": "swin_l_384",
        "swinv2_tiny_window8_256": "swinv2_t",
        "swinv2_tiny_window16_256": "swinv2_t_w16",
        "swinv2_small_window8_256": "swinv2_s",
        "swinv2_small_window16_256": "swinv2_s_w16",
        "swinv2_base_window8_256": "swinv2_b",
        "swinv2_base_window16_256": "swinv2_b_w16",
        "swinv2_base_window12_192": "swinv2_b_w12_192",
        "swinv2_base_window12to16_192to256": "swinv2_b_w12to16",
        "swinv2_base_window12to24_192to384": "swinv2_b_w12to24_384",
        "swinv2_large_window12_192": "swinv2_l_w12_192",
        "swinv2_large_window12to16_192to256": "swinv2_l_w12to16",
        "swinv2_large_window12to24_192to384": "swinv2_l_w12to24_384",
    },
    "hf": {
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
    },
    "torchvision": {
        "swin_t": "swin_t",
        "swin_s": "swin_s",
        "swin_b": "swin_b",
        "swin_v2_t": "swinv2_t",
        "swin_v2_s": "swinv2_s",
        "swin_v2_b": "swinv2_b",
    },
}
