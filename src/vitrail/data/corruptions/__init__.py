"""The common corruptions of images: 15 kinds at five severities, by which robustness is measured.

Paper: Hendrycks and Dietterich 2019, "Benchmarking neural network robustness to common corruptions and
perturbations". A file of this folder defines ``CORRUPTIONS``; adding the file registers them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from vitrail.core.errors import ConfigError
from vitrail.core.registry import Registry
from vitrail.data.source import ImageSample, ImageSource
from vitrail.data.stream import seed_of

SEVERITIES = (1, 2, 3, 4, 5)
GROUPS = ("noise", "blur", "weather", "digital")  # in the paper's order
SIDES_PX = (32, 64, 224)  # of the images that CIFAR-10-C, Tiny ImageNet-C and ImageNet-C were made of

Pixels = np.ndarray
"""Float64 ``height width 3`` in 0..1."""


@dataclass(frozen=True)
class Corruption:
    """One corruption, with its settings at five severities for images of three sizes."""

    name: str
    """As published, in lower case."""
    group: str
    """noise, blur, weather or digital."""
    apply: Callable[[Pixels, Any, np.random.Generator], Pixels]
    """Returns damaged pixels, which may exceed 0..1; the second argument is the setting of a severity."""
    settings: Mapping[int, Sequence[Any]]
    """For each of ``SIDES_PX`` the five settings."""


def corrupt(
    pixels: UInt8[Tensor, "3 height width"], corruption: Corruption, severity: int, *, seed: int
) -> UInt8[Tensor, "3 height width"]:
    """Corrupt an image, always in the same way for the same seed.

    The settings are those of the published images that are nearest in size, by the ratio of the shorter
    sides: those of CIFAR-10-C for 32 pixels, of Tiny ImageNet-C for 64, of ImageNet-C for 224 and more.

    Paper: Hendrycks and Dietterich 2019, section 4; the numbers are those of the published code.
    Departs from it: images of other sizes than these are corrupted as they are, not at 224 pixels; and random
    numbers are drawn from a generator of our own, so that images are alike in kind and not pixel by pixel.

    Args:
        pixels: an image as a model's preprocessing crops it.
        severity: 1 to 5.
        seed: for instance the image's index in its data set; corruption and severity join it.

    Raises:
        ConfigError: there is no such severity.
    """
    if severity not in SEVERITIES:
        raise ConfigError(
            f"a severity of {severity}", expected="1, 2, 3, 4 or 5", remedy="Choose one of these"
        )
    generator = np.random.default_rng(seed_of("corruption", corruption.name, severity, seed))
    values = pixels.permute(1, 2, 0).numpy().astype(np.float64) / 255
    setting = corruption.settings[nearest_side(min(values.shape[:2]))][severity - 1]
    damaged = np.clip(corruption.apply(values, setting, generator), 0, 1) * 255
    # A thousandth above the truncation, so that whole numbers survive the division by 255.
    return torch.from_numpy((damaged + 1e-3).astype(np.uint8).transpose(2, 0, 1).copy())


def nearest_side(side_px: int) -> int:
    """Return the published size that is nearest to an image's shorter side."""
    return min(SIDES_PX, key=lambda known: abs(math.log(known / side_px)))


def corruptions_of(
    group: str, settings: Mapping[Callable[..., Pixels], Sequence[Sequence[Any]]]
) -> dict[str, Corruption]:
    """Return the corruptions of a group by name.

    Args:
        settings: for each function the settings at five severities for each of ``SIDES_PX``: of CIFAR-10-C,
            Tiny ImageNet-C and ImageNet-C.
    """
    return {
        apply.__name__: Corruption(apply.__name__, group, apply, dict(zip(SIDES_PX, rows, strict=True)))
        for apply, rows in settings.items()
    }


class CorruptedSource:
    """Load the images of a source corrupted at a severity of 1 to 5, always in the same way per image."""

    def __init__(self, images: ImageSource, corruption: Corruption, severity: int) -> None:
        self.images, self.corruption, self.severity = images, corruption, severity

    def __len__(self) -> int:
        return len(self.images)

    def prepare(self) -> None:
        self.images.prepare()

    def load(self, index: int, generator: torch.Generator | None) -> ImageSample:
        sample = self.images.load(index, generator)
        damaged = corrupt(sample.image, self.corruption, self.severity, seed=sample.index)
        return replace(sample, image=damaged)


CORRUPTIONS: Registry[Corruption] = Registry(
    "corruption", "vitrail.data.corruptions", lambda module: getattr(module, "CORRUPTIONS", {})
)
