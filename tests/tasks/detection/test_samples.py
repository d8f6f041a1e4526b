"""A source of boxes gives the same samples with and without its cache, and survives what data sets hold."""

from __future__ import annotations

import io
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.core.boxes import box_area, cxcywh_to_xyxy
from vitrail.core.errors import DataError
from vitrail.data.box_preprocessing import BoxPreprocessing
from vitrail.data.source import read_all
from vitrail.data.stream import training_batches
from vitrail.tasks.detection.dataset import BoxSplit
from vitrail.tasks.detection.samples import BoxSample, BoxSource
from vitrail.tasks.detection.settings import BoxAugmentSettings

SIZES = [(30, 40), (40, 30), (64, 64), (90, 25)]
BOXES = [[[3, 4, 20, 25], [10, 5, 38, 28]], [[1, 1, 29, 39]], [], [[-5, 60, 15, 99]]]
PREPROCESSING = BoxPreprocessing(image_size=(22, 26))
EVERYTHING = BoxAugmentSettings(
    flip=True, flip_vertical=True, scale=0.3, shift=0.2, rotation=10, crop=0.5, colour=0.2, mosaic=0.5
)


@pytest.fixture
def files(tmp_path: Path) -> BoxSplit:
    generator = np.random.default_rng(0)
    paths = []
    for index, (height, width) in enumerate(SIZES):
        paths.append(tmp_path / f"{index}.png")
        coarse = generator.integers(0, 256, size=(3, 3, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(paths[-1])
    labels = [np.arange(len(boxes)) for boxes in BOXES]
    boxes = [np.array(part, dtype=np.float32) for part in BOXES]
    return BoxSplit(paths, boxes, labels, [path.name for path in paths], sizes=np.array(SIZES))


def split_of(
    pixels: np.ndarray, boxes: list[list[float]], is_crowd: list[bool] | None = None, *, count: int = 1
) -> BoxSplit:
    """Return a split of one image, or of several that are alike."""
    return BoxSplit(
        [pixels] * count,
        [np.array(boxes, dtype=np.float32)] * count,
        [np.arange(len(boxes))] * count,
        [f"image {index}" for index in range(count)],
        is_crowd=() if is_crowd is None else [np.array(is_crowd)] * count,
    )


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def are_equal(one: BoxSample, other: BoxSample) -> bool:
    values = [(getattr(one, field.name), getattr(other, field.name)) for field in fields(BoxSample)]
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in values)


@pytest.mark.parametrize("augment", [None, EVERYTHING])
@pytest.mark.parametrize("resize", ["fit", "squash", "shortest"])
def test_the_cache_changes_nothing(files: BoxSplit, augment: BoxAugmentSettings | None, resize: str) -> None:
    preprocessing = PREPROCESSING.with_changes({"resize": resize})
    cached, plain = (BoxSource(files, preprocessing, augment, cache=cache) for cache in (True, False))
    assert (cached.is_cached, plain.is_cached) == (True, False)
    for index in range(4):
        whole = cached.load(index, None)
        assert are_equal(whole, plain.load(index, None))
        assert whole.image.shape[1:] == preprocessing.input_size(SIZES[index])
        for seed in range(3):
            one, other = (source.load(index, generator(seed)) for source in (cached, plain))
            assert are_equal(one, other)


def test_without_a_generator_boxes_are_as_annotated(files: BoxSplit) -> None:
    source = BoxSource(files, PREPROCESSING, EVERYTHING)
    for index in range(4):
        sample = source.load(index, None)
        assert (sample.index, sample.original_size) == (index, SIZES[index])
        back = PREPROCESSING.to_image(sample.boxes, sample.original_size)
        torch.testing.assert_close(back, torch.tensor(files.boxes[index]), atol=1e-4, rtol=0)
        assert sample.labels.tolist() == list(range(len(BOXES[index])))


def test_crowds_are_there_for_evaluation_and_left_out_of_training() -> None:
    pixels = np.full((20, 30, 3), 50, dtype=np.uint8)
    split = split_of(pixels, [[1, 2, 9, 8], [3, 3, 25, 15], [12, 1, 22, 19]], [False, True, False])
    source = BoxSource(split, PREPROCESSING)
    whole, varied = source.load(0, None), source.load(0, generator())
    assert whole.is_crowd.tolist() == [False, True, False]
    assert varied.is_crowd.tolist() == [False, False]
    assert varied.labels.tolist() == [0, 2]
    torch.testing.assert_close(varied.boxes, whole.boxes[[0, 2]])


def test_boxes_to_train_on_are_inside_and_have_an_area() -> None:
    boxes = [
        [-5, -5, 10, 10],  # partly outside
        [40, 2, 50, 9],  # wholly outside
        [9, 9, 4, 4],  # the wrong way round
        [7, 7, 7, 12],  # no width
        [float("nan"), 1, 5, 5],
        [0, 0, float("inf"), 5],
        [29, 19, 30, 20],  # one pixel
    ]
    split = split_of(np.full((20, 30, 3), 50, dtype=np.uint8), boxes)
    sample = BoxSource(split, PREPROCESSING).load(0, generator())
    assert sample.labels.tolist() == [0, 6]
    expected = torch.tensor([[0, 0, 10 / 30, 10 / 20], [29 / 30, 19 / 20, 1, 1]])
    torch.testing.assert_close(cxcywh_to_xyxy(sample.boxes), expected, atol=1e-6, rtol=0)


def test_an_image_whose_boxes_are_all_dropped_is_still_a_sample() -> None:
    split = split_of(np.full((20, 30, 3), 50, dtype=np.uint8), [[0, 0, 3, 3]])
    source = BoxSource(split, PREPROCESSING, BoxAugmentSettings(shift=0.9))
    samples = [source.load(0, generator(seed)) for seed in range(20)]
    counts = {len(sample.labels) for sample in samples}
    assert counts == {0, 1}
    assert all(sample.boxes.shape == (len(sample.labels), 4) for sample in samples)


def test_hundreds_of_boxes_and_none_are_samples_like_others() -> None:
    corners = np.random.default_rng(0).uniform(0, 29, size=(500, 2))
    many = np.concatenate((corners, corners + 1), axis=1).tolist()
    pixels = np.full((30, 30, 3), 50, dtype=np.uint8)
    for boxes in (many, []):
        source = BoxSource(split_of(pixels, boxes), PREPROCESSING, EVERYTHING, cache=True)
        for seed in range(4):
            sample = source.load(0, generator(seed))
            assert len(sample.boxes) == len(sample.labels) == len(sample.is_crowd)
            corner = cxcywh_to_xyxy(sample.boxes)
            assert (corner >= -1e-6).all()
            assert (corner <= 1 + 1e-6).all()
            assert (box_area(corner) > 0).all()


def test_a_sample_is_a_function_of_the_generator_alone(files: BoxSplit) -> None:
    source = BoxSource(files, PREPROCESSING, EVERYTHING, cache=True)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = [source.load(index, generator(7)) for index in range(4)]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert all(are_equal(one, source.load(index, generator(7))) for index, one in enumerate(first))
    assert not are_equal(first[0], source.load(0, generator(8)))


def test_a_mosaic_joins_images_of_the_split() -> None:
    colours = np.array([[250, 10, 10], [10, 250, 10], [10, 10, 250], [240, 240, 240]], dtype=np.uint8)
    pixels = np.broadcast_to(colours[:, None, None], (4, 40, 50, 3))
    whole = np.array([[0, 0, 50, 40]], dtype=np.float32)
    split = BoxSplit(pixels.copy(), [whole] * 4, [np.array([label]) for label in range(4)], list("abcd"))
    source = BoxSource(split, BoxPreprocessing(image_size=(40, 50)), BoxAugmentSettings(mosaic=1.0))
    seen, num_complete = set(), 0
    for seed in range(12):
        sample = source.load(1, generator(seed))
        seen.add(frozenset(sample.labels.tolist()))
        assert (sample.image.shape, sample.original_size) == ((3, 40, 50), (40, 50))
        assert sample.image[:, 0, 0].tolist() == colours[1].tolist()
        if len(sample.labels) == 4:  # of none was so little cut out that its box was dropped
            num_complete += 1
            assert float(box_area(cxcywh_to_xyxy(sample.boxes)).sum()) == pytest.approx(1, abs=1e-3)
        for box, label in zip(sample.boxes, sample.labels, strict=True):
            middle = sample.image[:, int(box[1] * 40), int(box[0] * 50)]
            assert middle.tolist() == colours[int(label)].tolist()
    assert len(seen) > 2
    assert num_complete > 2


@pytest.mark.parametrize("probability", [0.0, 0.5])
def test_mosaics_are_as_frequent_as_asked(probability: float) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, size=(12, 14, 3), dtype=np.uint8)
    split = split_of(pixels, [], count=3)
    settings = BoxAugmentSettings(mosaic=probability)
    source = BoxSource(split, BoxPreprocessing(image_size=(12, 14)), settings, cache=True)
    plain = torch.from_numpy(pixels.transpose(2, 0, 1).copy())
    joined = sum(not torch.equal(source.load(0, generator(seed)).image, plain) for seed in range(100))
    assert abs(joined - 100 * probability) <= (15 if probability else 0)


def test_images_are_kept_larger_where_parts_of_them_are_enlarged() -> None:
    pixels = np.full((100, 100, 3), 50, dtype=np.uint8)
    small, preprocessing = pixels[:21, :21], BoxPreprocessing(image_size=(20, 20))
    sizes = {
        name: BoxSource(split_of(part, []), preprocessing, BoxAugmentSettings.from_tree(settings), cache=True)
        for name, part, settings in [
            ("flipped", pixels, {"flip": True}),
            ("cropped", pixels, {"crop": 0.5}),
            ("scaled", pixels, {"scale": 0.5}),
            ("small", small, {"scale": 0.5}),
        ]
    }
    for name, side in [("flipped", 20), ("cropped", 23), ("scaled", 23), ("small", 21)]:
        sizes[name].prepare()
        assert sizes[name]._pixels(0)[0].shape == (3, side, side)


def test_memory_is_estimated_from_the_sizes_and_limited(
    files: BoxSplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = sum(3 * height * width for height, width in map(PREPROCESSING.input_size, SIZES))
    assert BoxSource(files, PREPROCESSING).cache_bytes == expected
    for free, is_cached in ((2 * expected, True), (2 * expected - 1, False)):
        monkeypatch.setattr("vitrail.data.source.free_memory_bytes", lambda free=free: free)
        assert BoxSource(files, PREPROCESSING, cache=True).is_cached == is_cached
    unknown = BoxSplit(files.images, files.boxes, files.labels, files.names)
    assert BoxSource(unknown, PREPROCESSING).cache_bytes == 4 * 3 * 22 * 26


def test_boxes_are_measured_in_the_image_that_is_there_not_in_the_claimed_one() -> None:
    split = split_of(np.full((20, 30, 3), 50, dtype=np.uint8), [[3, 2, 15, 12]])
    split.sizes[0] = (200, 300)
    sample = BoxSource(split, PREPROCESSING, cache=True).load(0, None)
    assert sample.original_size == (20, 30)
    torch.testing.assert_close(sample.boxes, torch.tensor([[0.3, 0.35, 0.4, 0.5]]))


@pytest.mark.parametrize("cache", [True, False])
def test_boxes_belong_to_the_upright_image(cache: bool) -> None:
    pixels = np.full((30, 20, 3), 20, dtype=np.uint8)
    pixels[2:10, 4:18] = 240
    picture = Image.fromarray(np.rot90(pixels).copy())  # lies on its side, and its Exif data say so
    exif = picture.getexif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", exif=exif)
    split = BoxSplit([buffer.getvalue()], [np.array([[4, 2, 18, 10]])], [np.array([0])], ["turned"])
    for given in (None, generator()):
        sample = BoxSource(split, BoxPreprocessing(image_size=(30, 20)), cache=cache).load(0, given)
        assert sample.original_size == (30, 20)
        rows, columns = (sample.image[0] > 130).nonzero(as_tuple=True)
        found = [columns.min() / 20, rows.min() / 30, (columns.max() + 1) / 20, (rows.max() + 1) / 30]
        torch.testing.assert_close(cxcywh_to_xyxy(sample.boxes)[0], torch.stack(found))


@pytest.mark.parametrize("cache", [True, False])
def test_a_broken_file_raises_its_own_error_and_spares_the_others(files: BoxSplit, cache: bool) -> None:
    Path(files.images[1]).write_bytes(b"no image")
    source = BoxSource(files, PREPROCESSING, BoxAugmentSettings(flip=True), cache=cache)
    assert source.load(0, generator()).index == 0
    for _ in range(2):
        with pytest.raises(DataError, match=r"1.png is not an image"):
            source.load(1, generator())


def test_the_cache_is_filled_once(files: BoxSplit, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def read(*arguments: Any) -> Any:
        counts.append(arguments[1])
        return read_all(*arguments)

    monkeypatch.setattr("vitrail.tasks.detection.samples.read_all", read)
    source = BoxSource(files, PREPROCESSING, cache=True)
    assert counts == []
    source.prepare()
    source.prepare()
    source.load(0, None)
    assert counts == [4]


class _Kept:
    def collate(self, samples: list[BoxSample], generator: torch.Generator | None) -> list[BoxSample]:
        return samples


def test_worker_processes_load_the_same_samples(files: BoxSplit) -> None:
    source = BoxSource(files, PREPROCESSING, EVERYTHING, cache=True)
    steps = {"batch_size": 3, "seed": 5, "start_step": 0, "num_steps": 3}
    alone, shared = (
        [
            sample
            for batch in training_batches(source, _Kept(), **steps, num_workers=count)
            for sample in batch
        ]
        for count in (0, 1)
    )
    assert len(alone) == 9
    assert all(are_equal(one, other) for one, other in zip(alone, shared, strict=True))
