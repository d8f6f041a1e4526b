"""The explanation of images: one page on which to look through layers, heads and patches."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vitrail.interpret.draw import colour_table
from vitrail.report.page import picture_uri, write_page

STYLE = Path(__file__).with_name("explain_page.css").read_text(encoding="utf-8")
SCRIPT = Path(__file__).with_name("explain_page.js").read_text(encoding="utf-8")
BODY = Path(__file__).with_name("explain_page.html").read_text(encoding="utf-8")
MAX_PATCH_BYTES = 1_500_000  # compressed attention of one image; beyond it only the mean over heads is kept
LONGEST_PX = 640


@dataclass(frozen=True, kw_only=True)
class ExplainedAttention:
    """All attention of one image, as the page needs it; maps leave the prefix tokens out."""

    name: str
    """File name, or another name for the image."""
    picture: Image.Image
    """The image as the model saw it."""
    overlay: Image.Image
    """Rollout over the image, shown where scripts are switched off."""
    scores: Sequence[tuple[str, float]]
    """The most probable classes with their probabilities."""
    layer_names: Sequence[str]
    """One name for each layer."""
    reader_name: str
    """Which row the classifier reads, such as ``class token``."""
    read: Float[Tensor, "layers heads rows columns"]
    """What the classifier's row of each layer and head attends to."""
    read_rollout: Float[Tensor, "rows columns"]
    """The classifier's row of the rollout."""
    patches: Float[Tensor, "layers heads patches patches"]
    """What each patch attends to, in each layer and head."""
    patches_rollout: Float[Tensor, "patches patches"]
    """What each patch stems from, by rollout."""


def write_explain_page(path: Path, images: Sequence[ExplainedAttention], *, title: str = "Attention") -> None:
    """Write one file on which a reader hovers over patches and chooses layers and heads.

    Args:
        path: the HTML file.
        images: what is shown; each adds at most about 2 MB to the page.
        title: plain text.
    """
    data = {
        "colours": _encode(colour_table()),
        "images": [_image_data(image) for image in images],
    }
    # "</script" or "<!--" inside a string would end or change the script element that holds the data.
    text = json.dumps(data).replace("<", "\\u003c")
    stills = "".join(
        f'<figure><img src="{picture_uri(image.overlay, longest=320)}" '
        f'alt="attention over {escape(image.name)}">'
        f"<figcaption>{escape(image.name)}</figcaption></figure>"
        for image in images
    )
    body = BODY.replace("{{title}}", escape(title)).replace("{{stills}}", stills)
    data_element = f'<script type="application/json" id="data">{text}</script>'
    write_page(path, title=title, body=body + data_element, style=STYLE, script=SCRIPT)


def _image_data(image: ExplainedAttention) -> dict[str, object]:
    fused = image.patches.float().mean(dim=1, keepdim=True)
    has_heads = True
    patches = _encode(_quantise(np.concatenate([fused.numpy(), image.patches.numpy()], axis=1)))
    if len(patches) * 3 // 4 > MAX_PATCH_BYTES:
        has_heads = False
        patches = _encode(_quantise(fused.numpy()))
    read = image.read.flatten(-2).float()
    read_all = np.concatenate([read.mean(dim=1, keepdim=True).numpy(), read.numpy()], axis=1)
    return {
        "name": image.name,
        "picture": picture_uri(image.picture, longest=LONGEST_PX),
        "width": image.picture.width,
        "height": image.picture.height,
        "scores": [[name, round(probability, 4)] for name, probability in image.scores],
        "layers": list(image.layer_names),
        "heads": image.read.shape[1],
        "grid": list(image.read.shape[-2:]),
        "reader": image.reader_name,
        "hasHeads": has_heads,
        "read": _encode(_quantise(read_all)),
        "readRollout": _encode(_quantise(image.read_rollout.flatten().numpy())),
        "patches": patches,
        "patchesRollout": _encode(_quantise(image.patches_rollout.numpy())),
    }


def _quantise(rows: np.ndarray) -> np.ndarray:
    """Scale each row to 0..255, its smallest value to 0 and its largest to 255: what a heat map shows."""
    low = rows.min(axis=-1, keepdims=True)
    spread = np.maximum(rows.max(axis=-1, keepdims=True) - low, 1e-12)
    return np.round((rows - low) / spread * 255).astype(np.uint8)


def _encode(values: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(values).tobytes(), 9)).decode()
