"""Still pictures of explanations."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from making.explanations import EVIL, of_boxes, of_caption, of_image, of_text
from vitrail.core.errors import ConfigError
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.interpret.viewer.picture import alignment_svg, draw_alignments
from vitrail.report.tiles import Matrix


def toy_panel(rows: int, columns: int, title: str = "") -> Matrix:
    weights = torch.rand(rows, columns, generator=torch.Generator().manual_seed(3)).softmax(-1)
    return Matrix(title, weights.numpy(), [f"r{i}" for i in range(rows)], [f"c{i}" for i in range(columns)])


def size_of(png: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(png)) as picture:
        return picture.size


def test_a_picture_grows_with_the_sentence_and_the_layers_and_may_have_gaps() -> None:
    small, wide = size_of(draw_alignments([toy_panel(3, 4)])), size_of(draw_alignments([toy_panel(3, 40)]))
    png = draw_alignments([toy_panel(3, 4, f"layer {index}") for index in range(4)])
    four = size_of(png)

    assert wide[0] > small[0] + 36 * 20
    assert wide[1] < small[1] + 40
    assert four[0] > 2.5 * small[0]
    assert four[1] > 1.8 * small[1]
    with Image.open(io.BytesIO(png)) as picture:  # the last row has one panel of three
        gap = picture.convert("L").crop((four[0] * 2 // 5, four[1] * 3 // 5, *four))
    assert gap.getextrema() == (255, 255)


def test_cells_are_as_dark_as_their_root() -> None:
    weights = torch.zeros(1, 30)
    weights[0, ::3], weights[0, 1::3] = 1.0, 0.25
    panel = Matrix("", weights.numpy(), ["r"], ["c"] * 30)

    with Image.open(io.BytesIO(draw_alignments([panel]))) as picture:
        colours = picture.convert("RGB").getcolors(10_000)

    common = {colour for _, colour in sorted(colours, reverse=True)[:3]}
    full, half = (0, 114, 178), (127, 184, 216)  # the colour, and half-way from it to white
    for expected in (full, half, (255, 255, 255)):
        assert any(max(abs(a - b) for a, b in zip(colour, expected, strict=True)) <= 2 for colour in common)


def test_any_piece_can_stand_on_an_axis() -> None:
    pieces = ["$x$", "a_b^c", "\u72d7", "\u0627\u0644", EVIL, "w" * 60]
    panel = Matrix("$title$", np.full((6, 6), 1 / 6), pieces, pieces)

    svg = alignment_svg("any", panel)

    assert size_of(draw_alignments([panel]))[0] > 0
    assert "$x$" in svg
    assert EVIL not in svg
    assert "w" * 17 not in svg


def test_a_word_that_looks_everywhere_is_not_drawn_as_one_that_has_decided() -> None:
    explanation = of_caption()
    (maps,) = explanation.maps
    weights = torch.full_like(maps.layers[0].weights, 1 / 6)
    weights[:, :, 1] = torch.tensor([1.0, 0, 0, 0, 0, 0])
    weights[:, :, 0, 0] += 1e-4  # noise
    even = replace(
        explanation, maps=(replace(maps, layers=(maps.layers[0]._replace(weights=weights),), joined=()),)
    )

    tiles = np.asarray(even.still().convert("L"), dtype=float)[24:112, 224 : 3 * 220 + 6]

    word, decided = tiles[5:-5, 5:215], tiles[5:-5, 228:438]
    assert np.ptp(word) < 10
    assert np.ptp(decided) > 100


def test_an_explanation_has_a_picture_of_what_it_is_about() -> None:
    assert of_image().overlay().size == (20 * 48, 8 * 48)
    assert of_image().still().height > 8 * 48  # layer, head and scale in words
    assert of_image().sheet().height > 2 * 20
    assert of_boxes().sheet().width >= 3 * 140
    assert of_boxes().still().width > 3 * 400  # all boxes, and each of two
    assert of_caption().still().width == 3 * 220 + 2 * 3  # the image, and each word but the end
    assert of_text().still().width > of_text().still(layer=1, head=1).width
    drawn = {of_caption().still(layer=layer).tobytes() for layer in (None, 1, 2)}
    assert len(drawn) == 3  # the mean over layers is none of them


@pytest.mark.parametrize("suffix", [".svg", ".pdf"])
@pytest.mark.parametrize("explanation", [of_image, of_boxes, of_caption, of_text])
def test_an_explanation_is_drawn_in_vectors(explanation, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"

    explanation().save(path)
    first = path.read_bytes()
    explanation().save(path)

    assert path.read_bytes() == first
    assert first.startswith(b"<?xml" if suffix == ".svg" else b"%PDF")
    if suffix == ".svg" and explanation is of_text:  # letters are letters, and cells are lines
        assert b">A<" in first or b"<text" in first


@pytest.mark.parametrize("draw", [Explanation.overlay, Explanation.sheet])
def test_heat_over_a_text_is_refused(draw) -> None:
    with pytest.raises(ConfigError, match="heat over a picture was asked of a text"):
        draw(of_text())


@pytest.mark.parametrize(
    ("explanation", "picks", "message"),
    [
        (of_caption, {"layer": 3}, "no layer 3"),
        (of_caption, {"head": 1}, "all layers together"),
        (of_text, {"layer": 3}, "no layer 3"),
        (of_text, {"layer": 1, "head": 6}, "no head 6"),
        (of_boxes, {"layer": 1, "head": 4}, "no head 4 in decoder layer 1, cross-attention"),
    ],
)
def test_picks_that_do_not_exist_are_refused(explanation, picks: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        explanation().still(**picks)
