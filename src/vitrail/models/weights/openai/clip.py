"""CLIP as its authors published it: products from the right, text beside a tower called ``visual``."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.core.errors import ConfigError
from vitrail.models.clip import CLIPConfig
from vitrail.models.weights.table import Entry, layer, rows, same


def entries(config: CLIPConfig, *, text: str = "") -> Iterator[Entry]:
    """Name every tensor of a model with a Vision Transformer.

    Args:
        config: settings of the model.
        text: what the names of the text tower's tensors begin with.

    Raises:
        ConfigError: the model has another image tower.
    """
    refuse_other_towers(config)
    yield rows("image.prefix", ["visual.class_embedding"], to_theirs=(config.image_width,))
    yield same("image.positions.table", "visual.positional_embedding")
    yield same("image.stem.weight", "visual.conv1.weight")
    yield from layer("image.input_norm", "visual.ln_pre")
    yield from _blocks("image", "visual.", config.image_depth)
    yield from layer("image.norm", "visual.ln_post")
    yield transposed("image.head.weight", "visual.proj")
    yield same("text.table.weight", f"{text}token_embedding.weight")
    yield same("text.positions.table", f"{text}positional_embedding")
    yield from _blocks("text", text, config.text_depth)
    yield from layer("text.norm", f"{text}ln_final")
    yield transposed("text.projection.weight", f"{text}text_projection")
    yield same("logit_scale", "logit_scale")


def transposed(ours: str, theirs: str) -> Entry:
    """Relate a matrix to its transpose."""
    return Entry(
        (ours,), (theirs,), lambda tensors: [tensors[0].mT], lambda tensors: [tensors[0].mT.contiguous()]
    )


def refuse_other_towers(config: CLIPConfig) -> None:
    """Refuse a model whose image tower is not CLIP's own.

    Raises:
        ConfigError: it is another image model.
    """
    if config.image_model is not None:
        raise ConfigError(
            f"published weights were to be related to a CLIP whose image tower is {config.image_model}",
            expected="image_model null, CLIP's own Vision Transformer",
            remedy="Name a published model, such as clip_b32",
        )


def ignored(config: CLIPConfig) -> tuple[str, ...]:
    """Name the sizes that the published programs carry beside their weights."""
    return "input_resolution", "context_length", "vocab_size"


TABLES = {"clip": entries}
IGNORED = {"clip": ignored}
NAMES = {
    "ViT-B/32": "clip_b32",
    "ViT-B/16": "clip_b16",
    "ViT-L/14": "clip_l14",
    "ViT-L/14@336px": "clip_l14_336",
}


def _blocks(ours: str, theirs: str, depth: int) -> Iterator[Entry]:
    for index in range(depth):
        block, published = f"{ours}.blocks.{index}", f"{theirs}transformer.resblocks.{index}"
        yield from layer(f"{block}.mixer_norm", f"{published}.ln_1")
        for name in ("weight", "bias"):
            yield same(f"{block}.mixer.qkv.{name}", f"{published}.attn.in_proj_{name}")
        yield from layer(f"{block}.mixer.projection", f"{published}.attn.out_proj")
        yield from layer(f"{block}.mlp_norm", f"{published}.ln_2")
        yield from layer(f"{block}.mlp.expand", f"{published}.mlp.c_fc")
        yield from layer(f"{block}.mlp.contract", f"{published}.mlp.c_proj")
