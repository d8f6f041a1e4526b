"""Each variation has the property that names it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.augment import augment, change_colour, erase, flip, mix, rotate, shift
from vitrail.data.settings import AugmentSettings


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def images() -> Tensor:
    return torch.randn(7, 3, 5, 11, generator=generator(1)) + 3  # no value is zero


def test_flipping_twice_with_the_same_draws_is_the_identity(images: Tensor) -> None:
    once = flip(images, generator())
    assert torch.equal(flip(once, generator()), images)
    is_flipped = [torch.equal(one, other.flip(-1)) for one, other in zip(once, images, strict=True)]
    is_same = [torch.equal(one, other) for one, other in zip(once, images, strict=True)]
    assert any(is_flipped)
    assert any(is_same)
    assert all(a != b for a, b in zip(is_flipped, is_same, strict=True))


def test_shifting_by_zero_is_the_identity(images: Tensor) -> None:
    assert torch.equal(shift(images, 0, generator()), images)


def test_shifting_moves_the_picture_and_zeros_come_in() -> None:
    images = torch.zeros(64, 3, 9, 9)
    images[:, :, 4, 4] = 1.0
    moved = shift(images, 2, generator())
    assert moved.sum(dim=(1, 2, 3)).eq(3).all()
    places = {tuple(one[0].nonzero()[0].tolist()) for one in moved}
    assert places <= {(row, column) for row in range(2, 7) for column in range(2, 7)}
    assert len(places) > 10


def test_a_shift_is_exact_where_the_picture_stays(images: Tensor) -> None:
    moved = shift(images, 2, generator())
    offsets = torch.randint(0, 5, (2, 7), generator=generator()) - 2
    for before, after, row, column in zip(images, moved, *offsets.tolist(), strict=True):
        expected = torch.zeros_like(before)
        for y in range(5):
            for x in range(11):
                if 0 <= y + row < 5 and 0 <= x + column < 11:
                    expected[:, y, x] = before[:, y + row, x + column]
        assert torch.equal(after, expected)


def test_rotation_by_zero_degrees_is_the_identity(images: Tensor) -> None:
    torch.testing.assert_close(rotate(images, 0.0, generator()), images, atol=1e-5, rtol=1e-5)


def test_rotation_keeps_lengths_on_an_oblong_image() -> None:
    distance = torch.hypot(torch.arange(41)[:, None] - 20.0, torch.arange(61)[None, :] - 30.0)
    ring = torch.exp(-((distance - 10) ** 2) / 8).expand(8, 3, 41, 61).contiguous()
    torch.testing.assert_close(rotate(ring, 180.0, generator()), ring, atol=0.05, rtol=0)


def test_rotation_stays_within_its_range_and_differs_between_images() -> None:
    row = torch.zeros(16, 3, 41, 41)
    row[:, :, 20, 35] = 1.0
    rotated = rotate(row, 30.0, generator())[:, 0]
    heaviest = rotated.flatten(1).argmax(dim=1)
    angles = torch.rad2deg(torch.atan2(heaviest // 41 - 20.0, heaviest % 41 - 20.0))
    assert angles.abs().max() <= 33  # a pixel at radius 15 is 3.8 degrees wide
    assert angles.unique().numel() > 4


def test_colour_changes_keep_a_picture_in_line_with_itself() -> None:
    grey = torch.randn(9, 1, 5, 7, generator=generator(1)).expand(-1, 3, -1, -1)
    changed = change_colour(grey, 0.4, generator())
    # a grey picture stays grey: brightness and contrast only, an affine map of the pixels
    torch.testing.assert_close(changed[:, 0], changed[:, 2], atol=1e-5, rtol=0)
    slope = changed[:, 0].std(dim=(1, 2)) / grey[:, 0].std(dim=(1, 2))
    offset = changed[:, 0].mean(dim=(1, 2)) - grey[:, 0].mean(dim=(1, 2))
    assert ((slope >= 0.6 - 1e-4) & (slope <= 1.4 + 1e-4)).all()
    assert (offset.abs() <= 0.4 + 1e-4).all()
    assert slope.std() > 0.05
    assert offset.std() > 0.05


def test_colour_of_strength_zero_is_the_identity(images: Tensor) -> None:
    torch.testing.assert_close(change_colour(images, 0.0, generator()), images, atol=1e-6, rtol=1e-6)


def test_saturation_alone_leaves_the_luma() -> None:
    images = torch.randn(5, 3, 7, 7, generator=generator(1))
    weights = torch.tensor([0.299, 0.587, 0.114])[None, :, None, None]
    luma = (images * weights).sum(dim=1).flatten(1)
    changed = (change_colour(images, 0.3, generator()) * weights).sum(dim=1).flatten(1)
    # luma is mapped affinely, whatever happens to the saturation
    correlation = torch.stack(
        [torch.corrcoef(torch.stack(pair))[0, 1] for pair in zip(luma, changed, strict=True)]
    )
    torch.testing.assert_close(correlation, torch.ones(5), atol=1e-4, rtol=0)


def test_erasing_removes_one_box_within_the_stated_area() -> None:
    images = torch.ones(200, 3, 24, 32)
    erased = erase(images, 1.0, generator())[:, 0] == 0
    area = erased.float().mean(dim=(1, 2))
    assert area.min() > 0.01
    assert area.max() < 0.36
    for hole in erased:
        rows, columns = hole.any(dim=1), hole.any(dim=0)
        assert hole.sum() == rows.sum() * columns.sum()


def test_erasing_follows_its_probability() -> None:
    images = torch.ones(400, 3, 9, 9)
    share = (erase(images, 0.25, generator()) == 0).flatten(1).any(dim=1).float().mean()
    assert 0.17 < share < 0.33  # four standard deviations
    assert torch.equal(erase(images, 0.0, generator()), images)


@pytest.mark.parametrize("seed", range(8))
def test_cutmix_weight_is_the_share_of_pixels(seed: int) -> None:
    images = torch.arange(5.0)[:, None, None, None].expand(-1, 3, 13, 9).contiguous()
    mixed, targets = mix(
        images, F.one_hot(torch.arange(5), 6).float(), AugmentSettings(cutmix=1.0), generator(seed)
    )
    for own, picture, target in zip(range(5), mixed, targets, strict=True):
        share = (picture[0] == own).float().mean()
        torch.testing.assert_close(target[own], share, atol=1e-6, rtol=0)
        torch.testing.assert_close(target[(own - 1) % 5], 1 - share, atol=1e-6, rtol=0)
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(5))


def test_mixup_mixes_pixels_and_targets_with_one_weight() -> None:
    images = torch.eye(4).reshape(4, 1, 2, 2).expand(-1, 3, -1, -1).contiguous()
    mixed, targets = mix(
        images, F.one_hot(torch.arange(4), 4).float(), AugmentSettings(mixup=0.8), generator()
    )
    torch.testing.assert_close(mixed[:, 0].flatten(1), targets)
    assert ((targets > 0).sum(dim=1) == 2).all()


def test_both_kinds_of_mixing_occur_when_both_are_on() -> None:
    images = torch.arange(2.0)[:, None, None, None].expand(-1, 3, 9, 9).contiguous()
    settings = AugmentSettings(mixup=1.0, cutmix=1.0)
    kinds = set()
    for seed in range(30):
        mixed, _ = mix(images, F.one_hot(torch.arange(2), 2).float(), settings, generator(seed))
        kinds.add(bool(((mixed == 0) | (mixed == 1)).all()))
    assert kinds == {True, False}


def test_nothing_is_mixed_with_probability_zero(images: Tensor) -> None:
    settings = AugmentSettings(mixup=1.0, cutmix=1.0, mix_probability=0.0)
    mixed, targets = mix(images, F.one_hot(torch.arange(7) % 2).float(), settings, generator())
    assert torch.equal(mixed, images)
    assert torch.equal(targets.argmax(dim=1), torch.arange(7) % 2)


def test_varying_is_a_function_of_the_seed_and_leaves_its_input(images: Tensor) -> None:
    settings = AugmentSettings(shift=2, flip=True, rotation=10.0, colour=0.3, erase=0.5)
    before = images.clone()
    one, same, other = (augment(images, settings, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(images, before)
    assert torch.isfinite(one).all()


def test_default_settings_vary_nothing(images: Tensor) -> None:
    assert augment(images, AugmentSettings(), generator()) is images
