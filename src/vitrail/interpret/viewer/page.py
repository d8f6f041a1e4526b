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

from vitrail.interpret.draw import LEAST_BRIGHT, NEARLY_EVEN, colour_of, colour_table, hex_colour, times_even
from vitrail.interpret.record import AttentionMap
from vitrail.interpret.viewer.maps import (
    LOST,
    READER_NAMES,
    Boxes,
    Grid,
    Heat,
    Maps,
    Side,
    Tokens,
    layer_titles,
)
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


def is_page(path: Path) -> bool:
    """Return whether a file name is a page's."""
    return path.suffix.lower() in (".html", ".htm")


def explanations_html(explanations: Sequence[Explanation]) -> str:
    """Return one self-contained page; each explanation adds at most about 3 MB."""
    first = explanations[0]
    title = f"{first.title}: {Path(first.name).name}" if first.picture else first.name
    if len(explanations) > 1:
        title = f"{len(explanations)} {'images' if first.picture else 'sentences'}"
    stills = "".join(still_html(each, number) for number, each in enumerate(explanations, start=1))
    body = BODY.replace("{{title}}", escape(title)).replace("{{stills}}", stills)
    body += data_element([explanation_data(each) for each in explanations])
    return page_html(title=title, body=body, style=STYLE, script=SCRIPT)


def data_element(explanations: Sequence[dict[str, Any]] = ()) -> str:
    """Return a page element with the script's data and the colour map."""
    # "</script" or "<!--" inside a string would end or change the script element that holds the data.
    content = {
        "colours": _encode(colour_table()),
        "leastBright": LEAST_BRIGHT,
        "nearlyEven": NEARLY_EVEN,
        "explanations": list(explanations),
    }
    text = json.dumps(content).replace("<", "\\u003c")
    return f'<script type="application/json" id="data">{text}</script>'


def explanation_data(explanation: Explanation, max_bytes: int | None = None) -> dict[str, Any]:
    """Return the script's data of one explanation, as JSON values; ``max_bytes`` is of compressed maps."""
    parts = explanation.parts_on_page
    share = (max_bytes or MAX_BYTES) // max(1, sum(len(part.shown) for part in parts))
    views = [_view_data(part, share) for part in parts]
    views += [
        _class_data(method, name, explanation.heat(method, class_name=name))
        for method, name in explanation.class_maps
    ]
    first = explanation.first or (explanation.default_method if explanation.reads_patches else "")
    picture = explanation.picture
    return {
        "name": explanation.name,
        "title": explanation.title,
        "picture": None if picture is None else picture_uri(picture, longest=LONGEST_PX),
        "crop": explanation.crop,
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
        _layer_data(maps, recorded, title, 0 if maps.name == "rollout" else max_layer_bytes)
        for recorded, title in zip(maps.shown, layer_titles(maps.shown), strict=True)
    ]
    return {
        "name": maps.name,
        "title": maps.title,
        "queries": _side_data(maps.queries),
        "keys": _side_data(maps.keys),
        "layers": layers,
        "first": maps.place(None),
        "firstHead": 0 if maps.first_head is None else maps.first_head + 1,
        "note": maps.note,
        "steps": list(maps.steps),
    }


def _side_data(side: Side) -> dict[str, Any]:
    if isinstance(side, Grid):
        return {"kind": side.kind}
    data: dict[str, Any] = {"kind": side.kind, "texts": list(side.texts)}
    if isinstance(side, Boxes):
        data["corners"] = [[round(corner, 5) for corner in box.corners] for box in side.drawn]
        data["colours"] = [hex_colour(colour_of(box.label)) for box in side.drawn]
    return data


def _layer_data(maps: Maps, recorded: AttentionMap, title: str, max_bytes: int) -> dict[str, Any]:
    weights = maps.between_sides(recorded).detach().float().cpu()
    rows = {"mean": weights.mean(dim=0), "heads": weights}
    data: dict[str, Any] = {
        "title": title,
        "grid": recorded.grid,
        "queryGrid": recorded.query_grid,
        "reader": None if maps.reader is None else READER_NAMES[maps.reader_of(recorded)],
    }
    if maps.reader is not None:
        read = maps.read(recorded.weights[0], recorded).float().cpu()
        rows |= {"readMean": read.mean(dim=0), "readHeads": read}
    is_masked, are_numbers = recorded.kind == "self", isinstance(maps.keys, Tokens)
    stored = {
        name: (roots(values.numpy()), 0.0)
        if are_numbers
        else doublings(times_even(values, is_masked=is_masked).numpy())
        for name, values in rows.items()
    }
    data |= _fields(stored, len(weights))
    if not 0 < (len(data["mean"]) + len(data["heads"])) * 3 // 4 <= max_bytes:
        data["heads"] = None
    return data


def _class_data(method: str, class_name: str, heat: Heat) -> dict[str, Any]:
    """Return a class-specific map as a layer without heads and queries."""
    values, said = heat.values.flatten().float().numpy(), heat.said
    stored = doublings(values)
    if heat.noun == LOST:
        stored = np.round(values / heat.limits[1] * 255).astype(np.uint8), 0.0
        said += f". Bright: {heat.limits[1]:.0%}"
    layer = {"title": heat.title, "grid": list(heat.values.shape), "queryGrid": None, "reader": None}
    return {
        "name": method,
        "className": class_name,
        "title": heat.title,
        "queries": None,
        "keys": {"kind": "grid"},
        "layers": [layer | _fields({"readMean": stored})],
        "said": said,
        "first": 0,
        "note": "",
        "steps": [],
    }


def _fields(rows: Mapping[str, tuple[np.ndarray, float]], num_heads: int = 0) -> dict[str, Any]:
    """Encode the rows of a layer, and the doublings that 255 stands for; what a layer lacks is None."""
    fields = dict.fromkeys(("mean", "heads", "readMean", "readHeads"))
    encoded = {name: _encode(values) for name, (values, _) in rows.items()}
    tops = {name: round(top, 5) for name, (_, top) in rows.items()}
    return {"numHeads": num_heads, "tops": tops, **fields, **encoded}


def doublings(times: Float[np.ndarray, "*rows keys"]) -> tuple[UInt8[np.ndarray, "*rows keys"], float]:
    """Store multiples of even attention as logarithms in one byte, less than even as 0.

    Returns:
        The bytes, and the logarithm to base 2 that 255 stands for.
    """
    logarithms = np.log2(np.maximum(times, 1.0))
    top = max(float(logarithms.max(initial=0.0)), 1e-3)
    return np.round(logarithms / top * 255).astype(np.uint8), top


def roots(weights: Float[np.ndarray, "*rows keys"]) -> UInt8[np.ndarray, "*rows keys"]:
    """Store weights of 0..1 as square roots in one byte, so that small ones keep precision."""
    return np.round(np.sqrt(np.clip(weights, 0, 1)) * 255).astype(np.uint8)


def _encode(values: UInt8[np.ndarray, "*axes"]) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(values).tobytes(), 9)).decode()
