"""Whatever a file holds becomes upright 8-bit RGB, or one clear error."""

from __future__ import annotations

import io
import struct
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.core.errors import ConfigError, DataError
from vitrail.data.file_places import is_image_name
from vitrail.data.images import (
    ORIENTATION_TAG,
    NoReaderError,
    decode,
    is_transparent,
    open_image,
    read_image,
    readable_formats,
    upright_size,
)
from vitrail.data.inputs import name_input, name_inputs, open_input
from vitrail.data.inspection import inspect_image

GENERATOR = np.random.default_rng(0)
PIXELS = GENERATOR.integers(0, 256, size=(5, 7, 3), dtype=np.uint8)


def encoded(image: Image.Image, image_format: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A PNG that announces a size and holds next to nothing."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_a_file_bytes_and_pixels_give_the_same_image(tmp_path: Path) -> None:
    content = encoded(Image.fromarray(PIXELS))
    (tmp_path / "a.png").write_bytes(content)
    for source in (tmp_path / "a.png", content, PIXELS):
        image = read_image(source)
        assert image.mode == "RGB"
        assert np.array_equal(np.asarray(image), PIXELS)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    # how each orientation was stored, by the definition of the tag: transformations of the upright image
    stored = {
        1: PIXELS,
        2: PIXELS[:, ::-1],
        3: PIXELS[::-1, ::-1],
        4: PIXELS[::-1],
        5: PIXELS.transpose(1, 0, 2),
        6: np.rot90(PIXELS, 1),
        7: np.rot90(PIXELS, 2).transpose(1, 0, 2),
        8: np.rot90(PIXELS, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(Image.fromarray(np.ascontiguousarray(stored)), exif=exif)
    assert np.array_equal(np.asarray(read_image(content)), PIXELS)
    with open_image(content) as image:
        assert upright_size(image) == (5, 7)


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_tiff_is_turned_once(orientation: int) -> None:
    stored = PIXELS if orientation == 1 else np.rot90(PIXELS, 1)
    content = encoded(Image.fromarray(np.ascontiguousarray(stored)), "TIFF", tiffinfo={0x0112: orientation})
    assert np.array_equal(np.asarray(read_image(content)), PIXELS)
    with open_image(content) as image:
        assert upright_size(image) == (5, 7)


def test_an_invalid_orientation_is_ignored() -> None:
    exif = Image.Exif()
    exif[0x0112] = 99
    assert read_image(encoded(Image.fromarray(PIXELS), exif=exif)).size == (7, 5)


def test_transparency_shows_white() -> None:
    alpha = np.zeros((5, 7, 1), dtype=np.uint8)
    alpha[0] = 255
    image = np.asarray(read_image(encoded(Image.fromarray(np.concatenate([PIXELS, alpha], axis=2)))))
    assert np.array_equal(image[0], PIXELS[0])
    assert (image[1:] == 255).all()


def test_a_transparent_palette_colour_shows_white() -> None:
    palette = Image.new("P", (2, 1))
    palette.putpalette([0, 0, 0, 200, 10, 20])
    palette.putpixel((1, 0), 1)
    content = encoded(palette, transparency=0)
    assert np.asarray(read_image(content)).tolist() == [[[255, 255, 255], [200, 10, 20]]]


def test_an_image_without_the_palette_that_it_needs_is_read_as_pillow_does() -> None:
    image = Image.new("P", (2, 1))
    image.palette = None
    assert not is_transparent(image)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0, 257, 65535]], dtype=np.uint16), [0, 1, 255]),
        (np.array([[0, 128 * 257, 4095]], dtype=np.uint16), [0, 128, 16]),
        (np.array([[0.0, 0.5, 1.0]], dtype=np.float32), [0, 128, 255]),
        (np.array([[0.0, 127.6, 300.0]], dtype=np.float32), [0, 128, 255]),
    ],
)
def test_deep_grey_is_scaled_to_eight_bits(values: np.ndarray, expected: list[int]) -> None:
    image = np.asarray(read_image(encoded(Image.fromarray(values), "TIFF")))
    assert image[0, :, 0].tolist() == expected
    assert (image == image[..., :1]).all()


def test_sixteen_bit_png_is_scaled_and_not_clipped() -> None:
    values = np.array([[0, 1000, 32896, 65535]], dtype=np.uint16)
    assert np.asarray(read_image(encoded(Image.fromarray(values))))[0, :, 0].tolist() == [0, 4, 128, 255]


def test_cmyk_grey_and_bilevel_become_rgb() -> None:
    cmyk = Image.new("CMYK", (3, 2), (0, 255, 255, 0))
    red = np.asarray(read_image(encoded(cmyk, "TIFF")))
    assert red[0, 0, 0] > 200
    assert red[0, 0, 1:].max() < 60
    for mode in ("L", "1", "LA"):
        assert read_image(encoded(Image.new(mode, (3, 2)))).mode == "RGB"


def test_a_large_jpeg_is_decoded_no_larger_than_needed() -> None:
    content = encoded(Image.new("RGB", (800, 400), (10, 200, 30)), "JPEG")
    image = read_image(content, at_least=(90, 190))
    assert image.size == (200, 100)
    assert np.abs(np.asarray(image, dtype=int) - (10, 200, 30)).max() <= 3


def test_a_turned_jpeg_is_reduced_along_the_right_axis() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    content = encoded(Image.new("RGB", (800, 400)), "JPEG", exif=exif)
    assert read_image(content, at_least=(390, 190)).size == (200, 400)


def test_a_bomb_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(png_header(60_000, 60_000))
    start = time.perf_counter()
    with pytest.raises(DataError, match=r"bomb.png has .*pixels. Expected at most 178,956,970 pixels"):
        read_image(path)
    assert time.perf_counter() - start < 0.1


def icon(width: int, height: int) -> bytes:
    """An icon that announces 4 x 4 pixels and holds a PNG of any size."""
    content = encoded(Image.new("RGB", (width, height)))
    return struct.pack("<HHHBBBBHHII", 0, 1, 1, 4, 4, 0, 0, 1, 32, len(content), 22) + content


@pytest.mark.parametrize(
    "content",
    [icon(300, 200), b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 7 5\n%%EndComments\n"],
    ids=["ico", "eps"],
)
def test_formats_that_no_data_comes_in_are_refused_unread(content: bytes, monkeypatch: Any) -> None:
    # Pillow decodes an icon to tell its size, and starts Ghostscript for PostScript.
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    with pytest.raises(DataError, match=r"not an image of a known format.*known are JPEG, PNG"):
        read_image(content)


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000"])
def test_formats_that_data_comes_in_are_read(image_format: str) -> None:
    content = encoded(Image.fromarray(PIXELS), image_format)
    assert read_image(content).size == (7, 5)


def test_pictures_of_several_frames_of_a_camera_are_read() -> None:
    image = Image.fromarray(PIXELS)
    assert read_image(encoded(image, "MPO", save_all=True, append_images=[image])).size == (7, 5)


def test_a_lower_limit_of_pixels_can_be_set() -> None:
    with (
        pytest.raises(DataError, match=r"has 7 x 5 pixels. Expected at most 34 pixels"),
        open_image(PIXELS_PNG, max_pixels=34),
    ):
        pytest.fail("opened")
    with open_image(PIXELS_PNG, max_pixels=35) as image:
        assert image.size == (7, 5)


PIXELS_PNG = encoded(Image.fromarray(PIXELS))
PIXELS_JPEG = encoded(Image.fromarray(np.tile(PIXELS, (20, 20, 1))), "JPEG")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"x.jpg is empty, 0 bytes"),
        (b"this is no picture but a text\n", r"x.jpg is not an image of a known format"),
        (PIXELS_JPEG[: len(PIXELS_JPEG) // 2], r"x.jpg is damaged: .*truncated"),
        (PIXELS_PNG[: len(PIXELS_PNG) // 2], r"x.jpg is damaged"),
        (PIXELS_PNG[:20], r"x.jpg is (damaged|not an image)"),
        (PIXELS_JPEG[:30], r"x.jpg is (damaged|not an image)"),
        (PIXELS_PNG[:45] + b"\xff\x00\xff" + PIXELS_PNG[48:], r"x.jpg is damaged"),
        (png_header(4000, 400), r"x.jpg is damaged"),
    ],
    ids=["empty", "text", "half-jpeg", "half-png", "png-head", "jpeg-head", "flipped-bytes", "short-png"],
)
def test_damaged_files_are_named_with_a_remedy(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.jpg"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_image(path)
    assert str(path) in str(caught.value)
    assert "complete image file" in caught.value.expected
    with pytest.raises(DataError, match=message):
        read_image(content, name="x.jpg")


HEIC_HEAD = b"\0\0\0\x1cftypheic\0\0\0\0mif1heic"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEIC_HEAD, r"x.jpg is HEIC.* Install it: pip install pillow-heif\.$"),
        (HEIC_HEAD.replace(b"heic", b"avif"), r"x.jpg is AVIF.* Install it: pip install --upgrade pillow\.$"),
    ],
)
def test_a_format_without_a_reader_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, message: str
) -> None:
    monkeypatch.setattr("vitrail.data.images.readable_formats", lambda: ("JPEG", "PNG"))
    path = tmp_path / "x.jpg"
    path.write_bytes(content)
    for source in (path, content):
        with pytest.raises(NoReaderError, match=message):
            read_image(source, name="x.jpg")
    seen = inspect_image(path, "x.jpg")
    assert seen.error.startswith("x.jpg is ")
    assert "pip install" in seen.remedy


@pytest.mark.parametrize("name", ["a.nef", "a.CR2", "a.dng", "a.arw"])
def test_raw_files_of_cameras_are_named_and_their_thumbnails_not_read(tmp_path: Path, name: str) -> None:
    assert is_image_name(name)
    (tmp_path / name).write_bytes(encoded(Image.new("RGB", (16, 12)), "TIFF"))  # which they are, inside
    seen = inspect_image(tmp_path / name, name)
    assert seen.error == f"{name} is a camera's raw file, which is not read"
    assert seen.remedy.startswith("Export such copies")


def test_heic_is_read_where_its_package_is_installed() -> None:
    pytest.importorskip("pillow_heif", reason="pillow-heif is optional")
    readable_formats.cache_clear()
    readable_formats()  # registers the format with Pillow
    tags = Image.Exif()
    tags[ORIENTATION_TAG] = 6
    content = encoded(Image.fromarray(np.full((32, 48, 3), 90, np.uint8)), "HEIF", exif=tags.tobytes())
    with open_image(content) as image:
        assert upright_size(image) == (48, 32)
        assert decode(image).size == (32, 48)


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none.png does not exist"):
        read_image(tmp_path / "none.png")
    with pytest.raises(DataError, match=r"is a folder"):
        read_image(tmp_path)


def test_names_tell_files_from_pictures_in_memory(image_folder: Path) -> None:
    picture, pixels = Image.new("L", (3, 2)), np.zeros((2, 3, 3), np.uint8)
    opened = Image.open(image_folder / "red" / "red-0.png")
    named = name_inputs([picture, image_folder / "blue", pixels, opened])
    names = [name for name, _ in named]
    assert names[0] == "image 0"
    assert [Path(name).name for name in names[1:6]] == [path.name for path in sorted_files(image_folder)]
    assert names[6] == "image 2"
    assert Path(names[7]).name == "red-0.png"
    opened.close()


def sorted_files(folder: Path) -> list[Path]:
    return sorted((folder / "blue").iterdir())


def test_one_array_is_one_image_and_a_stack_is_several() -> None:
    pixels = np.zeros((5, 4, 3, 3), np.uint8)
    assert len(name_inputs(pixels)) == 5
    assert len(name_inputs(pixels[0])) == 1
    assert len(name_inputs(pixels[0, ..., 0])) == 1


def test_arrays_become_the_pictures_that_they_are() -> None:
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    with open_input(pixels) as image:
        assert np.array_equal(np.asarray(decode(image)), pixels)
    with open_input(pixels[::-1, :, 1]) as image:
        assert np.array_equal(np.asarray(decode(image))[..., 2], pixels[::-1, :, 1])


@pytest.mark.parametrize(
    "given",
    [
        *(PIXELS.astype(dtype) / 255 for dtype in (np.float16, np.float32, np.float64)),
        PIXELS.transpose(2, 0, 1),
        np.dstack([PIXELS, np.full((5, 7), 255, np.uint8)]),
        torch.from_numpy(PIXELS),
        torch.from_numpy(PIXELS).permute(2, 0, 1),
        torch.from_numpy(PIXELS).permute(2, 0, 1)[None],
        (torch.from_numpy(PIXELS).permute(2, 0, 1) / 255).requires_grad_(),
    ],
    ids=lambda given: f"{type(given).__name__}-{given.dtype}-{tuple(given.shape)}",
)
def test_pixels_of_any_kind_become_the_same_picture(given: np.ndarray | torch.Tensor) -> None:
    ((name, one),) = name_inputs([given])
    with open_input(one, name) as image:
        assert np.array_equal(np.asarray(decode(image)), PIXELS)


def test_of_two_readings_of_a_shape_tensors_have_channels_first() -> None:
    values = GENERATOR.integers(0, 256, size=(3, 6, 3), dtype=np.uint8)
    with open_input(values) as last, open_input(torch.from_numpy(values)) as first:
        assert np.array_equal(np.asarray(last), values)
        assert np.array_equal(np.asarray(first), values.transpose(1, 2, 0))
    grey = torch.from_numpy(values[None, ..., 0])
    with open_input(grey) as image, open_input(grey.bfloat16() / 256) as rounded:
        assert np.array_equal(np.asarray(image), values[..., 0])
        assert np.abs(np.asarray(rounded).astype(int) - values[..., 0]).max() <= 2  # 8 bits of mantissa


def test_bytes_and_opened_files_are_images(image_folder: Path) -> None:
    path = image_folder / "red" / "red-0.png"
    content = path.read_bytes()
    with path.open("rb") as opened, path.open("rb") as alone:
        named = name_inputs([content, bytearray(content), io.BytesIO(content), opened])
        assert name_inputs(alone) == [(str(path), content)]
    assert [name for name, _ in named] == ["image 0", "image 1", "image 2", str(path)]
    assert [given for _, given in named] == [content] * 4
    assert name_inputs(content) == [("image 0", content)]


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (np.zeros((3, 5, 7), np.int64), r"photo is an array of int64 with the shape \(3, 5, 7\).*uint8"),
        (np.zeros((5, 5, 5), np.uint8), "photo is an array of .* with the shape .*uint8"),
        (np.zeros((0, 4, 3), np.uint8), "photo is an array of .* with the shape .*uint8"),
        (np.zeros(4, np.uint8), "photo is an array of .* with the shape .*uint8"),
        (torch.zeros(2, 3, 4, 4), "photo is a tensor of torch.float32 with the shape"),
        (np.full((4, 3), 255.0), "photo has floating-point values of 255 to 255.*before any normalisation"),
        (torch.full((3, 4, 4), -0.5), "photo has floating-point values of -0.5"),
        (np.full((4, 3), np.nan), "photo contains NaN"),
    ],
)
def test_arrays_that_are_no_pixels_are_refused(pixels: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message), open_input(pixels, "photo"):
        pass


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (None, "image 0 is of the type NoneType. Expected a path, bytes"),
        (["a.png", 3], "image 1 is of the type int"),
        ([[0.1, 0.2]], "image 0 is of the type list"),
        (io.StringIO("text"), "image 0 is a file that was opened as text"),
        (io.TextIOWrapper(io.BytesIO(b"\xff\xd8")), "image 0 is a file that was opened as text"),
    ],
)
def test_what_is_no_image_by_its_type_is_refused(inputs: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        name_inputs(inputs)


def test_one_image_is_not_a_folder_of_several(image_folder: Path) -> None:
    assert name_input(image_folder / "red" / "red-0.png")[0].endswith("red-0.png")
    with pytest.raises(DataError, match=r"red holds 5 images\. Expected one image"):
        name_input(image_folder / "red")


def test_a_picture_whose_file_is_cut_off_is_refused(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    Image.fromarray(generator.integers(0, 255, (40, 50, 3), np.uint8)).save(tmp_path / "whole.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:2000])
    with (
        Image.open(tmp_path / "cut.png") as picture,
        pytest.raises(DataError, match="cut is damaged"),
        open_input(picture, "cut") as image,
    ):
        decode(image)
