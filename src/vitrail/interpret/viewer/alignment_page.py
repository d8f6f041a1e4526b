"""The attention behind translations: one page on which to look through layers, heads and pieces."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float
from torch import Tensor

from vitrail.interpret.viewer.alignment_plot import Panel, alignment_svg
from vitrail.report.page import write_page

STYLE = Path(__file__).with_name("alignment_page.css").read_text(encoding="utf-8")
SCRIPT = Path(__file__).with_name("alignment_page.js").read_text(encoding="utf-8")
BODY = Path(__file__).with_name("alignment_page.html").read_text(encoding="utf-8")
# Compressed maps of one sentence; a layer that takes more than its share keeps the mean over heads only.
MAX_SENTENCE_BYTES = 2_000_000

Side = Literal["cross", "source", "target"]
"""Who reads whom: the target the source, the source itself, or the target itself."""


@dataclass(frozen=True, kw_only=True)
class AlignedLayer:
    """What one layer attends to while a sentence is translated."""

    name: str
    """What the layer is called."""
    side: Side
    """Who reads whom."""
    weights: Float[Tensor, "heads queries keys"]
    """Share of each key in what each query reads, 0..1."""


@dataclass(frozen=True, kw_only=True)
class AlignedText:
    """A sentence, its translation and all attention between them, as the page needs it."""

    source: str
    """What was translated."""
    target: str
    """What was written."""
    source_pieces: Sequence[str]
    """The subwords that were read, with the end."""
    written_pieces: Sequence[str]
    """The subwords that were written, with the end; what asks in the target's layers."""
    read_pieces: Sequence[str]
    """What the target reads of itself: the begin, and all that was written but for the end."""
    layers: Sequence[AlignedLayer]
    """The layers in the order in which they run; at least one."""
    first_shown: int
    """The layer that is shown first."""
    note: str = ""
    """Why that one is shown first; plain text."""

    def pieces_of(self, side: Side) -> tuple[Sequence[str], Sequence[str]]:
        """Return the pieces that ask and those that are read, rows and columns of a side's maps."""
        if side == "cross":
            return self.written_pieces, self.source_pieces
        if side == "source":
            return self.source_pieces, self.source_pieces
        return self.written_pieces, self.read_pieces

    def panel(self, layer: int | None = None, head: int | None = None, *, title: str = "") -> Panel:
        """Return a map to draw.

        Args:
            layer: place among the layers; the one shown first by default.
            head: index of the head; None means the mean over heads.
            title: stands above it.
        """
        chosen = self.layers[self.first_shown if layer is None else layer]
        weights = chosen.weights.mean(dim=0) if head is None else chosen.weights[head]
        return Panel(title, weights, *self.pieces_of(chosen.side))


def write_alignment_page(path: Path, texts: Sequence[AlignedText], *, title: str = "Alignment") -> None:
    """Write one file on which a reader chooses layers and heads, and hovers over rows.

    Args:
        path: the HTML file.
        texts: what is shown, at least one; each adds at most about 3 MB to the page.
        title: plain text.

    Raises:
        CheckpointError: the disk is full or not writable; a former page is as it was.
    """
    # "</script" or "<!--" inside a string would end or change the script element that holds the data.
    data = json.dumps({"texts": [text_data(text) for text in texts]}).replace("<", "\\u003c")
    stills = "".join(
        f"<figure>{alignment_svg(f'alignment {number}', text.panel())}"
        f"<figcaption>{escape(text.source)}<br>{escape(text.target)}</figcaption></figure>"
        for number, text in enumerate(texts, start=1)
    )
    body = BODY.replace("{{title}}", escape(title)).replace("{{stills}}", stills)
    data_element = f'<script type="application/json" id="data">{data}</script>'
    write_page(path, title=title, body=body + data_element, style=STYLE, script=SCRIPT)


def text_data(text: AlignedText) -> dict[str, object]:
    """Return what the page's script reads of one sentence, as JSON values."""
    max_bytes = MAX_SENTENCE_BYTES // len(text.layers)
    return {
        "source": text.source,
        "target": text.target,
        "pieces": {
            "source": list(text.source_pieces),
            "written": list(text.written_pieces),
            "read": list(text.read_pieces),
        },
        "layers": [_layer_data(layer, max_bytes) for layer in text.layers],
        "firstShown": text.first_shown,
        "note": text.note,
    }


def _layer_data(layer: AlignedLayer, max_bytes: int) -> dict[str, object]:
    weights = layer.weights.detach().float().cpu()
    heads = _encode(weights)
    has_heads = len(heads) * 3 // 4 <= max_bytes
    return {
        "name": layer.name,
        "side": layer.side,
        "numHeads": len(weights) if has_heads else 0,
        "mean": _encode(weights.mean(dim=0)),
        "heads": heads if has_heads else None,
    }


def _encode(weights: Tensor) -> str:
    """Store weights of 0..1 by their root in a byte each, so that small ones keep their digits."""
    roots = np.round(np.sqrt(np.clip(weights.numpy(), 0, 1)) * 255).astype(np.uint8)
    return base64.b64encode(zlib.compress(np.ascontiguousarray(roots).tobytes(), 9)).decode()
