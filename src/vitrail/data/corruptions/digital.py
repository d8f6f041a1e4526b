"""Digital damage: contrast, warping, large pixels and compression."""

from __future__ import annotations

import io

import numpy as np
import scipy  # loads its parts when they are used
from PIL import Image

from vitrail.data.corruptions import Pixels, corruptions_of
from vitrail.data.corruptions.filters import gaussian

Elastic = tuple[float, float, float]


def contrast(pixels: Pixels, factor: float, generator: np.random.Generator) -> Pixels:
    """Draw every channel towards its mean over the image."""
    means = pixels.mean(axis=(0, 1), keepdims=True)
    return (pixels - means) * factor + means


def elastic_transform(pixels: Pixels, setting: Elastic, generator: np.random.Generator) -> Pixels:
    """Tilt the image a little, and move its pixels by a smooth random field.

    Args:
        setting: amplitude and smoothness of the field, and how far three points are tilted, in pixels.
    """
    amplitude, sigma, tilt = setting
    tilted = _tilt(pixels, tilt, generator)
    rows, columns = np.indices(pixels.shape[:2], dtype=np.float64)
    right, down = (
        gaussian(generator.uniform(-1, 1, size=rows.shape), sigma, mode="reflect", truncate=3) * amplitude
        for _ in range(2)
    )
    places = np.stack([rows + down, columns + right])
    read = scipy.ndimage.map_coordinates
    return np.stack([read(tilted[..., i], places, order=1, mode="reflect") for i in range(3)], axis=-1)


def pixelate(pixels: Pixels, factor: float, generator: np.random.Generator) -> Pixels:
    """Shrink the image, and enlarge its pixels again."""
    height, width = pixels.shape[:2]
    image = _to_image(pixels)
    small = image.resize((max(int(width * factor), 1), max(int(height * factor), 1)), Image.Resampling.BOX)
    return np.asarray(small.resize((width, height), Image.Resampling.BOX), dtype=np.float64) / 255


def jpeg_compression(pixels: Pixels, quality: int, generator: np.random.Generator) -> Pixels:
    """Write a JPEG file of a low quality and read it."""
    buffer = io.BytesIO()
    _to_image(pixels).save(buffer, "JPEG", quality=quality)
    with Image.open(buffer) as image:
        return np.asarray(image, dtype=np.float64) / 255


def _tilt(pixels: Pixels, tilt: float, generator: np.random.Generator) -> Pixels:
    """Move three points around the centre at random, and the image linearly with them, mirrored outside."""
    height, width = pixels.shape[:2]
    arm = min(height, width) // 3
    signs = np.array([[1, 1], [1, -1], [-1, -1]])
    before = np.array([width // 2, height // 2]) + arm * signs  # x y
    after = before + generator.uniform(-tilt, tilt, size=before.shape)
    # Where a pixel of the result comes from: x y 1 of the result times this is x y of the source.
    matrix = np.linalg.solve(np.column_stack([after, np.ones(3)]), before)
    linear, shift = matrix[:2].T[::-1, ::-1], matrix[2, ::-1]  # of rows and columns
    move = scipy.ndimage.affine_transform
    channels = [move(pixels[..., i], linear, shift, order=1, mode="mirror") for i in range(3)]
    return np.stack(channels, axis=-1)


def _to_image(pixels: Pixels) -> Image.Image:
    return Image.fromarray(np.rint(pixels * 255).astype(np.uint8))


def _scaled(side: int, *settings: Elastic) -> list[Elastic]:
    return [(side * amplitude, side * sigma, side * tilt) for amplitude, sigma, tilt in settings]


CORRUPTIONS = corruptions_of(
    "digital",
    {
        contrast: ((0.75, 0.5, 0.4, 0.3, 0.15), (0.4, 0.3, 0.2, 0.1, 0.05), (0.4, 0.3, 0.2, 0.1, 0.05)),
        elastic_transform: (
            _scaled(
                32, (0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)
            ),
            _scaled(
                64, (0, 0, 0.08), (0.05, 0.3, 0.06), (0.1, 0.08, 0.06), (0.1, 0.03, 0.03), (0.16, 0.03, 0.02)
            ),
            _scaled(  # 244 is the published code's own slip
                244, (2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)
            ),
        ),
        pixelate: ((0.95, 0.9, 0.85, 0.75, 0.65), (0.9, 0.8, 0.7, 0.6, 0.5), (0.6, 0.5, 0.4, 0.3, 0.25)),
        jpeg_compression: ((80, 65, 58, 50, 40), (65, 58, 50, 40, 25), (25, 18, 15, 10, 7)),
    },
)
