"""The common corruptions: what each does to an image, against formulas and independent implementations."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.core.errors import ConfigError
from vitrail.data.corruptions import CORRUPTIONS, SEVERITIES, SIDES_PX, corrupt, nearest_side
from vitrail.data.corruptions.blur import disk, glass_blur
from vitrail.data.corruptions.digital import elastic_transform
from vitrail.data.corruptions.filters import motion_blur, plasma, zoom_in
from vitrail.data.corruptions.weather import brightness, frost

NAMES = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur",
    "snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip


@pytest.fixture(scope="module")
def scene() -> torch.Tensor:
    """A smooth picture with edges, 37 rows and 45 columns."""
    rows, columns = np.mgrid[0:37, 0:45] / 40
    layers = [0.3 + 0.4 * rows, 0.2 + 0.5 * columns, 0.5 + 0.3 * np.sin(9 * rows)]
    pixels = np.stack(layers) * 255
    pixels[:, 10:20, 15:30] = [[[200]], [[60]], [[30]]]
    return torch.from_numpy(pixels.astype(np.uint8))


def no_draws() -> np.random.Generator:
    return np.random.default_rng(0)


def as_pixels(scene: torch.Tensor) -> np.ndarray:
    return scene.permute(1, 2, 0).numpy() / 255


def test_there_are_the_fifteen_of_the_paper_in_four_groups() -> None:
    assert set(CORRUPTIONS) == set(NAMES)
    groups = [CORRUPTIONS[name].group for name in NAMES]
    assert [groups.count(group) for group in ("noise", "blur", "weather", "digital")] == [3, 4, 4, 4]
    for corruption in CORRUPTIONS.values():
        assert set(corruption.settings) == set(SIDES_PX)
        assert all(len(settings) == 5 for settings in corruption.settings.values())


@pytest.mark.parametrize("name", NAMES)
def test_damage_repeats_for_a_seed_and_grows_with_severity(name: str, scene: torch.Tensor) -> None:
    damaged = [corrupt(scene, CORRUPTIONS[name], severity, seed=4) for severity in SEVERITIES]
    assert torch.equal(damaged[1], corrupt(scene, CORRUPTIONS[name], 2, seed=4))
    assert all(image.shape == scene.shape and image.dtype == torch.uint8 for image in damaged)
    distances = [float((image.double() - scene.double()).abs().mean()) for image in damaged]
    assert min(distances) > 0
    if name not in ("elastic_transform", "frost"):  # settings not of one kind; another picture each time
        assert distances[4] > distances[0]


def test_other_seeds_and_severities_draw_anew(scene: torch.Tensor) -> None:
    noise = CORRUPTIONS["gaussian_noise"]
    one, other = (corrupt(scene, noise, 1, seed=seed).double() - scene for seed in (0, 1))
    assert abs(np.corrcoef(one.flatten(), other.flatten())[0, 1]) < 0.05


def test_noise_has_the_published_strength() -> None:
    grey = torch.full((3, 224, 224), 102, dtype=torch.uint8)  # 0.4
    noise = corrupt(grey, CORRUPTIONS["gaussian_noise"], 1, seed=0).double() / 255
    assert float(noise.std()) == pytest.approx(0.08, rel=0.02)
    photons = corrupt(grey, CORRUPTIONS["shot_noise"], 2, seed=0).double() / 255
    assert float(photons.std()) == pytest.approx((0.4 / 25) ** 0.5, rel=0.03)
    impulses = corrupt(grey, CORRUPTIONS["impulse_noise"], 4, seed=0)
    assert float((impulses != 102).double().mean()) == pytest.approx(0.17, rel=0.03)
    assert float((impulses == 255).double().mean()) == pytest.approx(0.085, rel=0.05)


def test_settings_follow_the_nearest_published_size() -> None:
    assert [nearest_side(side) for side in (8, 32, 44, 46, 64, 100, 224, 384)] == [
        32, 32, 32, 64, 64, 64, 224, 224,
    ]  # fmt: skip


def test_a_severity_that_there_is_not_is_refused(scene: torch.Tensor) -> None:
    with pytest.raises(ConfigError, match="severity of 6"):
        corrupt(scene, CORRUPTIONS["fog"], 6, seed=0)


def test_jpeg_is_pillows_and_whole_numbers_survive(scene: torch.Tensor) -> None:
    buffer = io.BytesIO()
    Image.fromarray(scene.permute(1, 2, 0).numpy()).save(buffer, "JPEG", quality=58)
    expected = np.asarray(Image.open(buffer))
    damaged = corrupt(scene, CORRUPTIONS["jpeg_compression"], 3, seed=0)
    assert np.array_equal(damaged.permute(1, 2, 0).numpy(), expected)


def test_brightness_raises_the_value_of_hsv(scene: torch.Tensor) -> None:
    from matplotlib.colors import hsv_to_rgb, rgb_to_hsv

    hsv = rgb_to_hsv(as_pixels(scene))
    hsv[..., 2] = np.clip(hsv[..., 2] + 0.3, 0, 1)
    np.testing.assert_allclose(brightness(as_pixels(scene), 0.3, no_draws()), hsv_to_rgb(hsv), atol=1e-12)
    assert brightness(np.zeros((1, 1, 3)), 0.2, no_draws()).tolist() == [[[0.2, 0.2, 0.2]]]


def test_motion_along_a_row_is_a_weighted_sum_of_what_follows() -> None:
    pixels = np.zeros((3, 12))
    pixels[1, 6] = 1.0
    blurred = motion_blur(pixels, 2, 1.5, 0.0)
    weights = np.exp(-(np.arange(5) ** 2) / (2 * 1.5**2))
    weights /= weights.sum()
    # The pixel at 6 - i reads the one at 6 with the weight i.
    np.testing.assert_allclose(blurred[1, 6:1:-1], weights)
    assert not blurred[[0, 2]].any()
    np.testing.assert_allclose(motion_blur(np.ones((4, 5)), 3, 2.0, 33.0), 1.0)  # the edge is continued


def test_zooming_by_two_doubles_the_centre() -> None:
    ramp = np.tile(np.arange(16.0), (16, 1))
    zoomed = zoom_in(ramp, 2.0)
    assert zoomed.shape == (16, 16)
    np.testing.assert_allclose(zoomed[3], np.linspace(4, 11, 16))
    assert zoom_in(np.zeros((9, 13, 3)), 1.07).shape == (9, 13, 3)


def test_a_disk_has_its_area_and_keeps_the_brightness() -> None:
    sharp = disk(3, 1e-3)
    assert sharp.shape == (17, 17)
    assert np.count_nonzero(sharp > 1e-9) == 29  # whole numbers with x^2 + y^2 <= 9
    assert disk(10, 0.5).shape == (21, 21)
    assert disk(6, 0.5).sum() == pytest.approx(1)
    assert 1 < disk(10, 0.5).sum() < 1.02  # its rim is mirrored at the end of the grid, as published


def test_defocus_is_the_convolution_with_the_disk(scene: torch.Tensor) -> None:
    from scipy.ndimage import correlate

    setting = CORRUPTIONS["defocus_blur"].settings[32][4]
    expected = correlate(as_pixels(scene)[..., 1], disk(*setting), mode="mirror")
    blurred = CORRUPTIONS["defocus_blur"].apply(as_pixels(scene), setting, no_draws())
    np.testing.assert_allclose(blurred[..., 1], expected, atol=1e-12)


def test_glass_moves_values_no_farther_than_told_and_makes_none() -> None:
    pixels = np.arange(400.0).reshape(20, 20)[..., None].repeat(3, axis=-1) / 400
    moved = glass_blur(pixels, (1e-3, 2, 1), no_draws())[..., 0]
    before = np.floor(pixels[..., 0] * 255 + 1e-6) / 255
    inside = slice(3, 18)
    assert (moved != before)[inside, inside].mean() > 0.8
    assert np.array_equal(moved[:3], before[:3])
    assert np.isin(moved, before).all()


def test_fog_is_made_of_a_cloud_that_has_coarse_parts() -> None:
    cloud = plasma(32, 32, 3.0, no_draws())
    assert cloud.min() == 0
    assert cloud.max() == 1
    rough = plasma(32, 32, 1.2, no_draws())
    steps = [float(np.abs(np.diff(image)).mean()) for image in (cloud, rough)]
    assert steps[0] < steps[1]


def test_elastic_without_field_is_an_affine_map_of_three_points() -> None:
    rows, columns = np.mgrid[0:40, 0:40] / 39
    pixels = np.stack([rows, columns, (rows + columns) / 2], axis=-1)
    warped = elastic_transform(pixels, (0.0, 1.0, 3.0), no_draws())

    # Of a linear ramp an affine map makes a linear ramp, wherever nothing is mirrored.
    inner = warped[15:25, 15:25]
    np.testing.assert_allclose(np.diff(inner, n=2, axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(np.diff(inner, n=2, axis=1), 0, atol=1e-9)
    draws = no_draws().uniform(-3, 3, size=(3, 2))
    before = 20 + 13 * np.array([[1, 1], [1, -1], [-1, -1]])  # x y
    for place, shift in zip(before, draws, strict=True):
        x, y = np.rint(place + shift).astype(int)
        if 0 <= x < 40 and 0 <= y < 40:  # a point has moved to here, up to the rounding
            assert np.abs(warped[y, x, :2] * 39 - place[::-1]).max() < 1.5


def test_published_pictures_of_frost_are_taken_where_they_are(tmp_path, monkeypatch) -> None:
    (tmp_path / "frost").mkdir()
    Image.new("RGB", (60, 50), (10, 20, 30)).save(tmp_path / "frost" / "frost1.png")
    grey = np.full((40, 40, 3), 0.5)
    drawn = frost(grey, (0.8, 0.6), no_draws())
    monkeypatch.setenv("VITRAIL_DATA", str(tmp_path))

    # Images of 40 pixels count as of 32, for which pictures are shrunk to a fifth: this one is too small.
    assert np.array_equal(frost(grey, (0.8, 0.6), no_draws()), drawn)
    Image.new("RGB", (600, 500), (10, 20, 30)).save(tmp_path / "frost" / "frost2.png")
    from vitrail.data.corruptions import weather

    weather._frost_pictures.cache_clear()
    expected = 0.8 * 0.5 + 0.6 * np.array([10, 20, 30]) / 255
    np.testing.assert_allclose(frost(grey, (0.8, 0.6), no_draws())[7, 9], expected)
