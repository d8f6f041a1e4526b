"""Preprocessing brings any image to one size, the same at training and later."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.core.errors import DataError
from vitrail.data.preprocessing import Preprocessing, channel_statistics, sample_images

GENERATOR = np.random.default_rng(0)


def test_settings_survive_json() -> None:
    preprocessing = Preprocessing(
        image_size=(5, 7), resize="squash", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)
    )
    assert Preprocessing.from_tree(preprocessing.model_dump(mode="json")) == preprocessing


@pytest.mark.parametrize("shape", [(5, 7, 3), (5, 7)])
def test_an_image_of_the_right_size_is_left_alone(shape: tuple[int, ...]) -> None:
    pixels = GENERATOR.integers(0, 256, size=shape, dtype=np.uint8)
    tensor = Preprocessing(image_size=(5, 7)).read(pixels)
    expected = np.broadcast_to(pixels if pixels.ndim == 3 else pixels[..., None], (5, 7, 3)).transpose(
        2, 0, 1
    )
    assert np.array_equal(tensor.numpy(), expected)
    assert tensor.is_contiguous()


def test_a_loaded_image_shares_no_memory_with_the_data_set() -> None:
    pixels = np.zeros((5, 7, 3), dtype=np.uint8)
    Preprocessing(image_size=(5, 7)).read(pixels).fill_(9)
    assert not pixels.any()


def test_crop_keeps_the_centre_and_squash_keeps_all() -> None:
    pixels = np.zeros((6, 18, 3), dtype=np.uint8)
    pixels[:, 6:12] = 100
    pixels[:, 12:] = 200
    crop = Preprocessing(image_size=(6, 6), resize="crop").read(pixels)
    squash = Preprocessing(image_size=(6, 6), resize="squash", interpolation="bilinear").read(pixels)
    assert (crop == 100).all()
    assert squash[0, 0, 0] < 20
    assert squash[0, 0, -1] > 180


@pytest.mark.parametrize("size", [(17, 40), (40, 17), (23, 23)])
@pytest.mark.parametrize("target", [(5, 7), (11, 3)])
def test_the_evaluation_box_is_centred_has_the_target_shape_and_is_as_large_as_possible(
    size: tuple[int, int], target: tuple[int, int]
) -> None:
    left, top, right, bottom = Preprocessing(image_size=target).evaluation_box(size)
    height, width = (bottom - top) * size[0], (right - left) * size[1]
    assert height / width == pytest.approx(target[0] / target[1])
    assert (left + right, top + bottom) == pytest.approx((1, 1))
    assert max(bottom - top, right - left) == pytest.approx(1)


def test_a_constant_image_stays_constant_when_resized() -> None:
    pixels = np.full((61, 83, 3), (10, 120, 250), dtype=np.uint8)
    tensor = Preprocessing(image_size=(7, 5)).read(pixels)
    assert tensor.flatten(1).unique(dim=1).squeeze(1).tolist() == [10, 120, 250]


def test_reducing_a_jpeg_while_decoding_changes_little() -> None:
    coarse = Image.fromarray(GENERATOR.integers(0, 256, size=(6, 8, 3), dtype=np.uint8))
    picture = coarse.resize((640, 480), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=95)
    preprocessing = Preprocessing(image_size=(48, 64))
    from_file = preprocessing.read(buffer.getvalue()).float()
    from_pixels = preprocessing.to_uint8(picture).float()
    assert (from_file - from_pixels).abs().mean() < 1.5


def test_normalising_with_the_images_own_statistics_gives_mean_zero_and_deviation_one() -> None:
    images = torch.randint(0, 256, (301, 3, 5, 7), dtype=torch.uint8)
    preprocessing = Preprocessing(image_size=(5, 7)).with_statistics(images)
    normal = preprocessing.normalise(images)
    assert normal.dtype == torch.float32
    torch.testing.assert_close(normal.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(normal.std(dim=(0, 2, 3)), torch.ones(3), atol=1e-3, rtol=0)


def test_normalising_is_the_documented_formula() -> None:
    preprocessing = Preprocessing(image_size=(1, 1), mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    normal = preprocessing.normalise(torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1))
    expected = [(0 - 0.1) / 0.4, (0.2 - 0.2) / 0.5, (1 - 0.3) / 0.6]
    torch.testing.assert_close(normal.flatten(), torch.tensor(expected), atol=1e-6, rtol=1e-6)


def test_constant_images_have_a_deviation_that_can_be_divided_by() -> None:
    mean, std = channel_statistics(torch.full((2, 3, 5, 5), 51, dtype=torch.uint8))
    assert mean == pytest.approx((0.2, 0.2, 0.2))
    assert std == pytest.approx((1 / 255,) * 3, rel=1e-3)


def test_statistics_leave_out_what_cannot_be_read() -> None:
    good = np.full((5, 5), 9, dtype=np.uint8)
    assert len(sample_images([good, b"", good], Preprocessing(image_size=(5, 5)))) == 2
    assert len(sample_images([good] * 50, Preprocessing(image_size=(5, 5)), max_images=7)) == 7
    with pytest.raises(DataError, match="empty"):
        sample_images([b""], Preprocessing(image_size=(5, 5)))
