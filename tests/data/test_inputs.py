from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.core.errors import DataError
from vitrail.data.images import decode
from vitrail.data.inputs import name_inputs, open_input


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
    "pixels",
    [
        np.zeros((4, 3, 3)),
        np.zeros((3, 5, 7), np.uint8),
        np.zeros((0, 4, 3), np.uint8),
        np.zeros(4, np.uint8),
    ],
)
def test_arrays_that_are_no_pixels_are_refused(pixels: np.ndarray) -> None:
    with (
        pytest.raises(DataError, match=r"photo is an array of .* with the shape .*uint8"),
        open_input(pixels, "photo"),
    ):
        pass


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
