"""Splits can be divided and told apart by their content."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vitrail.data.dataset import ImageDataset, ImageSplit, contents_of

PIXELS = np.arange(4 * 2 * 3, dtype=np.uint8).reshape(4, 2, 3)
NAMES = ["a", "b", "c", "d"]


def split(
    pixels: np.ndarray = PIXELS, labels: tuple[int, ...] = (0, 1, 0, 1), names: list[str] = NAMES
) -> ImageSplit:
    return ImageSplit(pixels, np.array(labels), names)


def test_taking_keeps_images_labels_and_names_together() -> None:
    for images in (PIXELS, list(PIXELS)):
        part = ImageSplit(images, np.array([5, 6, 7, 8]), NAMES).take([3, 0])
        assert part.names == ("d", "a")
        assert part.labels.tolist() == [8, 5]
        assert np.array_equal(part.images[0], PIXELS[3])


def test_the_fingerprint_follows_pixels_labels_and_names() -> None:
    changed = PIXELS.copy()
    changed[2, 1, 1] += 1
    prints = {
        split().fingerprint,
        split(pixels=changed).fingerprint,
        split(labels=(0, 1, 1, 1)).fingerprint,
        split(names=["a", "b", "c", "e"]).fingerprint,
    }
    assert len(prints) == 4
    assert split().fingerprint == split(pixels=PIXELS.copy()).fingerprint


def test_the_fingerprint_follows_the_content_of_files(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    prints = set()
    for content in (b"one", b"two", None):
        path.write_bytes(content) if content else path.unlink()
        prints.add(ImageSplit([path], np.array([0]), ["a.png"]).fingerprint)
    assert len(prints) == 3


@pytest.fixture
def dataset() -> ImageDataset:
    return ImageDataset(
        source="x",
        format="test",
        class_names=("k", "l"),
        train=split(),
        validation=split().take([0]),
        test=split(),
    )


def test_images_are_left_out_by_name(dataset: ImageDataset) -> None:
    smaller = dataset.without(frozenset({"a", "c"}))
    assert smaller.train.names == ("b", "d")
    assert smaller.test.labels.tolist() == [1, 1]
    assert len(smaller.validation) == 0
    assert smaller.fingerprint != dataset.fingerprint
    assert dataset.without(frozenset()) is dataset


def test_copies_have_equal_contents_and_missing_files_none(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one", "copy", "same size", "longer", "missing", "missing too")]
    for path, content in zip(files, (b"abc", b"abc", b"xyz", b"abcd"), strict=False):
        path.write_bytes(content)

    for images in (files, [b"abc", b"abc", *files[2:]], [PIXELS[0], PIXELS[0].copy(), *PIXELS[1:], b""]):
        first, copy, *others = contents_of(images)
        assert first == copy
        assert len({first, *others}) == 1 + len(others)
