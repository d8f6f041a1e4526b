"""The explanation of images: one page on which to look through layers, heads and patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vitrail.interpret.viewer import heat_view
from vitrail.interpret.viewer.heat_view import LONGEST_PX, data_element, encode, pack_heads, quantise
from vitrail.report.page import picture_uri, write_page

SCRIPT = Path(__file__).with_name("explain_page.js").read_text(encoding="utf-8")
BODY = Path(__file__).with_name("explain_page.html").read_text(encoding="utf-8")
# Compressed attention of one image; a layer that takes more than its share keeps the mean over heads only.
MAX_PATCH_BYTES = 1_500_000


@dataclass(frozen=True, kw_only=True)
class ExplainedLayer:
    """What one layer attends to, on its own grids; the prefix tokens are left out."""

    name: str
    """What the layer is called."""
    reader_name: str
    """Which row stands for the whole layer, such as ``class token``."""
    read: Float[Tensor, "heads rows columns"]
    """What that row of each head attends to, on the grid of the keys."""
    patches: Float[Tensor, "heads queries keys"]
    """What each patch attends to, in each head."""
    query_grid: tuple[int, int]
    """Rows and columns of the asking patches."""


@dataclass(frozen=True, kw_only=True)
class ExplainedClass:
    """What one class draws from each place of the image, by one method."""

    method: str
    """Name of the method."""
    class_name: str
    """The class."""
    values: Float[Tensor, "rows columns"]
    """From 0, in any unit."""


@dataclass(frozen=True, kw_only=True)
class ExplainedAttention:
    """All attention of one image, as the page needs it."""

    name: str
    """File name, or another name for the image."""
    picture: Image.Image
    """The image as the model saw it."""
    overlay: Image.Image
    """What the page shows first, for readers who have switched scripts off."""
    scores: Sequence[tuple[str, float]]
    """The most probable classes with their probabilities."""
    layers: Sequence[ExplainedLayer]
    """The layers, first to last."""
    rollout: ExplainedLayer | None
    """Rollout as if it were a layer of one head; None where the layers do not share one set of tokens."""
    of_class: Sequence[ExplainedClass] = ()
    """What a class draws from each place."""
    first: str = ""
    """The method that is shown first; rollout, or else attention, where it is empty."""


def write_explain_page(path: Path, images: Sequence[ExplainedAttention], *, title: str = "Attention") -> None:
    """Write one file on which a reader hovers over patches and chooses layers and heads.

    Args:
        path: the HTML file.
        images: what is shown; each adds at most about 2 MB to the page.
        title: plain text.
    """
    stills = "".join(
        f'<figure><img src="{picture_uri(image.overlay, longest=320)}" '
        f'alt="attention over {escape(image.name)}">'
        f"<figcaption>{escape(image.name)}: {_first_shown(image)}</figcaption></figure>"
        for image in images
    )
    body = BODY.replace("{{title}}", escape(title)).replace("{{stills}}", stills)
    body += data_element({"images": [image_data(image) for image in images]})
    write_page(path, title=title, body=body, style=heat_view.STYLE, script=heat_view.SCRIPT + SCRIPT)


def image_data(image: ExplainedAttention, max_bytes: int | None = None) -> dict[str, object]:
    """Return what the page's script reads of one image, as JSON values.

    Args:
        image: what is shown.
        max_bytes: what the attention of its patches may take, compressed; 1.5 MB by default.
    """
    max_bytes = (MAX_PATCH_BYTES if max_bytes is None else max_bytes) // max(1, len(image.layers))
    readers = dict.fromkeys(layer.reader_name for layer in image.layers)
    return {
        "name": image.name,
        "picture": picture_uri(image.picture, longest=LONGEST_PX),
        "width": image.picture.width,
        "height": image.picture.height,
        "scores": [[name, round(probability, 4)] for name, probability in image.scores],
        "reader": " or ".join(readers),
        "layers": [_layer_data(layer, max_bytes) for layer in image.layers],
        "rollout": None if image.rollout is None else _layer_data(image.rollout, 0),
        "ofClass": [_class_data(each) for each in image.of_class],
        "first": image.first,
    }


def _class_data(of_class: ExplainedClass) -> dict[str, object]:
    """Return what the script reads of a class, as if it were a layer without heads."""
    grid = list(of_class.values.shape)
    return {
        "method": of_class.method,
        "className": of_class.class_name,
        "grid": grid,
        "queryGrid": grid,
        "numHeads": 0,
        "readMean": encode(quantise(of_class.values.flatten().float().numpy())),
        "mean": None,
        "heads": None,
        "readHeads": None,
    }


def _first_shown(image: ExplainedAttention) -> str:
    for each in image.of_class:
        if each.method == image.first:
            return f"{each.method} of {each.class_name}"
    return "rollout" if image.rollout else "attention of the last layer, mean over its heads"


def _layer_data(layer: ExplainedLayer, max_bytes: int) -> dict[str, object]:
    read = layer.read.flatten(-2).float()
    return {
        "name": layer.name,
        "reader": layer.reader_name,
        "grid": list(layer.read.shape[-2:]),
        "queryGrid": list(layer.query_grid),
        **pack_heads(layer.patches, max_bytes),
        "readMean": encode(quantise(read.mean(dim=0).numpy())),
        "readHeads": encode(quantise(read.numpy())),
    }
