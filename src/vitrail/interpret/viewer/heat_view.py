"""What pages share that lay heat over a picture: style, script, and attention packed for the script."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8
from torch import Tensor

from vitrail.interpret.draw import colour_table

STYLE = Path(__file__).with_name("explain_page.css").read_text(encoding="utf-8")
SCRIPT = Path(__file__).with_name("heat_view.js").read_text(encoding="utf-8")
LONGEST_PX = 640  # of a picture on a page


def data_element(content: Mapping[str, object]) -> str:
    """Write what a page's script reads, with the colours of heat, as an element of the page."""
    # "</script" or "<!--" inside a string would end or change the script element that holds the data.
    text = json.dumps({"colours": encode(colour_table())} | dict(content)).replace("<", "\\u003c")
    return f'<script type="application/json" id="data">{text}</script>'


def pack_heads(weights: Float[Tensor, "heads queries keys"], max_bytes: int) -> dict[str, object]:
    """Pack what each query attends to: the mean over heads, and each head where all take no more bytes.

    Args:
        weights: in any unit; each row is scaled by itself.
        max_bytes: what mean and heads may take together; 0 leaves single heads out.
    """
    mean = encode(quantise(weights.float().mean(dim=0, keepdim=True).numpy()))
    heads = encode(quantise(weights.float().numpy())) if max_bytes else ""
    has_heads = 0 < (len(mean) + len(heads)) * 3 // 4 <= max_bytes
    return {"numHeads": len(weights), "mean": mean, "heads": heads if has_heads else None}


def quantise(rows: Float[np.ndarray, "*rows keys"]) -> UInt8[np.ndarray, "*rows keys"]:
    """Scale each row to 0..255, its smallest value to 0 and its largest to 255: what a heat map shows."""
    low = rows.min(axis=-1, keepdims=True)
    spread = np.maximum(rows.max(axis=-1, keepdims=True) - low, 1e-12)
    return np.round((rows - low) / spread * 255).astype(np.uint8)


def encode(values: UInt8[np.ndarray, "*axes"]) -> str:
    """Compress bytes and write them as letters."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(values).tobytes(), 9)).decode()
