"""Preprocessing brings any image to one size, the same at training and later."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from vitrail.core.boxes import cxcywh_to_xyxy
from vitrail.core.errors import ConfigError, DataError
from vitrail.data.box_preprocessing import BoxPreprocessing
from vitrail.data.preprocessing import Preprocessing, channel_statistics, sample_images
from vitrail.data.text_preprocessing import PairPreprocessing

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


@pytest.mark.parametrize(
    ("size", "target"),
    [
        ((17, 40), (10, 14)),
        ((40, 17), (10, 14)),
        ((24, 32), (12, 12)),
        ((23, 23), (12, 12)),
        ((30, 2), (13, 13)),
    ],
)
def test_a_letterbox_shows_all_of_an_image_between_bars_of_the_mean_colour(
    size: tuple[int, int], target: tuple[int, int]
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    mean = (0.2, 0.4, 0.8)
    preprocessing = Preprocessing(image_size=target, resize="letterbox", mean=mean, interpolation="bilinear")
    shown = preprocessing.read(pixels)
    colour = (51, 102, 204)
    reference = ImageOps.pad(Image.fromarray(pixels), target[::-1], Image.Resampling.BILINEAR, colour)
    assert (shown.permute(1, 2, 0).int() - torch.from_numpy(np.array(reference)).int()).abs().max() <= 2
    grey = preprocessing.read(pixels[..., 0])
    assert torch.equal(grey, preprocessing.read(np.repeat(pixels[..., :1], 3, axis=2)))


def test_bars_do_not_count_in_the_statistics() -> None:
    white = [np.full((10, 40, 3), 255, dtype=np.uint8)]
    sampled = sample_images(white, Preprocessing(image_size=(8, 8), resize="letterbox"))
    assert (sampled == 255).all()


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


def test_white_space_of_any_kind_becomes_one_space() -> None:
    preprocessing = PairPreprocessing(languages=("en", "de"))
    prepared = preprocessing.prepare(["  two\tdogs\u00a0\u2003run \r\n", "", " \n "])
    assert prepared == ["two dogs run", "", ""]


def test_letters_are_lowered_where_asked_and_nothing_else_is_changed() -> None:
    lowered = PairPreprocessing(languages=("en", "de"), lower_case=True)
    plain = PairPreprocessing(languages=("en", "de"))
    texts = ["Zwei  \u00dcBER \u00bd \ufb01n a\u0308"]
    assert lowered.prepare(texts) == ["zwei \u00fcber \u00bd \ufb01n a\u0308"]
    assert plain.prepare(texts) == ["Zwei \u00dcBER \u00bd \ufb01n a\u0308"]
    assert lowered.lowered(texts) == ["zwei  \u00fcber \u00bd \ufb01n a\u0308"]
    assert plain.lowered(texts) == texts


def test_it_is_stored_with_a_mark_that_tells_it_from_that_of_images() -> None:
    preprocessing = PairPreprocessing(languages=("en", "de"), tokenised=True)
    tree = preprocessing.model_dump(mode="json")
    assert tree == {"task": "translation", "languages": ["en", "de"], "tokenised": True, "lower_case": False}
    assert PairPreprocessing.from_tree(tree) == preprocessing
    with pytest.raises(ConfigError, match="task"):
        PairPreprocessing.from_tree(tree | {"task": "classification"})


RESIZES = ("fit", "squash", "shortest")


def with_rectangle(size: tuple[int, int], box: tuple[int, int, int, int]) -> np.ndarray:
    pixels = np.full((*size, 3), 20, dtype=np.uint8)
    left, top, right, bottom = box
    pixels[top:bottom, left:right] = 240
    return pixels


def test_settings_survive_json_and_take_a_size_as_text() -> None:
    preprocessing = BoxPreprocessing.from_tree({"image_size": "240x320", "resize": "squash"})
    assert preprocessing.image_size == (240, 320)
    assert BoxPreprocessing.from_tree(preprocessing.model_dump(mode="json")) == preprocessing
    assert preprocessing.model_dump()["task"] == "detection"


@pytest.mark.parametrize(
    ("resize", "size", "expected"),
    [
        ("fit", (480, 640), (240, 320)),
        ("fit", (640, 480), (240, 180)),
        ("fit", (24, 16), (240, 160)),
        ("fit", (1, 5000), (1, 320)),
        ("squash", (77, 5), (240, 320)),
        ("shortest", (480, 640), (240, 320)),
        ("shortest", (640, 480), (320, 240)),
        ("shortest", (100, 100), (240, 240)),
        ("shortest", (100, 300), (107, 320)),
        ("shortest", (3000, 10), (320, 1)),
    ],
)
def test_each_way_of_resizing_has_its_sizes(
    resize: str, size: tuple[int, int], expected: tuple[int, int]
) -> None:
    preprocessing = BoxPreprocessing.from_tree({"image_size": [240, 320], "resize": resize})
    assert preprocessing.input_size(size) == expected


def test_the_shortest_side_is_that_of_detr() -> None:
    # (height, width) of COCO images and what torchvision's and DETR's own resizing make of them
    preprocessing = BoxPreprocessing(image_size=(800, 1333), resize="shortest")
    sizes = {(480, 640): (800, 1066), (427, 640): (800, 1199), (640, 425): (1204, 800)}
    assert {size: preprocessing.input_size(size) for size in sizes} == sizes
    height, width = preprocessing.input_size((240, 640))
    assert (height, width) == (500, 1333)


@pytest.mark.parametrize("resize", RESIZES)
def test_sizes_never_exceed_the_limits_and_keep_the_aspect(resize: str) -> None:
    preprocessing = BoxPreprocessing.from_tree({"image_size": [61, 83], "resize": resize})
    for _ in range(300):
        size = tuple(int(side) for side in GENERATOR.integers(1, 700, size=2))
        height, width = preprocessing.input_size((size[0], size[1]))
        if resize == "squash":
            assert (height, width) == (61, 83)
            continue
        height_or_shorter, width_or_longer = size if resize == "fit" else (min(size), max(size))
        scale = min(61 / height_or_shorter, 83 / width_or_longer)
        # rounded to whole pixels, of which there is one at least
        assert abs(height - size[0] * scale) < 1
        assert abs(width - size[1] * scale) < 1
        assert min(height, width) >= 1
        assert max(height, width) <= 83
        assert min(height, width) <= 61


@pytest.mark.parametrize("resize", RESIZES)
def test_boxes_come_back_from_the_model_as_they_were(resize: str) -> None:
    preprocessing = BoxPreprocessing.from_tree({"image_size": [61, 83], "resize": resize})
    for _ in range(100):
        height, width = (int(side) for side in GENERATOR.integers(1, 5000, size=2))
        corners = GENERATOR.uniform(0, 1, size=(7, 4)) * [width, height, width, height]
        boxes = torch.from_numpy(corners).float()
        back = preprocessing.to_image(preprocessing.to_model(boxes, (height, width)), (height, width))
        # three roundings of numbers up to the larger side
        torch.testing.assert_close(back, boxes, atol=max(height, width) * 3e-7, rtol=0)


def test_boxes_of_several_images_are_turned_at_once() -> None:
    preprocessing = BoxPreprocessing(image_size=(61, 83))
    shares = preprocessing.to_model(torch.tensor([[[0.0, 0.0, 7.0, 5.0]], [[1.4, 1.0, 4.2, 4.0]]]), (5, 7))
    torch.testing.assert_close(shares, torch.tensor([[[0.5, 0.5, 1.0, 1.0]], [[0.4, 0.5, 0.4, 0.6]]]))


@pytest.mark.parametrize("resize", RESIZES)
@pytest.mark.parametrize("size", [(120, 90), (50, 170), (31, 31)])
def test_a_rectangle_lies_where_its_box_says(resize: str, size: tuple[int, int]) -> None:
    preprocessing = BoxPreprocessing.from_tree({"image_size": [61, 83], "resize": resize})
    box = (size[1] // 5, size[0] // 4, size[1] // 2, size[0] - 6)
    image = preprocessing.read(with_rectangle(size, box))
    height, width = image.shape[-2:]
    assert (height, width) == preprocessing.input_size(size)
    shares = cxcywh_to_xyxy(preprocessing.to_model(torch.tensor(box).float(), size))
    rows, columns = (image[0] > 130).nonzero(as_tuple=True)
    found = [
        columns.min() / width,
        rows.min() / height,
        (columns.max() + 1) / width,
        (rows.max() + 1) / height,
    ]
    error = (shares - torch.stack(found)) * torch.tensor([width, height, width, height])
    assert error.abs().max() <= 0.51


def test_an_image_of_the_right_size_is_left_alone_and_shares_no_memory() -> None:
    pixels = GENERATOR.integers(0, 256, size=(5, 7, 3), dtype=np.uint8)
    tensor = BoxPreprocessing(image_size=(5, 7)).read(pixels)
    assert np.array_equal(tensor.numpy(), pixels.transpose(2, 0, 1))
    assert tensor.is_contiguous()
    kept = pixels.copy()
    tensor.fill_(9)
    assert np.array_equal(pixels, kept)


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_an_image_is_read_upright(orientation: int) -> None:
    pixels = with_rectangle((40, 60), (0, 0, 30, 10))
    picture = Image.fromarray(pixels)
    exif = picture.getexif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", exif=exif)
    image = BoxPreprocessing(image_size=(60, 60)).read(buffer.getvalue())
    turned = np.rot90(pixels, {1: 0, 3: 2, 6: 3, 8: 1}[orientation])
    expected = BoxPreprocessing(image_size=(60, 60)).read(np.ascontiguousarray(turned))
    assert torch.equal(image, expected)


def test_a_decoded_image_is_brought_to_the_same_input() -> None:
    pixels = GENERATOR.integers(0, 256, size=(31, 47, 3), dtype=np.uint8)
    preprocessing = BoxPreprocessing(image_size=(11, 13))
    assert torch.equal(preprocessing.to_uint8(Image.fromarray(pixels)), preprocessing.read(pixels))


def test_normalising_is_that_of_images_and_can_be_undone() -> None:
    mean, std = (0.1, 0.5, 0.7), (0.2, 0.3, 0.4)
    images = torch.randint(0, 256, (2, 3, 5, 7), dtype=torch.uint8)
    preprocessing = BoxPreprocessing(image_size=(5, 7), mean=mean, std=std)
    normal = preprocessing.normalise(images)
    assert torch.equal(normal, Preprocessing(image_size=(5, 7), mean=mean, std=std).normalise(images))
    assert torch.equal(preprocessing.denormalise(normal), images)
    assert preprocessing.denormalise(normal * 1000).unique().tolist() == [0, 255]


def test_statistics_are_taken_of_images_of_any_size() -> None:
    dark, light = np.full((9, 30, 3), 51, dtype=np.uint8), np.full((40, 7, 3), 153, dtype=np.uint8)
    preprocessing = BoxPreprocessing(image_size=(11, 13)).with_statistics([dark, b"no image", light])
    assert preprocessing.mean == pytest.approx((0.4, 0.4, 0.4), abs=1e-5)
    assert preprocessing.std == pytest.approx((0.2, 0.2, 0.2), abs=1e-5)
    assert preprocessing.image_size == (11, 13)
