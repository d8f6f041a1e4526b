"""Pictures of attention: heat maps over images and contact sheets, as Pillow images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

COLOUR_MAP = "inferno"  # perceptually uniform, readable by the colour-blind, dark where nothing is
LABEL_HEIGHT_PX = 16
GAP_PX = 3
DIMMED = 0.65  # brightness of a picture under a heat map, so that heat shows on white too


def to_picture(image: UInt8[Tensor, "3 height width"]) -> Image.Image:
    """Turn a uint8 image tensor into a Pillow image."""
    return Image.fromarray(image.permute(1, 2, 0).contiguous().cpu().numpy())


def heat_map(
    relevance: Float[Tensor, "rows columns"], size: tuple[int, int], *, is_smooth: bool = True
) -> Image.Image:
    """Colour a map of patches, its smallest value darkest and its largest brightest.

    Args:
        relevance: one value for each patch, in any unit.
        size: width and height of the picture in pixels.
        is_smooth: interpolate between patches; otherwise each patch is a flat square.
    """
    return Image.fromarray(_colours(_enlarge(relevance, size, is_smooth)))


def overlay(
    picture: Image.Image, relevance: Float[Tensor, "rows columns"], *, opacity: float = 0.75
) -> Image.Image:
    """Lay a heat map over a picture: the more relevant a place, the more colour; the rest is dimmed.

    Args:
        picture: the image as the model saw it.
        relevance: one value for each patch.
        opacity: share of the colour at the most relevant place, 0..1.
    """
    values = _enlarge(relevance, picture.size, is_smooth=True)
    colours = _colours(0.25 + 0.75 * values).astype(np.float32)
    grey = np.asarray(picture.convert("L").convert("RGB"), dtype=np.float32)
    base = DIMMED * (0.5 * grey + 0.5 * np.asarray(picture.convert("RGB"), dtype=np.float32))
    share = opacity * values[..., None]
    return Image.fromarray(np.clip((1 - share) * base + share * colours, 0, 255).astype(np.uint8))


def side_by_side(pictures: Sequence[Image.Image], *, gap: int = GAP_PX) -> Image.Image:
    """Join pictures of one height in a row."""
    width = sum(picture.width for picture in pictures) + gap * (len(pictures) - 1)
    sheet = Image.new("RGB", (width, max(picture.height for picture in pictures)), "white")
    left = 0
    for picture in pictures:
        sheet.paste(picture, (left, 0))
        left += picture.width + gap
    return sheet


def in_rows(tiles: Sequence[Image.Image], columns: int) -> Image.Image:
    """Join tiles of one height, some in each row."""
    rows = [side_by_side(tiles[start : start + columns]) for start in range(0, len(tiles), columns)]
    height = sum(row.height for row in rows) + GAP_PX * (len(rows) - 1)
    sheet = Image.new("RGB", (rows[0].width, height), "white")
    for number, row in enumerate(rows):
        sheet.paste(row, (0, number * (rows[0].height + GAP_PX)))
    return sheet


def contact_sheet(
    maps: Sequence[Float[Tensor, "_ _ _"]], names: Sequence[str], *, tile: int = 72
) -> Image.Image:
    """Show every head of every layer as a tile: one row for each layer, one column for each head.

    Args:
        maps: for each layer, one map of patches for each head (heads rows columns), on the layer's own grid.
        names: what each row is called.
        tile: longer side of a tile in pixels, of the shape of the first map.
    """
    font = ImageFont.load_default(size=12)
    rows, columns = maps[0].shape[-2:]
    width, height = _fit(columns, rows, tile)
    margin = GAP_PX + max(int(font.getlength(name)) for name in names) + 2 * GAP_PX
    num_heads = max(layer.shape[0] for layer in maps)
    size = (margin + num_heads * (width + GAP_PX), LABEL_HEIGHT_PX + len(maps) * (height + GAP_PX))
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    for head in range(num_heads):
        draw.text((margin + head * (width + GAP_PX), 1), f"head {head + 1}", fill="black", font=font)
    for row, (layer, name) in enumerate(zip(maps, names, strict=True)):
        top = LABEL_HEIGHT_PX + row * (height + GAP_PX)
        draw.text((GAP_PX, top + (height - LABEL_HEIGHT_PX) // 2), name, fill="black", font=font)
        for head, relevance in enumerate(layer):
            picture = heat_map(relevance, (width, height), is_smooth=False)
            sheet.paste(picture, (margin + head * (width + GAP_PX), top))
    return sheet


def enlarge_picture(picture: Image.Image, shorter_side: int) -> Image.Image:
    """Scale a small picture up by a whole factor, keeping its pixels visible; a large one stays."""
    factor = max(1, round(shorter_side / min(picture.size)))
    return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)


def colour_table() -> UInt8[np.ndarray, "256 3"]:
    """Return the colours from the smallest value to the largest."""
    import matplotlib

    table = matplotlib.colormaps[COLOUR_MAP](np.linspace(0, 1, 256))
    return np.round(table[:, :3] * 255).astype(np.uint8)


def _fit(width: int, height: int, longer: int) -> tuple[int, int]:
    scale = longer / max(width, height)
    return max(1, round(width * scale)), max(1, round(height * scale))


def _enlarge(relevance: Tensor, size: tuple[int, int], is_smooth: bool) -> np.ndarray:
    values = relevance.detach().float().cpu()
    spread = values.max() - values.min()
    # A flat map has no brightest place: it is shown as nothing, not as noise blown up.
    scaled = (values - values.min()) / spread if spread > 1e-12 else torch.zeros_like(values)
    method = Image.Resampling.BICUBIC if is_smooth else Image.Resampling.NEAREST
    enlarged = Image.fromarray(scaled.numpy()).resize(size, method)
    return np.clip(np.asarray(enlarged, dtype=np.float32), 0.0, 1.0)


def _colours(values: np.ndarray) -> np.ndarray:
    return colour_table()[np.round(values * 255).astype(np.int64)]
