"""Weather: snow, frost, fog and bright light."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.data.corruptions import Pixels, corruptions_of, nearest_side
from vitrail.data.corruptions.filters import grey, motion_blur, plasma, zoom_in
from vitrail.data.file_places import data_folders

NUM_PICTURES = 5  # the published code draws from the first five of its six
PICTURE_SCALES = {32: 0.2, 64: 0.3, 224: 1.0}  # to which it shrinks them, by the size of the images
ICE = np.array([0.86, 0.93, 1.0])  # the colour of drawn frost

Snow = tuple[float, float, float, float, int, float, float]


def snow(pixels: Pixels, setting: Snow, generator: np.random.Generator) -> Pixels:
    """Whiten the image, and let flakes fall in two directions.

    Args:
        setting: mean and deviation of the flakes' brightness, their size, the brightness below which there
            is none, radius and deviation of their motion, and how much of the image stays as it is.
    """
    mean, deviation, size, threshold, radius, sigma, kept = setting
    flakes = zoom_in(generator.normal(mean, deviation, size=pixels.shape[:2]), size)
    flakes = np.where(flakes < threshold, 0.0, np.clip(flakes, 0, 1))
    flakes = np.floor(flakes * 255) / 255
    flakes = np.rint(motion_blur(flakes, radius, sigma, generator.uniform(-135, -45)) * 255)[..., None] / 255
    white = np.maximum(pixels, grey(pixels)[..., None] * 1.5 + 0.5)
    back = np.rot90(flakes, k=2)
    return kept * pixels + (1 - kept) * white + flakes + back


def frost(pixels: Pixels, setting: tuple[float, float], generator: np.random.Generator) -> Pixels:
    """Overlay a picture of frost.

    The published pictures are read from ``frost/`` in the folder that ``VITRAIL_DATA`` names.
    Departs from the published code if they are missing: the frost is then drawn, as crystals along the
    ridges of a plasma, so that scores under it are comparable only with each other.

    Args:
        setting: weights of the image and of the frost.
    """
    height, width = pixels.shape[:2]
    pictures = _frost_pictures(frost_folder(), PICTURE_SCALES[nearest_side(min(height, width))])
    fitting = [picture for picture in pictures if picture.shape[0] > height and picture.shape[1] > width]
    if fitting:
        picture = fitting[int(generator.integers(len(fitting)))]
        top = int(generator.integers(picture.shape[0] - height))
        left = int(generator.integers(picture.shape[1] - width))
        layer = picture[top : top + height, left : left + width]
    else:
        layer = _draw_frost(height, width, generator)
    return setting[0] * pixels + setting[1] * layer


def frost_folder() -> Path | None:
    """Return the folder of the published frost pictures, or None."""
    return next(filter(Path.is_dir, data_folders("frost")), None)


def fog(pixels: Pixels, setting: tuple[float, float], generator: np.random.Generator) -> Pixels:
    """Add a cloud of some density and decay of finer parts; darken to the former maximum."""
    density, decay = setting
    brightest = pixels.max()
    cloud = plasma(pixels.shape[0], pixels.shape[1], decay, generator)[..., None]
    return (pixels + density * cloud) * brightest / (brightest + density)


def brightness(pixels: Pixels, shift: float, generator: np.random.Generator) -> Pixels:
    """Raise the value of hue, saturation and value.

    Hue and saturation stay as they are because all channels are multiplied by the same number.
    """
    value = pixels.max(axis=-1, keepdims=True)
    raised = np.minimum(value + shift, 1)
    return np.where(value > 0, pixels * raised / np.where(value > 0, value, 1), raised)


def _draw_frost(height: int, width: int, generator: np.random.Generator) -> Pixels:
    """Return bluish crystals: bright where a rough cloud crosses its middle, faint haze elsewhere."""
    rough = plasma(height, width, 1.5, generator)
    haze = plasma(height, width, 2.2, generator)
    crystals = (1 - np.abs(2 * rough - 1)) ** 4
    return np.clip(0.15 + 0.75 * crystals * (0.4 + 0.6 * haze) + 0.25 * haze, 0, 1)[..., None] * ICE


@lru_cache(maxsize=2)  # a process works with images of one size
def _frost_pictures(folder: Path | None, scale: float) -> tuple[Pixels, ...]:
    if folder is None:
        return ()
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".png", ".jpg", ".jpeg"))
    pictures = []
    for path in files[:NUM_PICTURES]:
        with Image.open(path) as opened:
            picture = opened.convert("RGB")
        size = (round(picture.width * scale), round(picture.height * scale))
        resized = picture if scale == 1 else picture.resize(size, Image.Resampling.BILINEAR)
        pictures.append(np.asarray(resized, dtype=np.float64) / 255)
    return tuple(pictures)


CORRUPTIONS = corruptions_of(
    "weather",
    {
        snow: (
            (
                (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
                (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
                (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
                (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
                (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
            ),
            (
                (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
                (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
                (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
                (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
                (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
            ),
            (
                (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
                (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
                (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
                (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
                (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
            ),
        ),
        frost: (
            ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
            ((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
            ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
        ),
        fog: (
            ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
            ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
            ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
        ),
        brightness: ((0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4, 0.5), (0.1, 0.2, 0.3, 0.4, 0.5)),
    },
)
