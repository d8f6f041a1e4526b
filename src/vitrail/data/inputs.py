"""Resolve images that a user names or passes: files, folders, glob patterns and pictures in memory."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.core.errors import DataError
from vitrail.data.file_places import is_image_name
from vitrail.data.images import open_image

ImageInput = str | Path | Image.Image | np.ndarray
"""A file, a folder, a glob pattern, a Pillow image, or uint8 pixels ``height width [3]``."""
OneImage = Path | bytes | Image.Image | np.ndarray
"""One of them, with folders and patterns resolved, or the content of a file."""


def list_files(names: Iterable[str | Path]) -> list[Path]:
    """Expand folders and glob patterns; a plain file name stays, whether it exists or not.

    A folder stands for the visible images in it and its subfolders, by name. A missing file stays in the
    list, so that it is reported among the predictions instead of stopping them.

    Raises:
        DataError: a folder or a pattern holds no image, or no name was given.
    """
    files: list[Path] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            found = sorted(
                file
                for file in path.rglob("*")
                if is_image_name(file.name) and not file.name.startswith(".") and file.is_file()
            )
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


def name_inputs(inputs: ImageInput | Iterable[ImageInput]) -> list[tuple[str, OneImage]]:
    """List images with their names: the path of a file, or ``image N`` for the Nth without one."""
    is_one = isinstance(inputs, str | Path | Image.Image)
    if is_one or (isinstance(inputs, np.ndarray) and inputs.ndim < 4):
        inputs = [inputs]  # type: ignore[list-item]
    named: list[tuple[str, OneImage]] = []
    for index, given in enumerate(inputs):  # type: ignore[arg-type]
        if isinstance(given, Image.Image):
            named.append((str(getattr(given, "filename", "")) or f"image {index}", given))
        elif isinstance(given, np.ndarray):
            named.append((f"image {index}", given))
        else:
            named.extend((str(path), path) for path in list_files([given]))
    return named or [(str(path), path) for path in list_files([])]


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
    image = _from_array(given, called) if isinstance(given, np.ndarray) else given
    if image.mode == "F" and not np.isfinite(np.asarray(image)).all():
        raise DataError(
            f"{called} contains NaN or infinite values",
            expected="finite values, 0 to 1 or 0 to 255",
            remedy="Replace them before the image is given",
        )
    try:
        yield image
    except OSError as error:  # Pillow reads the file of an opened image only now
        raise DataError(
            f"{called} is damaged: {error}", expected="a complete image", remedy="Load it from an intact file"
        ) from None


def _from_array(pixels: np.ndarray, called: str) -> Image.Image:
    is_image = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)
    if pixels.dtype != np.uint8 or not is_image or not pixels.size:
        raise DataError(
            f"{called} is an array of {pixels.dtype} with the shape {pixels.shape}",
            expected="uint8 with the shape (height, width) or (height, width, 3)",
            remedy="Convert it; values of 0 to 1 by (values * 255).round().astype('uint8')",
        )
    return Image.fromarray(np.ascontiguousarray(pixels))
