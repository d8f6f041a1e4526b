"""Drawing of heat maps and bounding boxes as Pillow images."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw, ImageEnhance, ImageFont
from torch import Tensor

COLOUR_MAP = "inferno"  # perceptually uniform, colour-blind safe, dark at zero
GAP_PX = 3
DIMMED = 0.65  # brightness of a picture under a heat map, so that heat is visible on white
OPACITY = 0.75  # of the brightest colour
RAMP_PX, BAR_PX = 72, 16  # width of a colour bar without its numbers, and its height

Limits = tuple[float, float]
"""The values of the darkest and the brightest colour; attention is drawn from ``EVEN`` on."""
EVEN = 1.0
LEAST_BRIGHT = 3.0  # times even attention, so that the noise of attention that is nearly even stays dark
NEARLY_EVEN = 1.25  # times even attention, at most
WHOLE = (0.0, 0.0, 1.0, 1.0)
OUTSIDE = 0.35  # brightness of what the model does not see


def to_picture(image: UInt8[Tensor, "3 height width"]) -> Image.Image:
    """Turn a uint8 image tensor into a Pillow image."""
    return Image.fromarray(image.permute(1, 2, 0).contiguous().cpu().numpy())


def overlay(
    picture: Image.Image, relevance: Float[Tensor, "rows columns"], *, limits: Limits, crop: Corners = WHOLE
) -> Image.Image:
    """Overlay a heat map on a picture, which is dimmed where the map is low.

    Args:
        crop: what the map covers, as shares of the picture; it is framed, and the rest is dark.
    """
    if crop != WHOLE:
        left, top, right, bottom = (round(share * picture.size[i % 2]) for i, share in enumerate(crop))
        drawn = ImageEnhance.Brightness(picture.convert("RGB")).enhance(OUTSIDE)
        seen = picture.crop((left, top, right, bottom))
        drawn.paste(overlay(seen, relevance, limits=limits), (left, top))
        ImageDraw.Draw(drawn).rectangle((left, top, right - 1, bottom - 1), outline="white")
        return drawn
    low, high = limits
    scaled = Image.fromarray(((relevance.detach().float().cpu() - low) / (high - low)).numpy())
    values = np.clip(np.asarray(scaled.resize(picture.size, Image.Resampling.BICUBIC)), 0, 1)
    colours = colour_table()[np.round(255 * (0.25 + 0.75 * values)).astype(np.int64)]
    grey = np.asarray(picture.convert("L").convert("RGB"), dtype=np.float32)
    base = DIMMED * (0.5 * grey + 0.5 * np.asarray(picture.convert("RGB"), dtype=np.float32))
    share = OPACITY * values[..., None]
    return Image.fromarray(np.clip((1 - share) * base + share * colours, 0, 255).astype(np.uint8))


def in_rows(tiles: Sequence[Image.Image], columns: int, *, gap: int = GAP_PX) -> Image.Image:
    """Join tiles of equal width in rows."""
    rows = [tiles[start : start + columns] for start in range(0, len(tiles), columns)]
    heights = [max(tile.height for tile in row) for row in rows]
    step = max(tile.width for tile in tiles) + gap
    sheet = Image.new("RGB", (len(rows[0]) * step - gap, sum(heights) + gap * (len(rows) - 1)), "white")
    top = 0
    for row, height in zip(rows, heights, strict=True):
        for place, tile in enumerate(row):
            sheet.paste(tile, (place * step, top))
        top += height + gap
    return sheet


def times_even(
    weights: Float[Tensor, "*rows keys"], *, is_masked: bool = False
) -> Float[Tensor, "*rows keys"]:
    """Return attention in multiples of even attention: 1 where all keys get the same.

    Args:
        weights: of a token mixer, magnitudes count.
        is_masked: whether keys of weight zero cannot be attended to, such as those of other windows.

    Example:
        >>> times_even(torch.tensor([0.5, 0.25, 0.25, 0.0])).tolist()
        [2.0, 1.0, 1.0, 0.0]
    """
    sizes = weights.float().abs()
    num_keys = torch.full_like(sizes[..., :1], sizes.shape[-1])
    if is_masked:  # a single weight is not a window: the softmax of a sharp head rounds all others to zero
        num_seen = (sizes > 0).sum(dim=-1, keepdim=True)
        num_keys = num_keys.where(num_seen < 2, num_seen.float())
    return sizes * num_keys / sizes.sum(dim=-1, keepdim=True).clamp(min=1e-12)


def shared_limits(maps: Iterable[Tensor]) -> Limits:
    """Return the limits of maps from ``times_even`` that are compared."""
    return EVEN, max([LEAST_BRIGHT, *(float(each.max()) for each in maps)])


def strength(largest: float, noun: str = "attention") -> str:
    """Say how much the patch with the most attention, or relevance, gets.

    >>> strength(1.04)
    'nearly even, at most 1.04 times even attention'
    """
    if largest <= NEARLY_EVEN:
        return f"nearly even, at most {largest:.2f} times even {noun}" if largest else f"no {noun}"
    return f"up to {largest:.2g} times even {noun}"


def colour_bar(limits: Limits) -> Image.Image:
    """Draw the colours of an overlay on grey between their limits."""
    font = ImageFont.load_default(size=12)
    low, high = ("even", f"{limits[1]:.2g}x even") if limits[0] == EVEN else (f"{x:.0%}" for x in limits)
    left, right = (int(font.getlength(text)) + 2 * GAP_PX for text in (low, high))
    ramp, size = torch.linspace(0, 1, 256)[None], (RAMP_PX, BAR_PX - 4)
    bar = Image.new("RGB", (left + RAMP_PX + right, BAR_PX), "white")
    bar.paste(overlay(Image.new("RGB", size, "grey"), ramp, limits=(0, 1)), (left, 2))
    draw = ImageDraw.Draw(bar)
    draw.text((GAP_PX, 0), low, fill="black", font=font)
    draw.text((left + RAMP_PX + GAP_PX, 0), high, fill="black", font=font)
    return bar


def enlarge_picture(picture: Image.Image, shorter_side: int) -> Image.Image:
    """Enlarge a small picture by a whole factor with visible pixels; a large one stays."""
    factor = max(1, round(shorter_side / min(picture.size)))
    return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)


def colour_table() -> UInt8[np.ndarray, "256 3"]:
    """Return the colours from minimum to maximum."""
    import matplotlib

    table = matplotlib.colormaps[COLOUR_MAP](np.linspace(0, 1, 256))
    return np.round(table[:, :3] * 255).astype(np.uint8)


Corners = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels."""
Rectangle = tuple[int, int, int, int]
"""The same in whole pixels of the drawn picture."""

# Okabe and Ito 2008, without black, for the colour-blind. Further classes get lighter and darker tints:
# more colours cannot be told apart, and labels have the names.
COLOURS = (
    (86, 180, 233),
    (230, 159, 0),
    (0, 158, 115),
    (204, 121, 167),
    (240, 228, 66),
    (213, 94, 0),
    (0, 114, 178),
)
TINTS = (((0, 0, 0), 0.0), ((255, 255, 255), 0.5), ((0, 0, 0), 0.4))  # a colour and its fraction
HALO = (0, 0, 0, 150)  # beside each line, so that it is visible on its own colour
MANY = 25  # boxes per picture; above, lines are thin and labels small
SMALLEST_SHORTER_PX = 400  # smaller pictures are enlarged, so that labels do not cover them
MIN_FONT_PX, MAX_FONT_PX = 11, 48
MAX_WRITTEN = 0.2  # fraction of the picture's area that labels may cover
NO_SUCH_LETTER = "\uffff"  # drawn with the same glyph as any missing letter


class DrawnBox(NamedTuple):
    """One box and its label."""

    corners: Corners
    """In any order of corners; clipped to the picture."""
    label: int
    """The class, which determines the colour."""
    text: str = ""
    """May be empty."""
    is_dashed: bool = False
    """Whether the line is dashed, as for wrong or missed boxes."""


def draw_boxes(picture: Image.Image, boxes: Sequence[DrawnBox]) -> Image.Image:
    """Draw labelled boxes; the first of overlapping ones is on top.

    A label without free space, or one too many, is left out, except the first of its class. Boxes with NaN
    are skipped.

    Args:
        boxes: in pixels of the picture.
    """
    drawn = enlarge_picture(picture.convert("RGB"), SMALLEST_SHORTER_PX)
    factor = drawn.width / picture.width
    finite = [box for box in boxes if all(map(math.isfinite, box.corners))]
    usable = [(box, _on_picture(box.corners, factor, drawn.size)) for box in finite]
    layer = Image.new("RGBA", drawn.size)
    draw = ImageDraw.Draw(layer)
    is_many = len(usable) > MANY
    line = 1 if is_many else max(2, round(min(drawn.size) / 220))
    for box, corners in reversed(usable):
        _outline(draw, corners, (*colour_of(box.label), 255), line, box.is_dashed)
    font_size = min(max(round(min(drawn.size) / (40 if is_many else 26)), MIN_FONT_PX), MAX_FONT_PX)
    _write_texts(draw, usable, line, drawn.size, font_size)
    return Image.alpha_composite(drawn.convert("RGBA"), layer).convert("RGB")


def colour_of(label: int) -> tuple[int, int, int]:
    """Return the RGB colour of a class, in 0..255; colours repeat after 21 classes."""
    base = COLOURS[label % len(COLOURS)]
    tint, share = TINTS[label // len(COLOURS) % len(TINTS)]
    red, green, blue = (
        round((1 - share) * channel + share * other) for channel, other in zip(base, tint, strict=True)
    )
    return red, green, blue


def text_colour_on(colour: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return black or white, whichever has more contrast."""
    # Relative luminance and the point where both contrasts are equal: WCAG 2.2, relative luminance.
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (channel / 255 for channel in colour)
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return (0, 0, 0) if luminance > 0.179 else (255, 255, 255)


def box_text(name: str, label: int, score: float | None = None) -> str:
    """Return the label of a box: class and score with two decimals.

    Pillow's own font has plain Latin letters only: accents are dropped, and names in other scripts become
    class numbers.

    Args:
        score: 0..1, if there is one.
    """
    font = ImageFont.load_default(size=MIN_FONT_PX)
    decomposed = unicodedata.normalize("NFKD", name)
    plain = "".join(letter for letter in decomposed if not unicodedata.combining(letter))
    lacking = bytes(font.getmask(NO_SUCH_LETTER))
    is_known = all(letter.isspace() or bytes(font.getmask(letter)) != lacking for letter in set(plain))
    written = " ".join(plain.split()) if is_known else f"[{label}]"
    return written if score is None else f"{written} {score:.2f}".strip()


def hex_colour(colour: tuple[int, int, int]) -> str:
    """Format a colour as in CSS.

    >>> hex_colour((0, 158, 115))
    '#009e73'
    """
    return "#{:02x}{:02x}{:02x}".format(*colour)


def _on_picture(corners: Corners, factor: float, size: tuple[int, int]) -> Rectangle:
    """Scale a box to the drawn picture and clip it to at least one pixel per side."""
    width, height = size
    left, right = sorted(min(max(round(x * factor), 0), width) for x in corners[::2])
    top, bottom = sorted(min(max(round(y * factor), 0), height) for y in corners[1::2])
    left, top = min(left, width - 1), min(top, height - 1)
    # Pillow's lines include their last pixel.
    return left, top, max(left, right - 1), max(top, bottom - 1)


def _outline(
    draw: ImageDraw.ImageDraw,
    corners: Rectangle,
    colour: tuple[int, int, int, int],
    line: int,
    is_dashed: bool,
) -> None:
    left, top, right, bottom = corners
    draw.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=HALO)
    inner = (left + line, top + line, right - line, bottom - line)
    if inner[0] < inner[2] and inner[1] < inner[3]:
        draw.rectangle(inner, outline=HALO)
    if not is_dashed:
        draw.rectangle(corners, outline=colour, width=line)
        return
    draw.rectangle(corners, outline=HALO, width=line)
    for dash in _dashes(corners, line):
        draw.rectangle(dash, fill=colour)


def _dashes(corners: Rectangle, line: int) -> Iterator[Rectangle]:
    left, top, right, bottom = corners
    dash, step = 4 * line + 1, 7 * line + 1
    for x in range(left, right + 1, step):
        end = min(x + dash, right)
        yield x, top, end, min(top + line - 1, bottom)
        yield x, max(bottom - line + 1, top), end, bottom
    for y in range(top, bottom + 1, step):
        end = min(y + dash, bottom)
        yield left, y, min(left + line - 1, right), end
        yield max(right - line + 1, left), y, right, end


def _write_texts(
    draw: ImageDraw.ImageDraw,
    boxes: Sequence[tuple[DrawnBox, Rectangle]],
    line: int,
    size: tuple[int, int],
    font_size: int,
) -> None:
    """Write each label on a plate in its colour, where it covers no other plate."""
    font = ImageFont.load_default(size=font_size)
    margin = max(2, font_size // 5)
    taken: list[Rectangle] = []
    named: set[int] = set()
    left_over = MAX_WRITTEN * size[0] * size[1]
    for box, corners in boxes:
        if not box.text:
            continue
        left, top, right, bottom = (round(value) for value in font.getbbox(box.text))
        plate = (right - left + 2 * margin, bottom - top + 2 * margin)
        candidates = _candidates(corners, plate, line, size)
        free = [each for each in candidates if not any(_overlap(each, other) for other in taken)]
        left_over -= plate[0] * plate[1]
        if box.label in named and (not free or left_over < 0):
            continue
        chosen, colour = free[0] if free else candidates[0], colour_of(box.label)
        draw.rectangle(chosen, fill=(*colour, 255), outline=HALO)
        corner = (chosen[0] + margin - left, chosen[1] + margin - top)
        draw.text(corner, box.text, fill=(*text_colour_on(colour), 255), font=font)
        taken.append(chosen)
        named.add(box.label)


def _candidates(
    corners: Rectangle, plate: tuple[int, int], line: int, size: tuple[int, int]
) -> list[Rectangle]:
    """Return the candidate positions of a plate, best first: above the box, below it, inside it."""
    left, top, right, bottom = corners
    width, height = plate
    outside = [(left, top - height), (left, bottom + 1), (right - width, top - height)]
    inside = [(left + line, top + line), (left + line, bottom - line - height)]
    chosen = outside + inside if top >= height else inside[:1] + outside[1:2] + inside[1:]
    most = (size[0] - width - 1, size[1] - height - 1)  # so that it lies in the picture
    moved = [(max(0, min(x, most[0])), max(0, min(y, most[1]))) for x, y in chosen]
    return [(x, y, x + width, y + height) for x, y in moved]


def _overlap(one: Rectangle, other: Rectangle) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
