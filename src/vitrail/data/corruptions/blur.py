"""Blur: out of focus, through frosted glass, by motion and by zooming."""

from __future__ import annotations

import numpy as np
import scipy  # loads its parts when they are used

from vitrail.data.corruptions import Pixels, corruptions_of, filters
from vitrail.data.corruptions.filters import gaussian, zoom_in

SMALL_RADIUS = 8  # up to it the kernel has 17 x 17 weights, whatever its radius


def defocus_blur(pixels: Pixels, setting: tuple[float, float], generator: np.random.Generator) -> Pixels:
    """Average over a disk of some radius, its rim blurred by some deviation, both in pixels."""
    kernel = disk(*setting)
    reach = len(kernel) // 2
    # One channel after the other keeps the transforms small; the kernel is symmetric.
    padded = np.pad(pixels, ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    convolve = scipy.signal.fftconvolve
    return np.stack([convolve(padded[..., i], kernel, mode="valid") for i in range(3)], axis=-1)


def disk(radius: float, rim_sigma: float) -> np.ndarray:
    """Return the weights of a disk, its rim smoothed over 3 x 3 weights, or 5 x 5 of a large disk.

    They sum to one, or to slightly more if the rim reaches the end of the grid, as in the published code.
    """
    reach, taps = (SMALL_RADIUS, 1) if radius <= SMALL_RADIUS else (int(radius), 2)
    places = np.arange(-reach, reach + 1)
    weights = (places[:, None] ** 2 + places**2 <= radius**2).astype(np.float64)
    weights /= weights.sum()
    rim = np.exp(-(np.arange(-taps, taps + 1) ** 2) / (2 * rim_sigma**2))
    correlate = scipy.ndimage.correlate1d
    for axis in (0, 1):
        weights = correlate(weights, rim / rim.sum(), axis=axis, mode="mirror")
    return weights


def glass_blur(pixels: Pixels, setting: tuple[float, int, int], generator: np.random.Generator) -> Pixels:
    """Blur, replace pixels by near ones, and blur again.

    The published code means to swap two pixels and copies one of them; so does this, one after the other from
    the lower right to the upper left.

    Args:
        setting: deviation of the blur, how far a value may come from, and how often all pixels are visited.
    """
    sigma, reach, rounds = setting
    blurred = np.floor(gaussian(pixels, sigma) * 255 + 1e-6) / 255
    height, width = pixels.shape[:2]
    origin = list(range(height * width))
    for _ in range(rounds):
        rows, columns = (np.arange(side - reach, reach, -1) for side in (height, width))
        shifts = generator.integers(-reach, reach, size=(len(rows), len(columns), 2))
        places = rows[:, None] * width + columns
        sources = places + shifts[..., 0] * width + shifts[..., 1]
        for place, source in zip(places.ravel().tolist(), sources.ravel().tolist(), strict=True):
            origin[place] = origin[source]
    shuffled = blurred.reshape(height * width, 3)[origin].reshape(pixels.shape)
    return gaussian(shuffled, sigma)


def motion_blur(pixels: Pixels, setting: tuple[int, float], generator: np.random.Generator) -> Pixels:
    """Average within 45 degrees of the horizontal; radius and deviation along the line in pixels."""
    return np.rint(filters.motion_blur(pixels, *setting, generator.uniform(-45, 45)) * 255) / 255


def zoom_blur(pixels: Pixels, setting: tuple[float, float], generator: np.random.Generator) -> Pixels:
    """Average copies zoomed by factors from 1; the setting is their excluded end and step."""
    factors = np.arange(1, *setting)
    return (pixels + sum(zoom_in(pixels, factor) for factor in factors)) / (len(factors) + 1)


CORRUPTIONS = corruptions_of(
    "blur",
    {
        defocus_blur: (
            ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
            ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
            ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
        ),
        glass_blur: (
            ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
            ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
            ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
        ),
        motion_blur: (
            ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
            ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
            ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
        ),
        zoom_blur: (
            ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
            ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
            ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
        ),
    },
)
