"""Decode images to upright 8-bit RGB, or raise one clear error."""

from __future__ import annotations

import ctypes
import io
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from vitrail.core.errors import DataError, one_line
from vitrail.core.files import NoFileError, open_file, read_file
from vitrail.data.file_places import RAW_SUFFIXES

warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # MAX_BYTES bounds the memory

MAX_PIXELS = 178_956_970  # Pillow's own limit against decompression bombs: half a gigabyte of RGB
MAX_BYTES = 1_000_000_000  # of memory that images take while they are decoded, in all threads together
LARGE_BYTES = 1 << 26  # above, memory is given back to the system once an image is done
STRIP_PIXELS = 1 << 20  # that are converted at a time, where that takes several times their memory
STORED_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}  # of a pixel; else 4
DECODER_BYTES = {"WEBP": 10, "AVIF": 10, "HEIF": 10, "JPEG2000": 13, "TIFF": 4}  # beside these; docs/log.md
PROGRESSIVE_BYTES = 6  # of a progressive JPEG's coefficients, for a pixel before its size is reduced
BACKGROUND = (255, 255, 255)  # seen through transparent pixels
ORIENTATION_TAG = 0x0112  # Exif 2.32, table 4
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Formats that data comes in. Pillow knows more; some of those decode or start other programs to tell a size.
READ_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "AVIF", "JPEG2000", "HEIF")
HEIC, AVIF = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"), (b"avif", b"avis")
PACKAGES = {  # of formats that Pillow may not read itself, by the brand after "ftyp" (ISO 14496-12)
    **dict.fromkeys(HEIC, ("HEIC", "pillow-heif")),
    **dict.fromkeys(AVIF, ("AVIF", "--upgrade pillow")),
}
NOT_OPENED: dict[type[Exception], tuple[str, str, str]] = {
    FileNotFoundError: ("does not exist", "an image file", "Correct the path"),
    IsADirectoryError: ("is a folder", "an image file", "Name the files in it"),
    PermissionError: ("may not be read", "a readable file", "Change its permissions"),
    NoFileError: ("is a pipe, a device or a socket", "an image file", "Remove it, or name a file"),
}
SIXTEEN_BIT_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")


class TooManyPixelsError(DataError):
    """An image exceeds its reader's pixel limit."""


class NoReaderError(DataError):
    """An image is intact, and nothing that is installed reads it."""


def read_image(
    source: Path | bytes | np.ndarray,
    *,
    at_least: tuple[int, int] | None = None,
    name: str | None = None,
) -> Image.Image:
    """Decode an image to upright 8-bit RGB.

    The Exif orientation is applied. Transparent pixels show white. Grey becomes three equal channels; 16-bit
    values are divided by 257, whatever their range in this image, so that images stay comparable; floating
    point values are taken as 0..1 if none is larger, as 0..255 else. Of an animation the first frame is read.

    Args:
        source: a file, the bytes of one, or uint8 pixels ``height width`` or ``height width 3``.
        at_least: height and width that suffice; a large JPEG is then decoded at a half, a quarter or an
            eighth of its size, which saves most of the time.
        name: the image's name in errors; by default the path.

    Raises:
        TooManyPixelsError: the image is too large.
        DataError: the file is missing, empty, truncated, or no image of one of ``READ_FORMATS``.
    """
    with open_image(source, name=name, keeps=True) as image:
        return decode(image, at_least=at_least)


@contextmanager
def open_image(
    source: Path | bytes | np.ndarray,
    *,
    name: str | None = None,
    max_pixels: int = MAX_PIXELS,
    keeps: bool = False,
) -> Iterator[Image.Image]:
    """Open an image so far that its size is known; ``decode`` reads its pixels inside the context.

    More than ``max_pixels`` are refused before anything is decoded. The pixels are freed at the end, unless
    ``keeps``. Other arguments and errors are those of ``read_image``; errors of decoding inside the context
    become ``DataError`` too.
    """
    called = name if name is not None else str(source) if isinstance(source, Path) else "an image in memory"
    if isinstance(source, np.ndarray):
        yield Image.fromarray(source)
        return
    if isinstance(source, Path) and source.suffix.lower() in RAW_SUFFIXES:  # Pillow would find the thumbnail
        raise NoReaderError(
            f"{called} is a camera's raw file, which is not read",
            expected="a JPEG, HEIC or PNG copy",
            remedy="Export such copies with the program of the camera",
        )
    try:
        with (
            _MEMORY.scope(called),
            open_file(source) if isinstance(source, Path) else io.BytesIO(source) as file,
            Image.open(file, formats=readable_formats()) as image,
        ):
            if image.width * image.height > max_pixels:
                raise _bomb(called, _size_of(image), f"{max_pixels:,} pixels")
            if image.format == "HEIF":
                _MEMORY.take(image, _decoded_bytes(image))
                image.load()  # may turn the image, and only then is its size that of the pixels
            try:
                yield image
            finally:
                if not keeps:
                    image.close()
    except (DataError, MemoryError):
        raise
    except Image.DecompressionBombError:
        raise _bomb(called, "too many pixels", f"{max_pixels:,} pixels") from None
    except Exception as error:  # Pillow's readers raise whatever their parsers meet in a damaged file
        raise _unreadable(source, called, error) from None


@cache
def readable_formats() -> tuple[str, ...]:
    """Return those of ``READ_FORMATS`` that Pillow reads with the installed packages."""
    Image.init()
    with suppress(ImportError):
        from pillow_heif import register_heif_opener

        register_heif_opener()
    return tuple(name for name in READ_FORMATS if name in Image.OPEN)


def decode(image: Image.Image, *, at_least: tuple[int, int] | None = None) -> Image.Image:
    """Return the pixels of an image from ``open_image``, upright, 8-bit RGB; see ``read_image``.

    Waits until the images that other threads decode leave enough of ``MAX_BYTES``.

    Raises:
        TooManyPixelsError: more memory than that would be needed.
    """
    orientation = exif_orientation(image)
    besides = PROGRESSIVE_BYTES * image.width * image.height if "progressive" in image.info else 0
    if at_least is not None and image.format in ("JPEG", "MPO"):
        height, width = at_least if orientation < 5 else at_least[::-1]
        image.draft(None, (width, height))
    _MEMORY.take(image, besides + _decoded_bytes(image, is_turned=orientation in UPRIGHT))
    image.load()
    upright = image.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else image
    return _to_rgb(upright)


def _decoded_bytes(image: Image.Image, *, is_turned: bool = False) -> int:
    """Return the memory that the pixels of an image take while ``decode`` brings them to RGB."""
    stored = STORED_BYTES.get(image.mode, 4) * (1 + is_turned)
    converted = 0 if image.mode == "RGB" and not is_transparent(image) else 4
    decoder = DECODER_BYTES.get(image.format or "", 0)
    return image.width * image.height * (stored + converted + decoder)


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Return the upright height and width of an image from ``open_image``."""
    width, height = image.size
    return (height, width) if exif_orientation(image) < 5 else (width, height)


def exif_orientation(image: Image.Image) -> int:
    """Return the Exif orientation 1..8; 1, upright, if none is stored or Pillow applies it itself."""
    if image.format == "TIFF":  # Pillow turns TIFF images while it decodes them
        return 1
    if image.format == "PNG":  # whose Exif data may follow the pixels, which are decoded for it
        _MEMORY.take(image, _decoded_bytes(image))
    try:
        value = image.getexif().get(ORIENTATION_TAG, 1)
    except (OSError, SyntaxError, ValueError, KeyError, TypeError):
        if image.format == "PNG":  # this file is damaged
            raise
        return 1
    return value if value in UPRIGHT else 1


def strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Yield an image in strips of whole rows, each with its top; a small one as it is."""
    rows = max(STRIP_PIXELS // image.width, 1)
    if rows >= image.height:
        yield 0, image
        return
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def is_transparent(image: Image.Image) -> bool:
    """Return whether a pixel may be transparent; Pillow itself fails where a palette is missing."""
    return not (image.mode == "P" and image.palette is None) and image.has_transparency_data


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode not in SIXTEEN_BIT_MODES and not is_transparent(image):
        return image if image.mode == "RGB" else image.convert("RGB")
    scale = 1.0
    if image.mode == "F":
        scale = 255.0 if max(_finite(np.asarray(part)).max() for _, part in strips(image)) <= 1.0 else 1.0
    converted = Image.new("RGB", image.size)
    for top, part in strips(image):
        if image.mode in SIXTEEN_BIT_MODES:
            seen = Image.fromarray(_to_eight_bits(np.asarray(part), scale))
        else:
            transparent = part.convert("RGBA")
            background = Image.new("RGBA", part.size, (*BACKGROUND, 255))
            seen = Image.alpha_composite(background, transparent)
        converted.paste(seen.convert("RGB"), (0, top))
    return converted


def _finite(values: np.ndarray) -> np.ndarray:
    return np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def _to_eight_bits(values: np.ndarray, scale: float) -> np.ndarray:
    if values.dtype.kind == "f":
        return np.clip(np.rint(_finite(values) * scale), 0, 255).astype(np.uint8)
    clipped = np.clip(values.astype(np.int64), 0, 65535)
    return ((clipped + 128) // 257).astype(np.uint8)


class _Memory:
    """The bytes that decoding may take: each thread waits until those of the others leave enough.

    Args:
        most: of all threads together.
    """

    def __init__(self, most: int) -> None:
        self.most = self._left = most
        self._changed = threading.Condition()
        self._thread = threading.local()

    @contextmanager
    def scope(self, called: str) -> Iterator[None]:
        """Give back at the end what ``take`` took inside."""
        outer = getattr(self._thread, "scope", None)
        self._thread.scope = [called, 0, outer is not None]
        try:
            yield
        finally:
            (_, taken, _), self._thread.scope = self._thread.scope, outer
            if taken:
                with self._changed:
                    self._left += taken
                    self._changed.notify_all()
            if taken >= LARGE_BYTES:  # which glibc would keep; other C libraries have no such call
                with suppress(OSError, AttributeError):
                    ctypes.CDLL(None).malloc_trim(0)

    def take(self, image: Image.Image, size: int) -> None:
        """Raise what this image takes to so many bytes; wait for them, unless its thread has some already."""
        scope = getattr(self._thread, "scope", None)
        if scope is None:  # an image that somebody else opened
            return
        if size > self.most:
            taken = f"{_size_of(image)} of mode {image.mode}, which take {size / 1e9:.1f} GB"
            raise _bomb(scope[0], taken, f"{self.most / 1e9:.1f} GB while it is decoded")
        with self._changed:
            self._changed.wait_for(lambda: scope[1] or scope[2] or self._left >= size)
            self._left -= max(size - scope[1], 0)
        scope[1] = max(size, scope[1])


_MEMORY = _Memory(MAX_BYTES)


def _size_of(image: Image.Image) -> str:
    return f"{image.width:,} x {image.height:,} pixels"


def _bomb(called: str, size: str, most: str) -> TooManyPixelsError:
    return TooManyPixelsError(
        f"{called} has {size}",
        expected=f"at most {most}",
        remedy="Make a smaller copy of it, or leave it out",
    )


def _unreadable(source: Path | bytes, called: str, error: Exception) -> DataError:
    if type(error) in NOT_OPENED:
        given, expected, remedy = NOT_OPENED[type(error)]
        return DataError(f"{called} {given}", expected=expected, remedy=remedy)
    expected = "a complete image file, such as a JPEG or a PNG"
    remedy = "Replace or remove it; 'vitrail check' lists every such file"
    size = source.stat().st_size if isinstance(source, Path) and source.exists() else None
    if size == 0 or source == b"":
        return DataError(f"{called} is empty, 0 bytes", expected=expected, remedy=remedy)
    if isinstance(error, UnidentifiedImageError):
        head = source[:12] if isinstance(source, bytes) else read_file(source, 12)
        form, package = PACKAGES.get(head[8:] if head[4:8] == b"ftyp" else b"", ("", ""))
        if form:
            return NoReaderError(
                f"{called} is {form}, which the installed Pillow does not read",
                expected="a package that reads it, or a JPEG or PNG copy",
                remedy=f"Install it: pip install {package}",
            )
        return DataError(
            f"{called} is not an image of a known format",
            expected=f"{expected}; known are {', '.join(readable_formats())}",
            remedy=remedy,
        )
    return DataError(f"{called} is damaged: {one_line(error)}", expected=expected, remedy=remedy)
