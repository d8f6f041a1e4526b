"""The explanation of captions: one page on which to look through words, layers and heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vitrail.interpret.viewer import heat_view
from vitrail.interpret.viewer.heat_view import LONGEST_PX, data_element, pack_heads
from vitrail.report.page import picture_uri, write_page

STYLE = Path(__file__).with_name("caption_explain_page.css").read_text(encoding="utf-8")
SCRIPT = Path(__file__).with_name("caption_explain_page.js").read_text(encoding="utf-8")
BODY = Path(__file__).with_name("caption_explain_page.html").read_text(encoding="utf-8")
# Compressed attention of one image; a layer that takes more than its share keeps the mean over heads only.
MAX_BYTES = 1_500_000
STILL_PX = 900


@dataclass(frozen=True, kw_only=True)
class CaptionLayer:
    """What one layer attends to while the words are written."""

    name: str
    """What it is called."""
    weights: Float[Tensor, "heads words cells"]
    """Share of each cell of the grid in what each word was told from."""
    grid: tuple[int, int]
    """Rows and columns of the cells."""


@dataclass(frozen=True, kw_only=True)
class ExplainedCaption:
    """All that the page shows of one image."""

    name: str
    """File name, or another name for the image."""
    picture: Image.Image
    """The image as the model saw it."""
    still: Image.Image
    """What is shown where scripts are switched off."""
    caption: str
    """What was written."""
    words: Sequence[str]
    """The words of the caption, and the end."""
    layers: Sequence[CaptionLayer]
    """First to last, at least one; what is shown first is the last."""


def write_caption_explain_page(
    path: Path, images: Sequence[ExplainedCaption], *, title: str = "Captions"
) -> None:
    """Write one file on which a reader chooses words and sees what they were read from.

    Args:
        path: the HTML file.
        images: what is shown; each adds at most about 2 MB to the page.
        title: plain text.

    Raises:
        CheckpointError: the disk is full or not writable; a former page is as it was.
    """
    stills = "".join(
        f'<figure><img src="{picture_uri(image.still, longest=STILL_PX)}" '
        f'alt="attention of the words over {escape(image.name)}">'
        f"<figcaption>{escape(image.name)}: {escape(image.caption)}</figcaption></figure>"
        for image in images
    )
    body = BODY.replace("{{title}}", escape(title)).replace("{{stills}}", stills)
    body += data_element({"images": [image_data(image) for image in images]})
    style, script = heat_view.STYLE + STYLE, heat_view.SCRIPT + SCRIPT
    write_page(path, title=title, body=body, style=style, script=script)


def image_data(image: ExplainedCaption, max_bytes: int = MAX_BYTES) -> dict[str, object]:
    """Return what the page's script reads of one image, as JSON values.

    Args:
        image: what is shown.
        max_bytes: what the attention of its words may take, compressed.
    """
    return {
        "name": image.name,
        "picture": picture_uri(image.picture, longest=LONGEST_PX),
        "width": image.picture.width,
        "height": image.picture.height,
        "caption": image.caption,
        "words": list(image.words),
        "layers": [
            {
                "name": layer.name,
                "grid": list(layer.grid),
                **pack_heads(layer.weights, max_bytes // len(image.layers)),
            }
            for layer in image.layers
        ],
    }
