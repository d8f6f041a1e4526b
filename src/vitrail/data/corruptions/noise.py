"""Noise: of the sensor, of few photons, and of broken pixels."""

from __future__ import annotations

import numpy as np

from vitrail.data.corruptions import Pixels, corruptions_of


def gaussian_noise(pixels: Pixels, deviation: float, generator: np.random.Generator) -> Pixels:
    """Add normal noise to every value."""
    return pixels + generator.normal(scale=deviation, size=pixels.shape)


def shot_noise(pixels: Pixels, photons: float, generator: np.random.Generator) -> Pixels:
    """Draw a Poisson number of photons, of which a white pixel has so many on average."""
    return generator.poisson(pixels * photons) / photons


def impulse_noise(pixels: Pixels, share: float, generator: np.random.Generator) -> Pixels:
    """Set a share of all values to black or white, each channel by itself."""
    is_hit = generator.random(pixels.shape) <= share
    return np.where(is_hit, generator.random(pixels.shape) <= 0.5, pixels)


CORRUPTIONS = corruptions_of(
    "noise",
    {
        gaussian_noise: (
            (0.04, 0.06, 0.08, 0.09, 0.10),
            (0.04, 0.08, 0.12, 0.15, 0.18),
            (0.08, 0.12, 0.18, 0.26, 0.38),
        ),
        shot_noise: ((500, 250, 100, 75, 50), (250, 100, 50, 30, 15), (60, 25, 12, 5, 3)),
        impulse_noise: (
            (0.01, 0.02, 0.03, 0.05, 0.07),
            (0.01, 0.02, 0.05, 0.08, 0.14),
            (0.03, 0.06, 0.09, 0.17, 0.27),
        ),
    },
)
