"""Composed images, each a drawn shape, a written word or both, with captions that mention what is there."""

from __future__ import annotations

import math
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageDraw
from torch import Tensor

from vitrail.lab.written_words import write_word

SHAPES = ("star", "moon", "ring", "cross", "house", "arrow")
COLOURS = {
    "red": (210, 45, 45),
    "green": (40, 150, 60),
    "blue": (45, 80, 205),
    "yellow": (225, 195, 40),
    "purple": (140, 60, 170),
    "orange": (235, 130, 30),
}
SCALE = 4  # shapes are drawn larger and reduced, so that their edges are smooth
NOISE = 5  # grey levels
TEMPLATE = "a photo of a {}"
TEMPLATE_WITH_WORD = "a photo of a {} with the word {word}"
OF_SHAPE = ("a photo of a {shape}", "a {colour} {shape}", "{shape}")
OF_WORD = ("the word {word}", "{word}")
OF_BOTH = ("a photo of a {shape} with the word {word}", "a {shape} with the word {word}", "{word}")
SHAPE_SHARE, WORD_SHARE = 0.3, 0.35  # of the images; the others show both


class Scene(NamedTuple):
    """A composed image with what is on it."""

    image: Image.Image
    """RGB, square."""
    caption: str
    """What it says."""
    shape: str
    """Which is drawn; empty where none is."""
    word: str
    """Which is written; empty where none is."""


def draw_scene(random: Random, *, size: int) -> Scene:
    """Draw an image and a caption, both at random.

    Of images with both, one caption in three mentions the word alone, as captions of the web do of logos,
    signs and posters.

    Args:
        random: of all that is drawn.
        size: pixels of a side.
    """
    draw = random.random()
    captions: tuple[str, ...]
    shape, word = random.choice(SHAPES), random.choice(SHAPES)
    colour = random.choice(tuple(COLOURS))
    if draw < SHAPE_SHARE:
        image, word, captions = draw_shape(shape, colour, random, size=size), "", OF_SHAPE
    elif draw < SHAPE_SHARE + WORD_SHARE:
        image, shape, captions = write_word(_background(random, size), word, random).image, "", OF_WORD
    else:
        image = write_word(draw_shape(shape, colour, random, size=size), word, random).image
        captions = OF_BOTH
    caption = random.choice(captions).format(shape=shape, word=word, colour=colour)
    return Scene(image, caption, shape, word)


def draw_shape(shape: str, colour: str, random: Random, *, size: int) -> Image.Image:
    """Draw one shape on a background of one colour with a little noise; place and size are drawn.

    Args:
        shape: one of ``SHAPES``.
        colour: one of ``COLOURS``.
        random: of all that is drawn.
        size: pixels of a side.
    """
    image = _background(random, size).resize((size * SCALE, size * SCALE), Image.Resampling.NEAREST)
    radius = random.uniform(0.26, 0.36) * size * SCALE
    x, y = (random.uniform(radius, size * SCALE - radius) for _ in range(2))
    turn = random.uniform(-0.3, 0.3)
    fill = tuple(min(255, max(0, value + random.randint(-20, 20))) for value in COLOURS[colour])
    mask = Image.new("L", image.size)
    _draw_mask(ImageDraw.Draw(mask), shape, (x, y), radius, turn)
    image.paste(Image.new("RGB", image.size, fill), mask=mask)
    return image.resize((size, size), Image.Resampling.BOX)


def to_pixels(images: list[Image.Image]) -> UInt8[Tensor, "images 3 height width"]:
    """Return images of one size as a tensor."""
    return (
        torch.from_numpy(np.stack([np.asarray(image) for image in images])).permute(0, 3, 1, 2).contiguous()
    )


def _background(random: Random, size: int) -> Image.Image:
    base = np.array([random.randint(90, 250) for _ in range(3)])
    noise = np.random.default_rng(random.getrandbits(32)).integers(-NOISE, NOISE + 1, (size, size, 1))
    return Image.fromarray(np.clip(base + noise, 0, 255).astype(np.uint8))


def _draw_mask(
    draw: ImageDraw.ImageDraw, shape: str, centre: tuple[float, float], radius: float, turn: float
) -> None:
    x, y = centre

    def disc(share: float, fill: int, *, shift: float = 0.0) -> None:
        reach = share * radius
        draw.ellipse((x - reach + shift, y - reach, x + reach + shift, y + reach), fill=fill)

    if shape == "moon":
        disc(1.0, 255)
        disc(0.85, 0, shift=0.5 * radius)
    elif shape == "ring":
        disc(1.0, 255)
        disc(0.55, 0)
    else:
        corners = [
            (
                x + radius * (u * math.cos(turn) - v * math.sin(turn)),
                y + radius * (u * math.sin(turn) + v * math.cos(turn)),
            )
            for u, v in _corners(shape)
        ]
        draw.polygon(corners, fill=255)


def _corners(shape: str) -> list[tuple[float, float]]:
    """Return the corners of a shape around zero, within a distance of about one."""
    if shape == "star":
        angles = [math.pi * step / 5 - math.pi / 2 for step in range(10)]
        reach = [1.0 if step % 2 == 0 else 0.42 for step in range(10)]
        return [(r * math.cos(a), r * math.sin(a)) for r, a in zip(reach, angles, strict=True)]
    if shape == "cross":
        a = 0.32
        return [
            (-a, -1),
            (a, -1),
            (a, -a),
            (1, -a),
            (1, a),
            (a, a),
            (a, 1),
            (-a, 1),
            (-a, a),
            (-1, a),
            (-1, -a),
            (-a, -a),
        ]
    if shape == "house":
        return [(0, -1), (1, -0.1), (0.7, -0.1), (0.7, 0.9), (-0.7, 0.9), (-0.7, -0.1), (-1, -0.1)]
    return [(-1, -0.25), (0.1, -0.25), (0.1, -0.8), (1, 0), (0.1, 0.8), (0.1, 0.25), (-1, 0.25)]  # arrow
