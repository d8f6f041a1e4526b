"""Folders of tiny images to train and test on."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CLASS_COLOURS = {"blue": (30, 60, 200), "green": (20, 160, 40), "red": (210, 40, 30)}


def write_image_folder(root: Path, *, per_class: int, seed: int = 0) -> Path:
    """Write noisy images of one colour per class, PNG and JPEG in turn, no two alike."""
    generator = np.random.default_rng(seed)
    for name, colour in CLASS_COLOURS.items():
        (root / name).mkdir(parents=True)
        for index in range(per_class):
            height, width = 17 + 2 * index, 23 - 2 * index
            noise = generator.integers(-25, 26, size=(height, width, 3))
            pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
            suffix = ".png" if index % 2 == 0 else ".jpg"
            Image.fromarray(pixels).save(root / name / f"{name}-{index}{suffix}")
    return root


def noise(size: tuple[int, int], *, seed: int = 0) -> Image.Image:
    """An image of noise, `size` pixels wide and high, the same for the same seed."""
    width, height = size
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def encode(image: Image.Image | np.ndarray, form: str = "PNG", **options: Any) -> bytes:
    """Return the bytes of an image file."""
    written = io.BytesIO()
    picture = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    picture.save(written, form, **options)
    return written.getvalue()
