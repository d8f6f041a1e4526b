"""Copy images to files: byte by byte, or as upright pixels if a tag turns them."""

from __future__ import annotations

import io
from collections.abc import Collection
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from vitrail.core.durable import write_durably
from vitrail.data.dataset import EncodedImage
from vitrail.data.images import decode, open_image
from vitrail.data.inspection import Inspection

SUFFIXES = {"JPEG": ".jpg", "MPO": ".jpg", "PNG": ".png", "WEBP": ".webp", "BMP": ".bmp", "TIFF": ".tif"}
JPEG_QUALITY = 95  # of re-encoded images; above, files grow and pixels hardly change


def name_of_copy(source: EncodedImage, name: str, seen: Inspection) -> str:
    """Return the copy's file name: as the source, with the suffix of what it holds."""
    given = PurePosixPath(source.name if isinstance(source, Path) else name.replace("\\", "/"))
    suffix = _suffix(source, given, seen)
    is_suffix = given.suffix.lower() in Image.registered_extensions()
    stem = given.name.removesuffix(given.suffix) if is_suffix else given.name
    return (stem.lstrip(".") or "image") + suffix


def free_name(name: str, taken: Collection[str]) -> str:
    """Number a name if it is taken; ``taken`` is case-folded, as some file systems compare names.

    >>> free_name("a.jpg", {"a.jpg", "a-2.jpg"})
    'a-3.jpg'
    """
    path, number, candidate = PurePosixPath(name), 1, name
    while candidate.casefold() in taken:
        number += 1
        candidate = f"{path.stem}-{number}{path.suffix}"
    return candidate


def copy_image(source: EncodedImage, path: Path, seen: Inspection, *, called: str) -> None:
    """Write an image to a file: its bytes as they are, or its pixels if it is not stored upright."""
    if seen.orientation == 1 and not isinstance(source, np.ndarray):
        write_durably(path, source.read_bytes() if isinstance(source, Path) else source)
        return
    buffer = io.BytesIO()
    with open_image(source, name=called) as image:
        profile = image.info.get("icc_profile") if image.mode == "RGB" else None
        if path.suffix == ".jpg":
            decode(image).save(
                buffer, format="JPEG", quality=JPEG_QUALITY, subsampling=0, icc_profile=profile
            )
        else:
            decode(image).save(buffer, format="PNG", icc_profile=profile)
    write_durably(path, buffer.getvalue())


def _suffix(source: EncodedImage, given: PurePosixPath, seen: Inspection) -> str:
    if isinstance(source, np.ndarray):
        return ".png"
    with open_image(source, name=given.name) as image:
        kind = image.format or ""
    if seen.orientation != 1:
        return ".jpg" if kind in ("JPEG", "MPO") else ".png"
    is_right = isinstance(source, Path) and not seen.other_format
    return given.suffix if is_right and given.suffix else SUFFIXES.get(kind, f".{kind.lower()}")
