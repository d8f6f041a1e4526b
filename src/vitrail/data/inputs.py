"""Resolve images that a user names or passes: files, folders, glob patterns and pictures in memory."""

from __future__ import annotations

import glob
import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from PIL import Image

from vitrail.core.errors import ConfigError, DataError
from vitrail.data.file_places import is_image_name, walk
from vitrail.data.images import open_image

ImageInput = str | Path | bytes | BinaryIO | Image.Image | np.ndarray | torch.Tensor
"""A file, a folder, a glob pattern, the content of a file, a file opened as bytes, a Pillow image, or pixels:
uint8 or floats of 0 to 1, grey ``height width``, or with 1, 3 or 4 channels (RGB, RGBA), first or last.
"""
OneImage = Path | bytes | Image.Image | np.ndarray | torch.Tensor
"""One of them, with folders and patterns resolved and opened files read."""


def list_files(names: Iterable[str | Path]) -> list[Path]:
    """Expand folders and glob patterns; a plain file name stays, whether it exists or not.

    A folder stands for the visible images in it and its subfolders. A missing file stays in the
    list, so that it is reported among the predictions instead of stopping them.

    Raises:
        DataError: a folder or a pattern holds no image, or no name was given.
    """
    files: list[Path] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            found = [file for file in sorted(walk(path)) if _is_image(file)]
        elif glob.has_magic(str(name)) and not path.exists():
            found = sorted(
                Path(match) for match in glob.glob(str(name), recursive=True) if Path(match).is_file()
            )
        else:
            found = [path]
        if not found:
            raise DataError(
                f"{name} holds no image",
                expected="a folder or a pattern with image files, such as photos/ or 'photos/*.jpg'",
                remedy="Correct the path, or name the files one by one",
            )
        files.extend(found)
    if not files:
        raise DataError("no image was named", expected="one or more files", remedy="Name a file or a folder")
    return files


def _is_image(file: Path) -> bool:
    """Tell images by their suffix, and files without one by their content."""
    if file.suffix:
        return is_image_name(file.name)
    with suppress(DataError), open_image(file):
        return True
    return False


def name_inputs(inputs: object) -> list[tuple[str, OneImage]]:
    """List images with their names: the path of a file, or ``image N`` for the Nth without one.

    Args:
        inputs: an ``ImageInput``, or several.

    Raises:
        ConfigError: something is no image by its type.
        DataError: a folder or a pattern holds no image, or nothing was given.
    """
    if isinstance(inputs, np.ndarray | torch.Tensor):
        each: Any = inputs if inputs.ndim == 4 else [inputs]
    else:
        is_several = isinstance(inputs, Iterable) and not isinstance(inputs, str | bytes | bytearray)
        each = inputs if is_several and not hasattr(inputs, "read") else [inputs]
    named = [one for index, given in enumerate(each) for one in _name_one(given, f"image {index}")]
    return named or [(str(path), path) for path in list_files([])]


def name_input(image: object) -> tuple[str, OneImage]:
    """Return one image with its name, as ``name_inputs`` does; ``DataError`` if there are several."""
    first, *others = name_inputs([image])
    if others:
        raise DataError(
            f"{image} holds {len(others) + 1} images", expected="one image", remedy="Name one of them"
        )
    return first


def _name_one(given: Any, place: str) -> list[tuple[str, OneImage]]:
    if isinstance(given, str) and "://" in given:
        raise DataError(
            f"{given} is an address", expected="a file or a folder", remedy="Download the image first"
        )
    if isinstance(given, str | os.PathLike):
        return [(str(path), path) for path in list_files([Path(given)])]
    if isinstance(given, np.ndarray | torch.Tensor):
        return [(place, given)]
    if isinstance(given, bytes | bytearray):
        return [(place, bytes(given))]
    if isinstance(given, Image.Image):
        return [(str(getattr(given, "filename", "")) or place, given)]
    is_text = isinstance(given, io.TextIOBase)  # whose bytes need not be UTF-8
    content = given.read() if hasattr(given, "read") and not is_text else None
    name = getattr(given, "name", None)
    if not isinstance(content, bytes):
        kind = "a file that was opened as text" if is_text else f"of the type {type(given).__name__}"
        raise ConfigError(
            f"{place} is {kind}",
            expected="a path, bytes, a file of open(path, 'rb'), a Pillow image, an array or a tensor",
            remedy="Give one of these, or a list of them",
        )
    return [(name if isinstance(name, str) else place, content)]


@contextmanager
def open_input(given: OneImage, name: str | None = None) -> Iterator[Image.Image]:
    """Open an image so far that its size is known, for ``data.images.decode`` inside the context.

    Raises:
        DataError: it cannot be read, is no image, or holds NaN or infinite values.
    """
    if isinstance(given, Path | bytes):
        with open_image(given, name=name) as image:
            yield image
        return
    called = name or "the image"
    image = given if isinstance(given, Image.Image) else _from_pixels(given, called)
    if image.mode == "F":
        _check_finite(np.asarray(image), called)
    try:
        yield image
    except OSError as error:  # Pillow reads the file of an opened image only now
        raise DataError(
            f"{called} is damaged: {error}", expected="a complete image", remedy="Load it from an intact file"
        ) from None


def _from_pixels(given: np.ndarray | torch.Tensor, called: str) -> Image.Image:
    if is_tensor := isinstance(given, torch.Tensor):
        on_cpu = given.detach().cpu()
        pixels = (on_cpu.float() if on_cpu.is_floating_point() else on_cpu).numpy()  # from bfloat16
    else:
        pixels = given
    if pixels.ndim == 4 and len(pixels) == 1:
        pixels = pixels[0]
    channels = (1, 3, 4)
    has_first, has_last = (pixels.ndim == 3 and pixels.shape[side] in channels for side in (0, 2))
    if has_first and (is_tensor or not has_last):
        pixels, has_last = pixels.transpose(1, 2, 0), True
    is_float = pixels.dtype.kind == "f"
    if not (pixels.ndim == 2 or has_last) or not (is_float or pixels.dtype == np.uint8) or not pixels.size:
        raise DataError(
            f"{called} is {'a tensor' if is_tensor else 'an array'} of {given.dtype} with the shape "
            f"{tuple(given.shape)}",
            expected="uint8, or floats of 0 to 1, with the shape (height, width), (height, width, channels) "
            "or (channels, height, width) and 1, 3 or 4 channels",
            remedy="Convert it",
        )
    if is_float:
        _check_finite(pixels, called)
        least, most = pixels.min(), pixels.max()
        if least < 0 or most > 1:
            raise DataError(
                f"{called} has floating-point values of {least:.4g} to {most:.4g}",
                expected="floats of 0 to 1, before any normalisation, or uint8",
                remedy="Give the pixels of the file; they are normalised here, as in training",
            )
        pixels = np.rint(pixels * 255).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels))


def _check_finite(values: np.ndarray, called: str) -> None:
    if not np.isfinite(values).all():
        raise DataError(
            f"{called} contains NaN or infinite values",
            expected="finite values",
            remedy="Replace them before the image is given",
        )
