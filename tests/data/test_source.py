"""A source gives the same images with and without its cache, and survives broken ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.core.errors import DataError
from vitrail.data.dataset import ImageSplit
from vitrail.data.preprocessing import Preprocessing, Resize
from vitrail.data.settings import AugmentSettings
from vitrail.data.source import ImageSource, free_memory_bytes, read_all

CROPS = AugmentSettings(min_crop_area=0.3)


@pytest.fixture
def files(tmp_path: Path) -> ImageSplit:
    generator = np.random.default_rng(0)
    paths = []
    for index, size in enumerate([(40, 30), (30, 40), (64, 64), (25, 90)]):
        paths.append(tmp_path / f"{index}.png")
        coarse = generator.integers(0, 256, size=(3, 3, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(paths[-1])
    return ImageSplit(paths, np.array([0, 1, 1, 0]), [path.name for path in paths])


@pytest.fixture
def arrays() -> ImageSplit:
    pixels = np.random.default_rng(0).integers(0, 256, size=(6, 9, 9), dtype=np.uint8)
    return ImageSplit(pixels, np.arange(6) % 3, [f"set#{index}" for index in range(6)])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("resize", ["crop", "squash", "letterbox"])
def test_the_cache_changes_no_pixel(files: ImageSplit, resize: Resize) -> None:
    preprocessing = Preprocessing(image_size=(11, 13), resize=resize)
    cached, plain = (ImageSource(files, preprocessing, cache=cache) for cache in (True, False))
    assert (cached.is_cached, plain.is_cached) == (True, False)
    for index in range(4):
        one, other = cached.load(index, None), plain.load(index, None)
        assert torch.equal(one.image, other.image)
        assert (one.label, one.index) == (other.label, other.index) == (int(files.labels[index]), index)
        assert one.image.shape == (3, 11, 13)


@pytest.mark.parametrize("cache", [True, False])
def test_a_crop_is_a_function_of_the_generator(files: ImageSplit, cache: bool) -> None:
    source = ImageSource(files, Preprocessing(image_size=(11, 13)), CROPS, cache=cache)
    one, same, other = (source.load(2, generator(seed)).image for seed in (1, 1, 2))
    assert one.shape == (3, 11, 13)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("cache", [True, False])
def test_a_crop_shows_the_stated_share_of_the_image(cache: bool) -> None:
    # each pixel tells its own place, so a crop's corners tell its area
    ramp = np.zeros((64, 64, 3), dtype=np.uint8)
    ramp[..., 0] = np.arange(64)[:, None] * 4
    ramp[..., 1] = np.arange(64)[None, :] * 4
    split = ImageSplit([ramp], np.array([0]), ["ramp"])
    source = ImageSource(
        split, Preprocessing(image_size=(32, 32), interpolation="bilinear"), CROPS, cache=cache
    )
    areas, places = [], set()
    for seed in range(60):
        image = source.load(0, generator(seed)).image.float()
        height = (image[0, -1].mean() - image[0, 0].mean()) / 4 / 63
        width = (image[1, :, -1].mean() - image[1, :, 0].mean()) / 4 / 63
        areas.append(float(height * width))
        places.add((int(image[0, 0, 0]) // 8, int(image[1, 0, 0]) // 8))
    assert 0.2 < min(areas) < 0.45
    assert 0.7 < max(areas) <= 1.01
    assert len(places) > 15


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("resize", ["squash", "letterbox"])
def test_crops_are_taken_of_images_as_the_model_will_see_them(cache: bool, resize: Resize) -> None:
    white = np.full((60, 20, 3), 255, dtype=np.uint8)  # the bars are grey
    split = ImageSplit([white], np.array([0]), ["white"])
    source = ImageSource(split, Preprocessing(image_size=(24, 24), resize=resize), CROPS, cache=cache)
    crops = torch.stack([source.load(0, generator(seed)).image for seed in range(20)])
    bars = float((crops < 200).float().mean())
    assert 0.5 < bars < 0.8 if resize == "letterbox" else bars == 0


@pytest.mark.parametrize("cache", [True, False])
def test_without_a_generator_the_image_is_whole(arrays: ImageSplit, cache: bool) -> None:
    source = ImageSource(arrays, Preprocessing(image_size=(9, 9)), CROPS, cache=cache)
    assert np.array_equal(source.load(4, None).image[0].numpy(), arrays.images[4])


def test_small_images_are_cached_as_they_are_and_larger_ones_with_a_margin_for_crops(
    arrays: ImageSplit, files: ImageSplit
) -> None:
    small = ImageSource(arrays, Preprocessing(image_size=(9, 9)), CROPS, cache=True)
    assert small.cache_bytes == 6 * 3 * 9 * 9
    large = ImageSource(files, Preprocessing(image_size=(20, 20)), CROPS, cache=True)
    assert large.cache_bytes == 4 * 3 * 23 * 23


def test_what_takes_more_than_half_of_the_free_memory_is_not_cached(
    files: ImageSplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 1 << 20 < free_memory_bytes() < 1 << 50
    for free, is_cached in ((2400, True), (2399, False)):
        monkeypatch.setattr("vitrail.data.source.free_memory_bytes", lambda free=free: free)
        assert ImageSource(files, Preprocessing(image_size=(10, 10)), cache=True).is_cached == is_cached


def test_the_cache_is_filled_once(files: ImageSplit, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def read(*arguments: Any) -> Any:
        counts.append(arguments[1])
        return read_all(*arguments)

    monkeypatch.setattr("vitrail.data.source.read_all", read)
    source = ImageSource(files, Preprocessing(image_size=(5, 5)), cache=True)
    assert counts == []
    source.prepare()
    source.prepare()
    source.load(0, None)
    assert counts == [4]


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("augment", [None, CROPS])
def test_a_broken_file_raises_its_own_error_and_spares_the_others(
    files: ImageSplit, cache: bool, augment: AugmentSettings | None
) -> None:
    Path(files.images[1]).write_bytes(b"no image")
    source = ImageSource(files, Preprocessing(image_size=(5, 5)), augment, cache=cache)
    assert source.load(0, generator()).index == 0
    with pytest.raises(DataError, match=r"1.png is not an image"):
        source.load(1, generator())


def test_an_unreadable_image_in_memory_is_called_by_its_name() -> None:
    split = ImageSplit([b"", b""], np.array([0, 1]), ["set#0", "set#1"])
    with pytest.raises(DataError, match="set#1 is empty"):
        ImageSource(split, Preprocessing(image_size=(5, 5))).load(1, None)
