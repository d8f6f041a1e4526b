"""Heat maps and boxes drawn over images."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.interpret.draw import (
    COLOURS,
    DIMMED,
    DrawnBox,
    box_text,
    colour_bar,
    colour_of,
    draw_boxes,
    enlarge_picture,
    hex_colour,
    in_rows,
    overlay,
    shared_limits,
    strength,
    text_colour_on,
    times_even,
    to_picture,
)
from vitrail.interpret.viewer.maps import LOST, Heat


def brightness(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture.convert("L"), dtype=float)


def test_brightness_never_falls_with_relevance() -> None:
    black = Image.new("RGB", (64, 1))

    ramp = brightness(overlay(black, torch.linspace(0, 1, 64)[None], limits=(0, 1)))[0]

    # Conversion to 8-bit grey may round one level down.
    assert (np.diff(ramp) >= -1).all()
    assert ramp[-1] - ramp[0] > 150


def test_overlay_colours_the_relevant_corner_only_and_dims_the_rest() -> None:
    picture = Image.new("RGB", (30, 30), (90, 90, 90))
    relevance = torch.zeros(3, 3)
    relevance[0, 0] = 1

    pixels = np.asarray(overlay(picture, relevance, limits=(0, 1))).astype(int)

    assert pixels[:5, :5, 0].min() > 150
    assert set(pixels[20:, 20:].flatten().tolist()) == {int(DIMMED * 90)}
    flat = overlay(Image.new("RGB", (10, 14), (90, 90, 90)), torch.full((2, 3), 0.5), limits=(0.5, 3))
    assert flat.size == (10, 14)
    assert set(np.asarray(flat).flatten().tolist()) == {int(DIMMED * 90)}


def test_pictures_keep_their_pixels_join_in_one_row_and_grow_by_whole_factors() -> None:
    picture = to_picture(torch.arange(3 * 2 * 5, dtype=torch.uint8).reshape(3, 2, 5))
    assert picture.size == (5, 2)
    assert picture.getpixel((4, 1)) == (9, 19, 29)

    small = Image.new("RGB", (7, 5))
    assert enlarge_picture(small, 21).size == (28, 20)
    assert in_rows([small, small], 2, gap=2).size == (16, 5)
    assert in_rows([small] * 3, 2, gap=2).size == (16, 12)


def count_pixels(picture: Image.Image, colour: tuple[int, int, int]) -> int:
    return int((np.asarray(picture) == np.array(colour)).all(axis=-1).sum())


def contrast(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    """WCAG 2.2, contrast ratio, written out anew."""

    def luminance(colour: tuple[int, int, int]) -> float:
        shares = np.array(colour) / 255
        linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
        return float(linear @ np.array([0.2126, 0.7152, 0.0722]))

    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_the_line_runs_along_the_inner_side_of_the_box() -> None:
    picture = Image.new("RGB", (500, 450), "white")

    drawn = draw_boxes(picture, [DrawnBox((100, 50, 301, 207), label=1)])

    rows, columns = (np.asarray(drawn) == np.array(colour_of(1))).all(axis=-1).nonzero()
    assert (rows.min(), columns.min(), rows.max() + 1, columns.max() + 1) == (50, 100, 207, 301)
    assert (np.asarray(drawn)[60:200, 110:290] == 255).all()
    assert count_pixels(picture, (255, 255, 255)) == 500 * 450


def test_boxes_keep_their_places_when_a_small_picture_is_enlarged() -> None:
    drawn = draw_boxes(Image.new("RGB", (100, 80), "white"), [DrawnBox((10, 20, 30, 60), label=0)])

    assert drawn.size == (500, 400)
    rows, columns = (np.asarray(drawn) == np.array(colour_of(0))).all(axis=-1).nonzero()
    assert (rows.min(), columns.min(), rows.max() + 1, columns.max() + 1) == (100, 50, 300, 150)


@pytest.mark.parametrize("background", [*COLOURS, (0, 0, 0), (255, 255, 255)])
def test_every_class_shows_on_its_own_colour_too(background: tuple[int, int, int]) -> None:
    picture = Image.new("RGB", (450, 450), background)
    label = COLOURS.index(background) if background in COLOURS else 0

    drawn = np.asarray(draw_boxes(picture, [DrawnBox((100, 100, 300, 300), label)]))

    profile = [tuple(int(value) for value in drawn[200, column]) for column in range(94, 110)]
    assert max(contrast(one, other) for one in profile for other in profile) > 1.9


def test_21_classes_have_colours_of_their_own_on_which_texts_are_readable() -> None:
    colours = [colour_of(label) for label in range(21)]

    assert len(set(colours)) == 21
    assert colour_of(21) == colour_of(0)
    assert hex_colour(colour_of(0)) == "#56b4e9"
    for colour in colours:
        assert contrast(colour, text_colour_on(colour)) > 4.5  # WCAG 2.2, level AA


def test_a_broken_line_has_gaps() -> None:
    picture = Image.new("RGB", (450, 450), "white")

    whole = draw_boxes(picture, [DrawnBox((100, 100, 300, 300), 2)])
    broken = draw_boxes(picture, [DrawnBox((100, 100, 300, 300), 2, is_dashed=True)])

    share = count_pixels(broken, colour_of(2)) / count_pixels(whole, colour_of(2))
    assert 0.4 < share < 0.8


def test_texts_do_not_cover_each_other() -> None:
    picture = Image.new("RGB", (600, 450), "white")
    boxes = [DrawnBox((100 + 2 * place, 100, 300, 300), 3, "same 0.50") for place in range(3)]

    one = count_pixels(draw_boxes(picture, boxes[:1]), text_colour_on(colour_of(3)))
    three = count_pixels(draw_boxes(picture, boxes), text_colour_on(colour_of(3)))

    assert one > 0
    assert three == 3 * one


def test_many_boxes_leave_most_of_the_picture_uncovered() -> None:
    generator = np.random.default_rng(5)
    lefts = generator.uniform(0, 700, size=(500, 2))
    boxes = [DrawnBox((x, y, x + 40, y + 40), label % 2, "cell 0.97") for label, (x, y) in enumerate(lefts)]

    drawn = draw_boxes(Image.new("RGB", (800, 800), "white"), boxes)

    assert count_pixels(drawn, (255, 255, 255)) > 0.5 * 800 * 800
    assert all(count_pixels(drawn, colour_of(label)) > 2000 for label in (0, 1))


def test_strange_boxes_do_no_harm() -> None:
    picture = Image.new("RGB", (500, 450), "white")
    inverted = DrawnBox((300, 200, 100, 50), 0)
    strange = [
        DrawnBox((math.nan, 0, 5, 5), 1, "none"),
        DrawnBox((0, 0, math.inf, 5), 1, "endless"),
        DrawnBox((900, 100, 950, 300), 2, "outside"),
        DrawnBox((7, 7, 7, 7), 3, "a point"),
        DrawnBox((499.9, 449.9, 500, 450), 4, ""),
    ]

    drawn = draw_boxes(picture, strange)

    assert drawn.size == picture.size
    assert count_pixels(drawn, colour_of(1)) == 0
    assert all(count_pixels(drawn, colour_of(label)) > 0 for label in (2, 3, 4))
    put_right = draw_boxes(picture, [DrawnBox((100, 50, 300, 200), 0)])
    assert np.array_equal(draw_boxes(picture, [inverted]), put_right)


def test_texts_are_of_letters_that_the_font_has() -> None:
    assert box_text("red cell", 0, 0.987) == "red cell 0.99"
    assert box_text("caf\u00e9\n", 1) == "cafe"
    assert box_text("\u732b", 7, 0.5) == "[7] 0.50"


def test_attention_is_drawn_from_even_on_and_what_is_nearly_even_stays_dark() -> None:
    peaked, nearly = torch.tensor([[0.9, 0.1, 0, 0, 0, 0]]), torch.full((1, 6), 1 / 6)
    nearly[0, 0] += 0.008
    maps = [times_even(each) for each in (peaked, nearly)]

    torch.testing.assert_close(maps[0], 6 * peaked)
    limits = shared_limits(maps)
    assert limits == (1.0, pytest.approx(5.4))
    assert shared_limits(maps[1:]) == (1.0, 3.0)
    assert strength(float(maps[1].max())).startswith("nearly even, at most 1.0")
    assert strength(5.4) == "up to 5.4 times even attention"
    black = Image.new("RGB", (6, 1))
    tiles = [brightness(overlay(black, each, limits=limits)) for each in maps]
    assert tiles[0].max() > 150
    assert tiles[1].max() < 10
    assert brightness(overlay(black, maps[1], limits=(1.0, 3.0))).max() < 10
    assert not np.array_equal(brightness(colour_bar(limits)), brightness(colour_bar((1.0, 3.0))))


def test_relevance_and_lost_probability_say_how_much_they_are() -> None:
    assert strength(1.1, "relevance") == "nearly even, at most 1.10 times even relevance"
    assert strength(0.0, "relevance") == "no relevance"
    little, much = (Heat(torch.tensor([[0.0, most]]), "occlusion", LOST) for most in (0.034, 0.5))
    said = "occlusion, no one of 1 x 2 patches matters alone (up to 3.4% of the probability lost)"
    assert (little.said, little.limits) == (said, (0.0, 0.1))
    assert (much.said, much.limits) == ("occlusion, up to 50% of the probability lost", (0.0, 0.5))


def test_even_attention_of_a_window_is_that_of_its_own_keys() -> None:
    windows = torch.tensor([[0.5, 0.5, 0, 0], [0.75, 0.25, 0, 0], [1.0, 0, 0, 0]])

    assert times_even(windows, is_masked=True).tolist() == [[1, 1, 0, 0], [1.5, 0.5, 0, 0], [4, 0, 0, 0]]
    assert times_even(windows)[0].tolist() == [2, 2, 0, 0]


def test_what_the_model_does_not_see_is_dark_and_framed() -> None:
    picture = Image.new("RGB", (40, 20), (200, 200, 200))

    drawn = brightness(overlay(picture, torch.zeros(2, 2), limits=(1.0, 3.0), crop=(0.25, 0, 0.75, 1)))

    assert drawn.shape == (20, 40)
    assert set(drawn[:, :10].flatten()) == {70}
    assert set(drawn[1:-1, 11:29].flatten()) == {int(DIMMED * 200)}
    assert (drawn[:, [10, 29]] == 255).all()
