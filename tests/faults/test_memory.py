"""Decoding keeps to its limit of bytes in every mode, alone and in threads, and strips change no pixel."""

from __future__ import annotations

import importlib
import io
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitrail.core.errors import DataError
from vitrail.data.images import TooManyPixelsError, open_image, read_image
from vitrail.data.inspection import inspect_image

IMAGES: Any = importlib.import_module("vitrail.data.images")
SIDES = 90, 70
PIXELS = SIDES[0] * SIDES[1]


def encoded(mode: str, form: str = "PNG", **options: Any) -> bytes:
    rng = np.random.default_rng(7)
    colours = Image.fromarray(rng.integers(0, 256, (*SIDES, 4), dtype=np.uint8))
    if mode in ("I;16", "I", "F"):
        values = rng.integers(0, 65536, SIDES)
        kind = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
        colours = Image.fromarray((values / 65535 if mode == "F" else values).astype(kind))
    elif mode != "RGBA":
        colours = colours.convert("RGB").quantize(64) if mode == "P" else colours.convert(mode)
    content = io.BytesIO()
    colours.save(content, form, **options)
    return content.getvalue()


def turned(mode: str) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(mode, exif=exif)


SAMPLES = {
    "RGB": (encoded("RGB"), 4),
    "RGBA": (encoded("RGBA"), 8),
    "L": (encoded("L"), 5),
    "1": (encoded("1"), 5),
    "LA": (encoded("LA"), 8),
    "I;16": (encoded("I;16"), 6),
    "P": (encoded("P"), 5),
    "P with alpha": (encoded("P", transparency=bytes(range(64))), 5),
    "RGB with a clear colour": (encoded("RGB", transparency=(1, 2, 3)), 8),
    "RGB turned": (turned("RGB"), 8),
    "RGBA turned": (turned("RGBA"), 12),
    "L turned": (turned("L"), 6),
    "I": (encoded("I", "TIFF"), 12),
    "F": (encoded("F", "TIFF"), 12),
    "CMYK": (encoded("CMYK", "JPEG"), 8),
    "JPEG": (encoded("RGB", "JPEG"), 4),
    "progressive": (encoded("RGB", "JPEG", progressive=True), 10),
    "WebP": (encoded("RGB", "WEBP"), 14),
}


@pytest.mark.parametrize("sample", SAMPLES)
def test_bytes_are_counted_by_mode(sample: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content, size = SAMPLES[sample]
    whole = np.asarray(read_image(content))
    for most, is_read in ((size * PIXELS, True), (size * PIXELS - 1, False)):
        monkeypatch.setattr(IMAGES, "_MEMORY", IMAGES._Memory(most))
        if is_read:
            assert (np.asarray(read_image(content)) == whole).all()
            assert IMAGES._MEMORY._left == most
            continue
        with pytest.raises(
            TooManyPixelsError, match=r"^big has 70 x 90 pixels of mode \S+, which take 0.0 GB"
        ):
            read_image(content, name="big")
        assert IMAGES._MEMORY._left == most


@pytest.mark.parametrize("sample", SAMPLES)
def test_strips_change_no_pixel(sample: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content, _ = SAMPLES[sample]
    whole, inspected = np.asarray(read_image(content)), inspect_image(content, "a")
    monkeypatch.setattr(IMAGES, "STRIP_PIXELS", 300)
    assert (np.asarray(read_image(content)) == whole).all()
    assert inspect_image(content, "a") == inspected


def test_threads_wait_for_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    content, size = SAMPLES["RGBA"]
    memory = IMAGES._Memory(2 * size * PIXELS + 1)
    monkeypatch.setattr(IMAGES, "_MEMORY", memory)
    most, lock = [0], threading.Lock()

    def read(_: int) -> int:
        with open_image(content) as image:
            IMAGES.decode(image)
            with lock:
                most[0] = max(most[0], memory.most - memory._left)
            return image.width

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, range(40))) == [SIDES[1]] * 40
    assert most[0] <= memory.most == memory._left


def test_an_image_inside_another_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    content, size = SAMPLES["RGBA"]
    monkeypatch.setattr(IMAGES, "_MEMORY", IMAGES._Memory(size * PIXELS))
    with open_image(content) as outer:
        IMAGES.decode(outer)
        assert read_image(content).size == SIDES[::-1]


def test_broken_images_give_back_what_they_took(monkeypatch: pytest.MonkeyPatch) -> None:
    content, size = SAMPLES["RGBA"]
    memory = IMAGES._Memory(size * PIXELS)
    monkeypatch.setattr(IMAGES, "_MEMORY", memory)
    for _ in range(3):
        with pytest.raises(DataError):
            read_image(content[: len(content) // 2])
    assert memory._left == memory.most
