from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from vitrail.interpret.draw import (
    DIMMED,
    contact_sheet,
    enlarge_picture,
    heat_map,
    overlay,
    side_by_side,
    to_picture,
)


def brightness(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture.convert("L"), dtype=float)


def test_heat_map_is_brightest_where_relevance_is_largest() -> None:
    relevance = torch.zeros(3, 5)
    relevance[2, 4] = 1

    values = brightness(heat_map(relevance, (50, 30)))

    row, column = np.unravel_index(values.argmax(), values.shape)
    assert row >= 20
    assert column >= 40


def test_brightness_of_the_colour_map_never_falls() -> None:
    ramp = brightness(heat_map(torch.linspace(0, 1, 64)[None], (64, 1), is_smooth=False))[0]

    # Conversion to 8-bit grey may round one level down.
    assert (np.diff(ramp) >= -1).all()
    assert ramp[-1] - ramp[0] > 200


def test_flat_relevance_shows_nothing() -> None:
    assert brightness(heat_map(torch.full((2, 3), 0.3), (6, 4))).max() < 5


def test_overlay_without_relevance_is_the_picture_dimmed() -> None:
    picture = Image.new("RGB", (10, 14), (90, 90, 90))

    result = overlay(picture, torch.full((2, 3), 0.5))

    assert result.size == (10, 14)
    assert set(np.asarray(result).flatten().tolist()) == {int(DIMMED * 90)}


def test_overlay_colours_the_relevant_corner_only() -> None:
    picture = Image.new("RGB", (30, 30), (90, 90, 90))
    relevance = torch.zeros(3, 3)
    relevance[0, 0] = 1

    pixels = np.asarray(overlay(picture, relevance)).astype(int)

    assert pixels[:5, :5, 0].min() > 150
    assert set(pixels[20:, 20:].flatten().tolist()) == {int(DIMMED * 90)}


def test_contact_sheet_has_a_tile_for_each_head_of_each_layer() -> None:
    maps = [torch.rand(3, 2, 5) for _ in range(4)]

    small = contact_sheet(maps[:1], ["layer 0"], tile=20)
    sheet = contact_sheet(maps, [f"layer {i}" for i in range(4)], tile=20)

    assert sheet.width == small.width
    assert sheet.height - small.height == 3 * (8 + 3)


def test_picture_keeps_the_pixels_of_the_tensor() -> None:
    image = torch.arange(3 * 2 * 5, dtype=torch.uint8).reshape(3, 2, 5)

    picture = to_picture(image)

    assert picture.size == (5, 2)
    assert picture.getpixel((4, 1)) == (9, 19, 29)


def test_pictures_join_in_one_row_and_small_ones_grow_by_whole_factors() -> None:
    small = Image.new("RGB", (7, 5))

    assert enlarge_picture(small, 21).size == (28, 20)
    assert side_by_side([small, small], gap=2).size == (16, 5)


def test_a_contact_sheet_may_hold_grids_of_several_sizes() -> None:
    maps = [torch.rand(1, 4, 6), torch.rand(3, 2, 3)]
    sheet = contact_sheet(maps, ["fine", "coarse"], tile=30)
    assert sheet.size == contact_sheet([torch.rand(3, 4, 6)] * 2, ["fine", "coarse"], tile=30).size
