"""Still pictures of explanations: heat maps, tiles for boxes and words, alignments."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vitrail.interpret.draw import (
    GAP_PX,
    DrawnBox,
    Limits,
    colour_bar,
    draw_boxes,
    in_rows,
    overlay,
    shared_limits,
)
from vitrail.interpret.viewer.maps import (
    LEAST_LOST,
    LOST,
    OCCLUSION,
    Boxes,
    Grid,
    Heat,
    Maps,
    Tokens,
    layer_titles,
)
from vitrail.report.page import picture_uri
from vitrail.report.plots import COLOURS, LINE, SOFT, inline_svg, new_figure, to_picture, white_figure
from vitrail.report.tiles import Matrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from vitrail.interpret.viewer.explanation import Explanation, Pick

CAPTION_LETTER_PX, CAPTION_LINE_PX = 7, 17
BOX_COLUMNS, MAX_BOX_TILES, BOX_TILE_PX = 3, 12, 480
POINT_PX = 7  # radius of the mark of a patch
WORD_COLUMNS, WORD_TILE_PX, SHEET_TILE_PX, LABEL_PX = 5, 220, 140, 24
STILL_PX, STRIP_PX = 480, 900  # longer side on a page without scripts: of one overlay, of tiles

CELL_INCH = 0.19
FONT_SIZE = 8.5
CHARACTER_INCH = 0.068  # mean letter width
LONGEST_LABEL = 16  # characters; the page shows whole tokens
TITLED_INCH = 4.0  # least width of a picture with a title
SHADES = "from {} (white) to {} (blue), shaded by the square root"
MAX_COLUMNS = 3  # panels of a PNG side by side
DOTS_PER_INCH = 150


def still(explanation: Explanation, pick: Pick) -> Image.Image:
    """Draw what boxes or words were read from as one picture; see ``Explanation.still``."""
    queries = explanation.maps[0].queries
    if not isinstance(explanation.maps[0].keys, Grid):
        return Image.open(io.BytesIO(alignments(explanation, pick)))
    heats, said = _heats(explanation, pick), (explanation.title, said_of(explanation, pick))
    limits = shared_limits(heat.values for heat in heats)
    enlarged = explanation.enlarged
    overlays = [explanation.overlay(query, limits=limits, **pick) for query in range(len(heats))]
    if isinstance(queries, Tokens):
        tiles = [_small(each, WORD_TILE_PX) for each in (enlarged, *overlays)]
        return captioned(in_rows([*map(_labelled, tiles, ("", *queries.texts))], WORD_COLUMNS), said, limits)
    assert isinstance(queries, Boxes)
    boxes = [on_picture(box, enlarged.size) for box in queries.drawn]
    tiles = [_small(each, BOX_TILE_PX) for each in (draw_boxes(enlarged, boxes), *overlays)]
    sheet = captioned(in_rows(tiles, BOX_COLUMNS), said, limits)
    has_encoder = any(isinstance(part.queries, Grid) for part in explanation.maps)
    if not has_encoder or (pick.get("layer"), pick.get("head")) != (None, None):
        return sheet
    return in_rows([sheet, _from_middles(explanation, enlarged)], 1)


def sheet(explanation: Explanation) -> Image.Image:
    """Draw every layer and head as tiles; see ``Explanation.sheet``."""
    small = _small(explanation.enlarged, SHEET_TILE_PX)
    counts = [each.weights.shape[1] for each in explanation.layers if ", " not in each.layer]  # of all levels
    heats = [
        [explanation.heat("attention", layer=layer, head=head + 1) for head in range(count)]
        for layer, count in enumerate(counts, start=1)
    ]
    limits = shared_limits(heat.values for of_layer in heats for heat in of_layer)
    rows = []
    for layer, of_layer in enumerate(heats, start=1):
        drawn = [overlay(small, heat.values, limits=limits, crop=explanation.crop) for heat in of_layer]
        names = [f"layer {layer}, head {head}" for head in range(1, len(drawn) + 1)]
        rows.append(in_rows([*map(_labelled, drawn, names)], len(drawn)))
    return captioned(in_rows(rows, 1), (explanation.title,), limits)


def _heats(explanation: Explanation, pick: Pick) -> list[Heat]:
    """Return the maps of the boxes, or of the words but the end, that a picture shows."""
    queries = explanation.maps[0].queries
    assert isinstance(queries, Boxes | Tokens)
    num_words = len(queries.texts) - 1
    count = num_words if isinstance(queries, Tokens) else min(num_words + 1, MAX_BOX_TILES - 1)
    return [explanation.heat(query, **pick) for query in range(count)]


def said_of(explanation: Explanation, pick: Pick) -> str:
    """Say which layer and head a picture of boxes or words shows, and how far from even it is."""
    maps, layer, head = explanation.maps[0], pick.get("layer"), pick.get("head")
    if isinstance(maps.keys, Grid):
        # An empty caption has none.
        heats = _heats(explanation, pick)
        return max(heats, key=lambda heat: heat.largest).said if heats else maps.title_of(layer, head)
    panels = panels_of(maps, layer, head)
    largest = max(float(panel.values.max()) for panel in panels)
    if maps.name == OCCLUSION:
        most = f"at most {largest:.1%}" if largest >= LEAST_LOST else f"no word matters alone ({largest:.1%})"
        return f"{LOST} without each word, {SHADES.format('0%', '100%')}: {most}"
    shown = panels[0].name if len(panels) == 1 else "every layer" if layer is None else "every head"
    return f"{shown}, weights {SHADES.format(0, 1)}, the largest {largest:.2f}"


def captioned(drawn: Image.Image, lines: Sequence[str], limits: Limits) -> Image.Image:
    """Add lines of text and a colour bar below a picture."""
    import matplotlib

    wrapped = _wrap(lines, max(drawn.width // CAPTION_LETTER_PX, len("all layers combined")))
    path = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")  # any letters
    bar, top = colour_bar(limits), drawn.height + CAPTION_LINE_PX * len(wrapped) + 6
    sheet = Image.new("RGB", (max(drawn.width, bar.width), top + bar.height + 2), "white")
    sheet.paste(drawn)
    ImageDraw.Draw(sheet).multiline_text(
        (GAP_PX, drawn.height + 2),
        "\n".join(wrapped),
        fill="black",
        font=ImageFont.truetype(path, 12),
        spacing=3,
    )
    sheet.paste(bar, (0, top))
    return sheet


def _wrap(lines: Sequence[str], width: int) -> list[str]:
    return [part for line in lines for part in textwrap.wrap(line, width)]


def still_html(explanation: Explanation, number: int) -> str:
    """Draw the explanation with this number on a page, for readers without scripts."""
    name, title = escape(explanation.name), escape(explanation.title)
    if explanation.picture is None:
        alignment = alignment_svg(f"alignment {number}", panel_of(explanation.maps[0]))
        return f"<figure>{alignment}<figcaption>{name}<br>{title}</figcaption></figure>"
    longest = STILL_PX if explanation.reads_patches else STRIP_PX
    uri = picture_uri(explanation.still(), longest=longest)
    return f'<figure><img src="{uri}" alt="{name}"><figcaption>{name}: {title}</figcaption></figure>'


def panel_of(maps: Maps, layer: int | None = None, head: int | None = None, *, title: str = "") -> Matrix:
    """Return an alignment to draw; layer and head as in ``Maps.attention``, and plain text above it."""
    assert isinstance(maps.queries, Tokens)
    assert isinstance(maps.keys, Tokens)
    weights, index = maps.between_sides(maps.pick(layer)), maps.head_index(layer, head)
    chosen = weights.mean(dim=0) if index is None else weights[index]
    return Matrix(title, chosen.detach().float().cpu().numpy(), maps.queries.texts, maps.keys.texts)


def alignment_svg(name: str, panel: Matrix) -> str:
    """Draw an alignment whose text has the page's colours, under a name that is unique on the page."""
    with _any_letters():
        figure, axes = new_figure("", "", size=_size(panel))
        axes.grid(visible=False)
        _draw(axes, panel, ink=None)
        return inline_svg(figure, name)


def alignments(explanation: Explanation, pick: Pick, suffix: str = ".png") -> bytes:
    """Draw the alignments of an explanation with its prediction in words, as a file with that ending."""
    panels = panels_of(explanation.maps[0], pick.get("layer"), pick.get("head"))
    return draw_alignments(panels, suffix, title=(explanation.title, said_of(explanation, pick)))


def draw_alignments(panels: Sequence[Matrix], suffix: str = ".png", *, title: Sequence[str] = ()) -> bytes:
    """Draw alignments of the same tokens in a grid, on white, as a file with that ending."""
    columns = min(MAX_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    width, height = _size(panels[0])
    width = max(width, TITLED_INCH / columns) if title else width
    lines = _wrap(title, int(columns * width / CHARACTER_INCH))
    figure = white_figure(columns * width, rows * height + 0.2 * len(lines), "")
    figure.suptitle("\n".join(lines), fontsize=FONT_SIZE + 1, parse_math=False)
    with _any_letters():
        panes = figure.subplots(rows, columns, squeeze=False).flatten()
        for axes, panel in zip(panes, panels, strict=False):
            _draw(axes, panel, ink="black")
        for axes in panes[len(panels) :]:
            axes.set_visible(False)
        return to_picture(figure, suffix, dots_per_inch=DOTS_PER_INCH)


def panels_of(maps: Maps, layer: int | None, head: int | None) -> list[Matrix]:
    """Return the mean over heads of every layer, or the heads of one layer, or one head."""
    if layer is None and head is None:
        return [
            panel_of(maps, number, title=title) for number, title in enumerate(layer_titles(maps.layers), 1)
        ]
    heads = range(1, maps.pick(layer).weights.shape[1] + 1) if head is None else [head]
    return [panel_of(maps, layer, each, title=maps.title_of(layer, each)) for each in heads]


def _from_middles(explanation: Explanation, enlarged: Image.Image) -> Image.Image:
    """Draw what the patches in the middle of boxes attend to (Carion et al. 2020, figure 3)."""
    boxes = explanation.maps[0].queries
    assert isinstance(boxes, Boxes)
    corners = [box.corners for box in boxes.drawn[:BOX_COLUMNS]]
    middles = [((top + bottom) / 2, (left + right) / 2) for left, top, right, bottom in corners]
    heats = [explanation.part("encoder").heat(middle) for middle in middles]
    limits, tiles = shared_limits(heat.values for heat in heats), []
    for (y, x), heat in zip(middles, heats, strict=True):
        drawn = overlay(enlarged, heat.values, limits=limits)
        column, row = x * drawn.width, y * drawn.height
        mark = (column - POINT_PX, row - POINT_PX, column + POINT_PX, row + POINT_PX)
        ImageDraw.Draw(drawn).ellipse(mark, fill="white", outline="black")
        tiles.append(_small(drawn, BOX_TILE_PX))
    said = (f"encoder: attention from the point, {max(heats, key=lambda heat: heat.largest).said}",)
    return captioned(in_rows(tiles, BOX_COLUMNS), said, limits)


def on_picture(box: DrawnBox, size: tuple[float, float]) -> DrawnBox:
    """Return a box with relative corners on a picture of that width and height; 1 / size goes back."""
    left, top, right, bottom = box.corners
    return box._replace(corners=(left * size[0], top * size[1], right * size[0], bottom * size[1]))


def _small(picture: Image.Image, width: int) -> Image.Image:
    picture.thumbnail((width, 2 * width), Image.Resampling.LANCZOS)
    return picture.convert("RGB")


def _labelled(picture: Image.Image, text: str) -> Image.Image:
    """Return a picture with a line of text above it, as far as it fits."""
    font = ImageFont.load_default(size=16)
    tile = Image.new("RGB", (picture.width, picture.height + LABEL_PX), "white")
    tile.paste(picture, (0, LABEL_PX))
    shown = text
    while len(shown) > 1 and font.getlength(shown) > picture.width - 4:
        shown = shown[:-2] + "\u2026"
    ImageDraw.Draw(tile).text((picture.width / 2, 2), shown, fill="black", font=font, anchor="ma")
    return tile


def _draw(axes: Axes, panel: Matrix, *, ink: str | None) -> None:
    """Draw a map; without ``ink``, text has the axes' colours."""
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm, to_rgb

    full = to_rgb(COLOURS[0])
    shades = LinearSegmentedColormap.from_list("shades", [(*full, 0.0), (*full, 1.0)])
    values = np.clip(panel.values, 0, 1)
    # Square roots, so that weights of a tenth are visible.
    axes.imshow(values, cmap=shades, norm=PowerNorm(0.5, 0, 1), interpolation="nearest", aspect="equal")
    # A dollar sign in a subword is not a formula.
    axes.set_xticks(range(len(panel.columns)), _labels(panel.columns), rotation=90, parse_math=False)
    axes.set_yticks(range(len(panel.rows)), _labels(panel.rows), parse_math=False)
    axes.tick_params(
        top=True, labeltop=True, bottom=False, labelbottom=False, length=2, labelsize=FONT_SIZE, pad=2
    )
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color(LINE if ink is None else "#c8ced6")
    if panel.name:
        axes.set_title(
            panel.name, fontsize=FONT_SIZE + 1, color=SOFT if ink is None else ink, parse_math=False
        )


def _size(panel: Matrix) -> tuple[float, float]:
    left, top = (
        CHARACTER_INCH * max((len(label) for label in _labels(pieces)), default=0) + 0.15
        for pieces in (panel.rows, panel.columns)
    )
    cells = max(CELL_INCH * len(panel.columns), CHARACTER_INCH * len(panel.name))  # the title is above them
    title = 0.25 if panel.name else 0.0
    return (left + cells + 0.15, top + title + CELL_INCH * len(panel.rows) + 0.15)


def _labels(pieces: Sequence[str]) -> list[str]:
    return [piece if len(piece) <= LONGEST_LABEL else piece[: LONGEST_LABEL - 3] + "..." for piece in pieces]


@contextmanager
def _any_letters() -> Iterator[None]:
    """Allow letters missing in the pictures' font; they are drawn as boxes, in SVG by the browser."""
    with warnings.catch_warnings():
        unknown = r"Glyph .* missing from|Matplotlib currently does not support"
        warnings.filterwarnings("ignore", message=unknown, category=UserWarning)
        yield
