"""Words written on images, as a typographic attack writes them, and a look for where words may stand."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

FONTS = ("DejaVuSans-Bold.ttf", "DejaVuSansMono-Bold.ttf", "DejaVuSerif-Bold.ttf")
HEIGHTS = (0.26, 0.34)  # of a word's font over the shorter side of the image
WIDEST = 0.92  # share of the width that a word may take
PLATE_SHARE = 0.5  # of the words that stand on a plate of one colour, like a label
MIN_CONTRAST = 110  # grey levels between a word and what is behind it
GREY = (0.299, 0.587, 0.114)  # luma weights of ITU-R BT.601

DETECTION_PX = (48, 96)  # shorter sides at which words, large and small ones, have strokes pixels apart
EDGE = 0.16  # least step of grey between neighbouring pixels, of 1
WINDOW = (5, 17)  # rows and columns that edges are counted in
DENSITY = 0.26  # least share of pixels with an edge; outlines have one edge or two in a row of the window


class WrittenWord(NamedTuple):
    """An image with a word on it."""

    image: Image.Image
    """The new image."""
    box: tuple[int, int, int, int]
    """Left, top, right and bottom of the word or its plate, in pixels."""


def write_word(image: Image.Image, word: str, random: Random) -> WrittenWord:
    """Write a word: font, size, place, colour and whether it stands on a plate are drawn.

    Args:
        image: RGB, not changed.
        word: what is written.
        random: of all that is drawn.

    Paper: Goh et al. 2021, on typographic attacks; place, font, size and colour at random as in Azuma and
    Matsui 2023, section 4.1. Departs from the paper: there, a font has 20 to 40 of 224 pixels and letters an
    outline; here it is larger, as most of our images are small, and half of the words stand on a plate.
    """
    written = image.copy()
    draw = ImageDraw.Draw(written)
    height_px = max(7, round(random.uniform(*HEIGHTS) * min(image.size)))
    name = random.choice(FONTS)
    font = _font(name, height_px)
    while height_px > 6 and draw.textbbox((0, 0), word, font=font)[2] > WIDEST * image.width:
        height_px -= 1
        font = _font(name, height_px)
    left, top, right, bottom = draw.textbbox((0, 0), word, font=font)
    pad = max(1, height_px // 6)
    width, height = round(right - left) + 2 * pad, round(bottom - top) + 2 * pad
    x = random.randint(0, max(0, image.width - width))
    y = random.randint(0, max(0, image.height - height))
    box = (x, y, min(x + width, image.width), min(y + height, image.height))
    if random.random() < PLATE_SHARE:
        plate = tuple(random.randint(0, 255) for _ in range(3))
        draw.rectangle((box[0], box[1], box[2] - 1, box[3] - 1), fill=plate)
        behind = _grey(plate)
    else:
        behind = float(np.asarray(image.crop(box).convert("L")).mean())
    draw.text((x + pad - left, y + pad - top), word, font=font, fill=_contrasting(behind, random))
    return WrittenWord(written, box)


def find_words(pixels: UInt8[Tensor, "3 height width"]) -> Bool[Tensor, "height width"]:
    """Return where words may stand: places where upright strokes follow one another closely.

    A classic look that learns nothing: words have several edges in every few pixels of a row, outlines one
    or two. It finds fine textures, too.

    Args:
        pixels: of any size.
    """
    height, width = pixels.shape[-2:]
    grey = (pixels.float() / 255 * torch.tensor(GREY)[:, None, None]).sum(dim=0)[None, None]  # 1 1 h w
    shorter = min(height, width)
    found = torch.zeros(height, width, dtype=torch.bool)
    for side in {min(side, shorter) for side in DETECTION_PX}:
        small = (max(1, round(height * side / shorter)), max(2, round(width * side / shorter)))
        reduced = F.interpolate(grey, small, mode="bilinear", antialias=True) if side < shorter else grey
        places = _dense_edges(reduced).float()
        found |= F.interpolate(places, (height, width), mode="nearest")[0, 0] > 0
    return found


def hide_words(pixels: UInt8[Tensor, "3 height width"], patch_size: int) -> UInt8[Tensor, "3 height width"]:
    """Return the image with every patch that may hold a word in the median colour of all others.

    An image in which no word is found comes back as it is, and so does one that is nothing but fine texture.

    Args:
        pixels: of the size that the model takes.
        patch_size: pixels between the model's tokens.
    """
    found = find_words(pixels)
    cells = F.max_pool2d(found[None, None].float(), patch_size, ceil_mode=True)
    hidden = F.interpolate(cells, scale_factor=patch_size, mode="nearest")[0, 0]
    hidden = hidden[: found.shape[0], : found.shape[1]] > 0
    if not hidden.any() or hidden.all():
        return pixels
    colour = pixels[:, ~hidden].median(dim=1).values  # 3
    return torch.where(hidden, colour[:, None, None], pixels)


def _dense_edges(grey: Tensor) -> Tensor:
    """Return the places of a grey image (1 1 rows columns) that lie in a window full of upright edges."""
    edges = F.pad((grey[..., 1:] - grey[..., :-1]).abs() > EDGE, (0, 1)).float()
    around = (WINDOW[0] // 2, WINDOW[1] // 2)
    density = F.avg_pool2d(edges, WINDOW, stride=1, padding=around, count_include_pad=False)
    return F.max_pool2d((density >= DENSITY).float(), WINDOW, stride=1, padding=around) > 0


@cache
def _font(name: str, height_px: int) -> ImageFont.FreeTypeFont:
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return ImageFont.truetype(str(folder / name), height_px)


def _contrasting(behind: float, random: Random) -> tuple[int, ...]:
    """Draw a colour whose grey is far from that of what is behind."""
    for _ in range(40):
        colour = tuple(random.randint(0, 255) for _ in range(3))
        if abs(_grey(colour) - behind) >= MIN_CONTRAST:
            return colour
    return (0, 0, 0) if behind > 127 else (255, 255, 255)


def _grey(colour: tuple[int, ...]) -> float:
    return sum(share * value for share, value in zip(GREY, colour, strict=True))
