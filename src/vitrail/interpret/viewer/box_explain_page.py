"""The explanation of detections: one page on which to look through boxes, layers, heads and places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vitrail.interpret.box_drawing import colour_of, hex_colour
from vitrail.interpret.viewer import heat_view
from vitrail.interpret.viewer.heat_view import LONGEST_PX, data_element, pack_heads
from vitrail.report.page import picture_uri, write_page

STYLE = Path(__file__).with_name("box_explain_page.css").read_text(encoding="utf-8")
SCRIPT = Path(__file__).with_name("box_explain_page.js").read_text(encoding="utf-8")
BODY = Path(__file__).with_name("box_explain_page.html").read_text(encoding="utf-8")
LEVELS_NOTE = " Levels are maps of the image, of which level 0 has the finest cells."
# Compressed attention of one image; a layer that takes more than its share keeps the mean over heads only.
MAX_BYTES = 1_500_000


@dataclass(frozen=True, kw_only=True)
class ExplainedBox:
    """One detection."""

    corners: tuple[float, float, float, float]
    """Left, top, right and bottom as shares of the image's width and height."""
    text: str
    """Its class and score."""
    label: int
    """Its class, which tells the colour."""


@dataclass(frozen=True, kw_only=True)
class BoxLayer:
    """What one layer, or one level of it, attends to; of boxes, or of the places of an image."""

    name: str
    """What it is called."""
    weights: Float[Tensor, "heads queries keys"]
    """Share of each cell of the grid; the queries are the boxes, or the cells of the grid of queries."""
    grid: tuple[int, int]
    """Rows and columns of the keys."""
    query_grid: tuple[int, int] | None = None
    """Rows and columns of the asking places; None where boxes ask."""


@dataclass(frozen=True, kw_only=True)
class ExplainedDetections:
    """All that the page shows of one image."""

    name: str
    """File name, or another name for the image."""
    picture: Image.Image
    """The image as the model saw it."""
    still: Image.Image
    """What is shown where scripts are switched off."""
    boxes: Sequence[ExplainedBox]
    """The detections, the best first; at least one."""
    box_layers: Sequence[BoxLayer]
    """Of the decoder, first to last, with a query for each box; what is shown first is the last."""
    place_layers: Sequence[BoxLayer] = ()
    """Of the encoder, first to last; empty where it does not attend over the whole image."""


def write_box_explain_page(
    path: Path, images: Sequence[ExplainedDetections], *, title: str = "Detections"
) -> None:
    """Write one file on which a reader chooses boxes and places and sees what they attend to.

    Args:
        path: the HTML file.
        images: what is shown; each adds at most about 4 MB to the page.
        title: plain text.

    Raises:
        CheckpointError: the disk is full or not writable; a former page is as it was.
    """
    stills = "".join(
        f'<figure><img src="{picture_uri(image.still, longest=320)}" alt="boxes in {escape(image.name)}">'
        f"<figcaption>{escape(image.name)}: {escape(', '.join(box.text for box in image.boxes))}</figcaption>"
        "</figure>"
        for image in images
    )
    has_levels = any("level" in layer.name for image in images for layer in image.box_layers)
    body = BODY.replace("{{title}}", escape(title)).replace("{{stills}}", stills)
    body = body.replace("{{levels}}", LEVELS_NOTE if has_levels else "")
    body += data_element({"images": [image_data(image) for image in images]})
    style, script = heat_view.STYLE + STYLE, heat_view.SCRIPT + SCRIPT
    write_page(path, title=title, body=body, style=style, script=script)


def image_data(image: ExplainedDetections, max_bytes: int | None = None) -> dict[str, object]:
    """Return what the page's script reads of one image, as JSON values.

    Args:
        image: what is shown.
        max_bytes: what the attention of boxes, and that of places, may take, compressed; 1.5 MB by default.
    """
    max_bytes = MAX_BYTES if max_bytes is None else max_bytes
    return {
        "name": image.name,
        "picture": picture_uri(image.picture, longest=LONGEST_PX),
        "width": image.picture.width,
        "height": image.picture.height,
        "boxes": [
            {
                "corners": [round(corner, 5) for corner in box.corners],
                "text": box.text,
                "colour": hex_colour(colour_of(box.label)),
            }
            for box in image.boxes
        ],
        "boxLayers": _layers_data(image.box_layers, max_bytes),
        "placeLayers": _layers_data(image.place_layers, max_bytes),
    }


def _layers_data(layers: Sequence[BoxLayer], max_bytes: int) -> list[dict[str, object]]:
    return [
        {
            "name": layer.name,
            "grid": list(layer.grid),
            "queryGrid": None if layer.query_grid is None else list(layer.query_grid),
            **pack_heads(layer.weights, max_bytes // len(layers)),
        }
        for layer in layers
    ]
