"""CLIP of open_clip: named as by its authors, the text tower with a name of its own in newer files."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.models.clip import CLIPConfig
from vitrail.models.weights.openai.clip import entries
from vitrail.models.weights.table import Entry


def entries_of_named_text(config: CLIPConfig) -> Iterator[Entry]:
    """Name every tensor of a ``CustomTextCLIP``."""
    yield from entries(config, text="text.")


def ignored(config: CLIPConfig) -> tuple[str, ...]:
    """Name the masks of texts, which are computed."""
    return "attn_mask", "text.attn_mask"


TABLES = {"clip": entries}
OTHER_TABLES = {"clip": [entries_of_named_text]}
IGNORED = {"clip": ignored}
NAMES = {  # of those with the quick form of GELU, as the variants of ours have it
    "ViT-B-32-quickgelu": "clip_b32",
    "ViT-B-16-quickgelu": "clip_b16",
    "ViT-L-14-quickgelu": "clip_l14",
    "ViT-L-14-336-quickgelu": "clip_l14_336",
}
