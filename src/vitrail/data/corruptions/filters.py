"""Filters that several corruptions share: Gaussian and motion blur, zooming into the centre, plasma."""

from __future__ import annotations

import math

import numpy as np
import scipy  # loads its parts when they are used

from vitrail.data.corruptions import Pixels


def gaussian(pixels: np.ndarray, sigma: float, *, mode: str = "nearest", truncate: float = 4.0) -> np.ndarray:
    """Blur rows and columns, not channels; by default the edge is continued, as scikit-image does."""
    sigmas = (sigma, sigma) + (0.0,) * (pixels.ndim - 2)
    return scipy.ndimage.gaussian_filter(pixels, sigmas, mode=mode, truncate=truncate)


def motion_blur(pixels: np.ndarray, radius: int, sigma: float, angle_degrees: float) -> np.ndarray:
    """Average along a line that starts at each pixel, with half a Gaussian of weights; edges are continued.

    It is what ImageMagick does, whose line has ``2 radius + 1`` pixels, at offsets rounded to whole ones.
    """
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights /= weights.sum()
    angle = math.radians(angle_degrees)
    down = np.ceil(steps * math.sin(angle) - 0.5).astype(int)
    right = np.ceil(steps * math.cos(angle) - 0.5).astype(int)
    height, width = pixels.shape[:2]
    blurred = np.zeros_like(pixels)
    for weight, dy, dx in zip(weights, down, right, strict=True):
        rows = np.clip(np.arange(height) + dy, 0, height - 1)
        columns = np.clip(np.arange(width) + dx, 0, width - 1)
        blurred += weight * pixels[rows[:, None], columns]
    return blurred


def zoom_in(pixels: np.ndarray, factor: float) -> np.ndarray:
    """Enlarge the centre of an image by a factor of at least 1, linearly, to the size of the image."""
    height, width = pixels.shape[:2]
    rows, columns = math.ceil(height / factor), math.ceil(width / factor)
    top, left = (height - rows) // 2, (width - columns) // 2
    centre = pixels[top : top + rows, left : left + columns]
    factors = (factor, factor) + (1.0,) * (pixels.ndim - 2)
    enlarged = scipy.ndimage.zoom(centre, factors, order=1)
    top, left = (enlarged.shape[0] - height) // 2, (enlarged.shape[1] - width) // 2
    return enlarged[top : top + height, left : left + width]


def plasma(height: int, width: int, decay: float, generator: np.random.Generator) -> np.ndarray:
    """Return a cloud in 0..1 by the diamond-square algorithm, on a torus of a power of two.

    The amplitude of the noise falls by ``decay`` squared from one scale to the next finer one.
    """
    side = 1 << max(math.ceil(math.log2(max(height, width, 2))), 1)
    cloud, step, noise = np.zeros((side, side)), side, 100.0

    def vary(sums: np.ndarray) -> np.ndarray:
        return sums / 4 + noise * generator.uniform(-noise, noise, sums.shape)

    while step >= 2:
        half = step // 2
        corners = cloud[::step, ::step]
        sums = corners + np.roll(corners, -1, axis=0)
        cloud[half::step, half::step] = vary(sums + np.roll(sums, -1, axis=1))
        centres = cloud[half::step, half::step]
        cloud[::step, half::step] = vary(
            centres + np.roll(centres, 1, axis=0) + corners + np.roll(corners, -1, axis=1)
        )
        cloud[half::step, ::step] = vary(
            centres + np.roll(centres, 1, axis=1) + corners + np.roll(corners, -1, axis=0)
        )
        step, noise = half, noise / decay
    cloud -= cloud.min()
    return cloud[:height, :width] / cloud.max()


def grey(pixels: Pixels) -> np.ndarray:
    """Return the brightness of each pixel, ITU-R BT.601."""
    return pixels @ np.array([0.299, 0.587, 0.114])
