"""The HTML page of explanations: browse layers, heads and what they attend to."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, UInt8
from torch import Tensor

from vitrail.core.durable import atomic_write
from vitrail.interpret.draw import colour_of, colour_table, hex_colour
from vitrail.interpret.record import AttentionMap
from vitrail.interpret.viewer.maps import READER_NAMES, Boxes, Grid, Maps, Side, Tokens, layer_titles
from vitrail.interpret.viewer.picture import still_html
from vitrail.report.page import page_html, picture_uri

if TYPE_CHECKING:
    from vitrail.interpret.viewer.explanation import Explanation

STYLE = Path(__file__).with_name("viewer.css").read_text(encoding="utf-8")
SCRIPT = Path(__file__).with_name("viewer.js").read_text(encoding="utf-8")
BODY = Path(__file__).with_name("viewer.html").read_text(encoding="utf-8")
# Compressed maps of one explanation. Each layer has an equal share; above it, a layer keeps only its
# head-averaged map. Nothing else is dropped.
MAX_BYTES = 2_000_000
LONGEST_PX = 640  # of a picture on a page
ONE_LAYER = ("rollout",)  # one-head maps, whose mean is all there is


def is_page(path: Path) -> bool:
    """Return whether a file name is a page's."""
    return path.suffix.lower() in (".html", ".htm")


def write_explanations(path: Path, explanations: Sequence[Explanation], *, title: str | None = None) -> None:
    """Write one self-contained file; each explanation adds at most about 3 MB.

    Args:
        title: plain text; by default the first explanation's.

    Raises:
        CheckpointError: the disk is full or not writable; a former page is as it was.
    """
    atomic_write(path, explanations_html(explanations, title=title))


def explanations_html(explanations: Sequence[Explanation], *, title: str | None = None) -> str:
    """Return the page that ``write_explanations`` writes."""
    if title is None:
        name = explanations[0].name
        title = f"{explanations[0].title}: {Path(name).name}" if explanations[0].picture else name
    stills = "".join(still_html(each, number) for number, each in enumerate(explanations, start=1))
    body = BODY.replace("{{title}}", escape(title)).replace("{{stills}}", stills)
    body += data_element([explanation_data(each) for each in explanations])
    return page_html(title=title, body=body, style=STYLE, script=SCRIPT)


def data_element(explanations: Sequence[dict[str, Any]] = ()) -> str:
    """Return a page element with the script's data and the colour map."""
    # "</script" or "<!--" inside a string would end or change the script element that holds the data.
    content = {"colours": _encode(colour_table()), "explanations": list(explanations)}
    text = json.dumps(content).replace("<", "\\u003c")
    return f'<script type="application/json" id="data">{text}</script>'


def explanation_data(explanation: Explanation, max_bytes: int | None = None) -> dict[str, Any]:
    """Return the script's data of one explanation, as JSON values.

    Args:
        max_bytes: of its compressed maps; by default ``MAX_BYTES``.
    """
    parts = explanation.parts_on_page
    share = (MAX_BYTES if max_bytes is None else max_bytes) // max(1, sum(len(part.shown) for part in parts))
    views = [_view_data(part, share) for part in parts]
    views += [
        _class_data(method, name, explanation.relevance(method, class_name=name))
        for method, name in explanation.class_maps
    ]
    first = explanation.first or (explanation.default_method if explanation.reads_patches else "")
    picture = explanation.picture
    return {
        "name": explanation.name,
        "title": explanation.title,
        "picture": None if picture is None else picture_uri(picture, longest=LONGEST_PX),
        "width": 0 if picture is None else picture.width,
        "height": 0 if picture is None else picture.height,
        "scores": [[name, round(probability, 4)] for name, probability in explanation.scores],
        "views": views,
        "beams": [
            [[*each._replace(log_probability=round(each.log_probability, 2))] for each in beam]
            for beam in explanation.beams
        ],
        "first": next((index for index, view in enumerate(views) if view["name"] == first), 0),
    }


def _view_data(maps: Maps, max_layer_bytes: int) -> dict[str, Any]:
    layers = [
        _layer_data(maps, recorded, title, 0 if maps.name in ONE_LAYER else max_layer_bytes)
        for recorded, title in zip(maps.shown, layer_titles(maps.shown), strict=True)
    ]
    return {
        "name": maps.name,
        "title": maps.title,
        "queries": _side_data(maps.queries),
        "keys": _side_data(maps.keys),
        "layers": layers,
        "first": maps.first % len(maps.shown),
        "note": maps.note,
        "steps": list(maps.steps),
    }


def _side_data(side: Side) -> dict[str, Any]:
    if isinstance(side, Grid):
        return {"kind": side.kind}
    data: dict[str, Any] = {"kind": side.kind, "texts": list(side.texts)}
    if isinstance(side, Boxes):
        data["corners"] = [[round(corner, 5) for corner in corners] for corners in side.corners]
        data["colours"] = [hex_colour(colour_of(label)) for label in side.labels]
    return data


def _layer_data(maps: Maps, recorded: AttentionMap, title: str, max_bytes: int) -> dict[str, Any]:
    weights = maps.between_sides(recorded).detach().float().cpu().numpy()
    # Heads of a layer share their colours, and so do words. Patches and boxes are too unequal.
    is_words = isinstance(maps.queries, Tokens)
    rows = {"mean": (weights.mean(axis=0), (0,) * is_words), "heads": (weights, (0, 1)[: 1 + is_words])}
    data: dict[str, Any] = {
        "name": recorded.layer,
        "title": title,
        "grid": recorded.grid,
        "queryGrid": recorded.query_grid,
        "reader": None if maps.reader is None else READER_NAMES[maps.reader_of(recorded)],
    }
    if maps.reader is not None:
        read = maps.read(recorded.weights[0], recorded).float().numpy()
        rows |= {"readMean": (read.mean(axis=0), ()), "readHeads": (read, (0,))}
    # A weight between tokens is shown as a number.
    data |= _encoded_rows(rows, num_heads=len(weights), are_numbers=isinstance(maps.keys, Tokens))
    if not 0 < (len(data["mean"]) + len(data["heads"])) * 3 // 4 <= max_bytes:
        data["heads"] = None
    return data


def _class_data(method: str, class_name: str, values: Float[Tensor, "rows columns"]) -> dict[str, Any]:
    """Return a class-specific map as a layer without heads and queries."""
    words = "gradient times input" if method == "gradient_input" else method.replace("_", " ")
    rows = {"readMean": (values.clamp(min=0).flatten().float().numpy(), ())}
    layer = {"name": method, "title": words, "grid": list(values.shape), "queryGrid": None}
    return {
        "name": method,
        "className": class_name,
        "title": f"{words}: {class_name}",
        "queries": None,
        "keys": {"kind": "grid"},
        "layers": [layer | {"reader": class_name} | _encoded_rows(rows)],
        "first": 0,
        "note": "",
        "steps": [],
    }


def _encoded_rows(
    rows: Mapping[str, tuple[np.ndarray, tuple[int, ...]]], *, num_heads: int = 0, are_numbers: bool = False
) -> dict[str, Any]:
    """Encode the rows of a layer, each with the axes that share one scale; what a layer lacks is None."""
    encoded = {
        name: _encode(roots(values) if are_numbers else quantise(values, shared))
        for name, (values, shared) in rows.items()
    }
    scales = {name: _scale(values, shared) for name, (values, shared) in rows.items()}
    fields = dict.fromkeys(("mean", "heads", "readMean", "readHeads"))
    return {"numHeads": num_heads, "scales": scales, **fields, **encoded}


def quantise(
    rows: Float[np.ndarray, "*rows keys"], shared: tuple[int, ...] = ()
) -> UInt8[np.ndarray, "*rows keys"]:
    """Scale each row from its minimum to its maximum to 0..255, as a heat map shows it.

    Args:
        shared: axes along which rows share one scale, which includes zero.
    """
    low, high = _limits(rows, shared)
    return np.round((rows - low) / np.maximum(high - low, 1e-12) * 255).astype(np.uint8)


def _limits(rows: np.ndarray, shared: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    low, high = (of(axis=(*shared, -1), keepdims=True) for of in (rows.min, rows.max))
    return np.minimum(low, 0) if shared else low, high


def _scale(rows: np.ndarray, shared: tuple[int, ...]) -> list[float] | None:
    """Return the limits of the colours; None where rows have their own."""
    low, high = _limits(rows, shared)
    return [float(f"{limit.item():.3g}") for limit in (low, high)] if low.size == 1 else None


def roots(weights: Float[np.ndarray, "*rows keys"]) -> UInt8[np.ndarray, "*rows keys"]:
    """Store weights of 0..1 as square roots in one byte, so that small ones keep precision."""
    return np.round(np.sqrt(np.clip(weights, 0, 1)) * 255).astype(np.uint8)


def _encode(values: UInt8[np.ndarray, "*axes"]) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(values).tobytes(), 9)).decode()
