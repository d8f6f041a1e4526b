"""Boxes follow their pixels, and the generator alone says how."""

from __future__ import annotations

import pytest
import torch

from vitrail.core.boxes import box_area
from vitrail.data.box_preprocessing import BoxPreprocessing
from vitrail.tasks.detection.augment import MIN_VISIBLE, BoxedImage, augment_image, mosaic
from vitrail.tasks.detection.settings import BoxAugmentSettings

GROUND = 26  # of 255, which is the mean colour of PREPROCESSING and so that of what comes in from outside
PREPROCESSING = BoxPreprocessing(image_size=(90, 120), mean=(GROUND / 255,) * 3, std=(0.2, 0.3, 0.4))
COLOURS = torch.tensor([[250, 26, 26], [26, 250, 26], [26, 26, 250], [250, 250, 26]])
SIZE = (90, 120)

FLIP = {"flip": True}
FLIP_VERTICAL = {"flip_vertical": True}
SCALE = {"scale": 0.4}
SHIFT = {"shift": 0.3}
CROP = {"crop": 1.0}
ROTATION = {"rotation": 25.0}
ALL = FLIP | FLIP_VERTICAL | {"scale": 0.3, "shift": 0.2, "crop": 0.5}


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def painted(boxes: list[list[float]], *, size: tuple[int, int] = SIZE, first_label: int = 0) -> BoxedImage:
    """Paint a rectangle for each box, in the colour of its class, on the ground."""
    image = torch.full((3, *size), GROUND, dtype=torch.uint8)
    labels = first_label + torch.arange(len(boxes))
    for label, (left, top, right, bottom) in zip(labels.tolist(), boxes, strict=True):
        image[:, int(top) : int(bottom), int(left) : int(right)] = COLOURS[label, :, None, None]
    return BoxedImage(
        image, torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4), labels, torch.ones(len(boxes))
    )


def amount(image: torch.Tensor, label: int) -> torch.Tensor:
    """Return how much of the colour of a class each pixel has, 0 to 1."""
    colour = COLOURS[label] > GROUND
    values = (image.float() - GROUND) / (250 - GROUND)
    return (values[colour].amin(dim=0) - values[~colour].amax(dim=0)).clamp(0, 1)


def seen(image: torch.Tensor, label: int, least: float = 0.5) -> torch.Tensor | None:
    """Return the box around the pixels of a class, None where there are none."""
    rows, columns = (amount(image, label) > least).nonzero(as_tuple=True)
    if not len(rows):
        return None
    return torch.stack([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]).float()


def middle(image: torch.Tensor, label: int) -> torch.Tensor:
    """Return the centre of mass of a class's colour, to a fraction of a pixel."""
    share = amount(image, label)
    share = share / share.sum()
    x, y = torch.arange(image.shape[-1]) + 0.5, torch.arange(image.shape[-2]) + 0.5
    return torch.stack([(share.sum(dim=0) * x).sum(), (share.sum(dim=1) * y).sum()])


def augmented(boxed: BoxedImage, settings: dict[str, float], seed: int) -> BoxedImage:
    changed = BoxAugmentSettings.from_tree(settings)
    return augment_image(boxed, SIZE, PREPROCESSING, changed, generator(seed))


@pytest.mark.parametrize(
    "settings",
    [FLIP, FLIP_VERTICAL, SCALE, SHIFT, CROP, ALL],
    ids=["flip", "flip_vertical", "scale", "shift", "crop", "all"],
)
def test_a_box_lies_where_its_rectangle_lies(settings: dict[str, float]) -> None:
    boxed = painted([[11, 9, 41, 37], [70, 50, 107, 61]])
    places, compared = set(), 0
    for seed in range(25):
        moved = augmented(boxed, settings, seed)
        for box, label in zip(moved.boxes_xyxy, moved.labels.tolist(), strict=True):
            found = seen(moved.image, label)
            assert found is not None
            assert (found - box).abs().max() <= 1.0, (seed, label, found, box)
            places.add((label, *found.tolist()))
            compared += 1
    assert compared >= 30
    assert len(places) >= (3 if settings in (FLIP, FLIP_VERTICAL) else 25)


def test_a_turned_box_is_the_one_around_its_rectangle() -> None:
    boxed = painted([[40, 30, 80, 55]])
    widths = set()
    for seed in range(15):
        moved = augmented(boxed, ROTATION, seed)
        found = seen(moved.image, 0, least=0.2)
        assert found is not None
        # the corners of a turned rectangle fill only a part of their pixels
        assert (found - moved.boxes_xyxy[0]).abs().max() <= 1.5
        widths.add(round(float(moved.boxes_xyxy[0, 2] - moved.boxes_xyxy[0, 0])))
    assert max(widths) - min(widths) >= 4  # 40 cos + 25 sin of up to 25 degrees: 40 to 47


@pytest.mark.parametrize("settings", [FLIP, SCALE, SHIFT, ROTATION, ROTATION | SCALE | FLIP_VERTICAL])
def test_no_fraction_of_a_pixel_is_lost(settings: dict[str, float]) -> None:
    # half a pixel, as between edges and centres of pixels, would show here
    boxed = painted([[53, 41, 68, 52]])
    for seed in range(8):
        moved = augmented(boxed, settings, seed)
        box = moved.boxes_xyxy[0]
        assert (middle(moved.image, 0) - (box[:2] + box[2:]) / 2).abs().max() < 0.1


def test_mirroring_is_exact() -> None:
    boxed = painted([[11, 9, 41, 37]])
    mirrored = next(
        moved
        for moved in (augmented(boxed, FLIP, seed) for seed in range(20))
        if moved.boxes_xyxy[0, 0] != 11
    )
    assert mirrored.boxes_xyxy.tolist() == [[79.0, 9.0, 109.0, 37.0]]
    assert torch.equal(mirrored.image, boxed.image.flip(-1))


@pytest.mark.parametrize("settings", [FLIP, FLIP_VERTICAL])
def test_half_of_the_images_are_mirrored(settings: dict[str, float]) -> None:
    boxed = painted([[11, 9, 41, 37]], size=(40, 50))
    changed = BoxAugmentSettings.from_tree(settings)
    same = [
        torch.equal(
            augment_image(boxed, (40, 50), PREPROCESSING, changed, generator(seed)).image, boxed.image
        )
        for seed in range(200)
    ]
    assert 70 < sum(same) < 130


@pytest.mark.parametrize("settings", [SCALE | SHIFT | ROTATION, CROP])
def test_a_box_of_which_less_than_a_quarter_is_left_is_dropped(settings: dict[str, float]) -> None:
    boxed = painted([[0, 0, 20, 20], [50, 30, 70, 50], [100, 70, 120, 90]])
    dropped, cut = 0, 0
    for seed in range(60):
        moved = augmented(boxed, settings, seed)
        height, width = moved.image.shape[-2:]
        assert (moved.visible >= MIN_VISIBLE).all()
        assert (moved.boxes_xyxy >= 0).all()
        assert (moved.boxes_xyxy[:, [0, 2]] <= width).all()
        assert (moved.boxes_xyxy[:, [1, 3]] <= height).all()
        dropped += 3 - len(moved.labels)
        cut += int((moved.visible < 0.99).sum())
    assert dropped > 5
    assert cut > 5


def test_what_is_left_is_the_share_of_the_area_that_can_be_seen() -> None:
    boxed = painted([[0, 0, 40, 30]])
    shares = []
    for seed in range(80):
        moved = augmented(boxed, {"shift": 0.5}, seed)
        share = float(amount(moved.image, 0).sum()) / (40 * 30)
        if len(moved.labels):
            shares.append(share)
            assert float(moved.visible[0]) == pytest.approx(share, abs=0.04)
            assert float(box_area(moved.boxes_xyxy)[0]) == pytest.approx(share * 1200, abs=50)
        else:
            assert share < MIN_VISIBLE + 0.04
    assert 20 < len(shares) < 80


def test_an_image_without_boxes_stays_one() -> None:
    moved = augmented(painted([]), ALL | {"rotation": 10.0, "colour": 0.2}, 0)
    assert moved.boxes_xyxy.shape == (0, 4)
    assert moved.image.shape[0] == 3


def test_nothing_switched_on_changes_nothing() -> None:
    boxed = painted([[11, 9, 41, 37]])
    moved = augmented(boxed, {}, 3)
    assert torch.equal(moved.image, boxed.image)
    assert torch.equal(moved.boxes_xyxy, boxed.boxes_xyxy)


def test_colours_change_and_boxes_do_not() -> None:
    boxed = painted([[11, 9, 41, 37]])
    images = [augmented(boxed, {"colour": 0.4}, seed) for seed in range(5)]
    assert len({int(moved.image[0, 20, 20]) for moved in images}) > 1
    assert len({int(moved.image[0, 80, 80]) for moved in images}) > 1
    assert all(torch.equal(moved.boxes_xyxy, boxed.boxes_xyxy) for moved in images)


def test_beyond_the_border_lies_the_mean_colour() -> None:
    grey = BoxPreprocessing(image_size=SIZE, mean=(0.2, 0.4, 0.6))
    boxed = painted([])
    settings = BoxAugmentSettings(shift=0.5)
    corners = set()
    for seed in range(10):
        image = augment_image(boxed, SIZE, grey, settings, generator(seed)).image
        corners |= {tuple(image[:, row, column].tolist()) for row in (0, -1) for column in (0, -1)}
    assert corners == {(GROUND,) * 3, (51, 102, 153)}


@pytest.mark.parametrize("resize", ["fit", "squash", "shortest"])
def test_a_larger_image_comes_at_the_size_of_the_input(resize: str) -> None:
    preprocessing = PREPROCESSING.with_changes({"resize": resize})
    boxed = painted([[20, 40, 100, 80]], size=(103, 138))
    for settings in (BoxAugmentSettings(), BoxAugmentSettings(flip=True), BoxAugmentSettings(rotation=1e-6)):
        moved = augment_image(boxed, SIZE, preprocessing, settings, generator(1))
        assert moved.image.shape == (3, *SIZE)
        found = seen(moved.image, 0)
        assert found is not None
        assert (found - moved.boxes_xyxy[0]).abs().max() <= 1.0


def test_strong_shrinking_keeps_fine_patterns_grey() -> None:
    # every other column white: without smoothing, a warp to a fifth would show black or white
    image = torch.zeros(3, 90, 120, dtype=torch.uint8)
    image[:, :, ::2] = 255
    boxed = BoxedImage(image, torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0))
    flat = BoxPreprocessing(image_size=(18, 24), mean=(0.5,) * 3)
    warped = augment_image(boxed, (18, 24), flat, BoxAugmentSettings(rotation=0.01), generator(0)).image
    assert (warped[:, 2:-2, 2:-2].float() - 127.5).abs().max() < 20


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (5, 1), (2, 3)])
def test_tiny_images_survive_everything(size: tuple[int, int]) -> None:
    height, width = size
    boxed = painted([[0, 0, width, height]], size=size)
    settings = BoxAugmentSettings.from_tree(ALL | {"rotation": 90.0, "colour": 0.3, "crop": 1.0})
    for seed in range(5):
        moved = augment_image(boxed, size, PREPROCESSING, settings, generator(seed))
        assert moved.boxes_xyxy.isfinite().all()
        joined = mosaic([boxed] * 4, generator(seed))
        assert joined.image.shape == (3, *size)


def test_a_mosaic_shows_four_images_with_their_boxes() -> None:
    images = [
        painted([[20, 15, 70, 60]], first_label=label, size=size)
        for label, size in enumerate([(90, 120), (70, 100), (120, 90), (90, 120)])
    ]
    found_labels = set()
    for seed in range(20):
        joined = mosaic(images, generator(seed))
        assert joined.image.shape == images[0].image.shape
        for box, label in zip(joined.boxes_xyxy, joined.labels.tolist(), strict=True):
            found = seen(joined.image, label)
            assert found is not None
            assert (found - box).abs().max() <= 1.0, (seed, label)
            found_labels.add(label)
        for label in set(range(4)) - set(joined.labels.tolist()):
            assert amount(joined.image, label).sum() < 0.3 * 50 * 45
    assert found_labels == {0, 1, 2, 3}


def test_what_a_mosaic_cut_off_counts_when_the_image_is_cut_again() -> None:
    images = [painted([[0, 0, 120, 90]], first_label=label) for label in range(4)]
    for seed in range(30):
        joined = mosaic(images, generator(seed))
        moved = augmented(joined, SHIFT | SCALE, seed)
        assert (joined.visible <= 1).all()
        first = dict(zip(joined.labels.tolist(), joined.visible.tolist(), strict=True))
        for label, share in zip(moved.labels.tolist(), moved.visible.tolist(), strict=True):
            assert MIN_VISIBLE <= share <= first[label] + 1e-6


EVERYTHING = ALL | {"rotation": 20.0, "colour": 0.3}


def test_the_generator_says_everything_and_the_global_one_is_left_alone() -> None:
    boxed = painted([[11, 9, 41, 37], [70, 50, 107, 61]])
    torch.manual_seed(1)
    first, before = augmented(boxed, EVERYTHING, 5), torch.get_rng_state()
    torch.manual_seed(2)
    second, other = augmented(boxed, EVERYTHING, 5), augmented(boxed, EVERYTHING, 6)
    assert all(torch.equal(one, same) for one, same in zip(first, second, strict=True))
    assert not torch.equal(first.image, other.image)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_one_setting_draws_does_not_depend_on_another() -> None:
    boxed = painted([[53, 41, 68, 52]])
    for seed in range(5):
        alone = augmented(boxed, FLIP, seed).boxes_xyxy[0, 0] > 52
        with_others = augmented(boxed, FLIP | {"scale": 0.01, "rotation": 0.1}, seed).boxes_xyxy[0, 0] > 52
        assert alone == with_others


def test_input_is_never_changed() -> None:
    boxed = painted([[11, 9, 41, 37], [70, 50, 107, 61]])
    kept = [part.clone() for part in boxed]
    for seed in range(5):
        augmented(boxed, EVERYTHING, seed)
        augmented(boxed, FLIP | FLIP_VERTICAL, seed)
        mosaic([boxed] * 4, generator(seed))
    assert all(torch.equal(part, copy) for part, copy in zip(boxed, kept, strict=True))
