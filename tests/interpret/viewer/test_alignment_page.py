from __future__ import annotations

import base64
import io
import json
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.interpret.viewer import alignment_page
from vitrail.interpret.viewer.alignment_page import AlignedLayer, AlignedText, Side, write_alignment_page
from vitrail.interpret.viewer.alignment_plot import Panel, alignment_png, alignment_svg

EVIL = "</script><!--<script>alert(1)"
SOURCE, WRITTEN = ("A", "dog", EVIL, "</s>"), ("Ein", "Hund", "</s>")


def toy_layer(name: str, side: Side, heads: int, seed: int) -> AlignedLayer:
    rows = len(SOURCE) if side == "source" else len(WRITTEN)
    columns = len(WRITTEN) if side == "target" else len(SOURCE)
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(heads, rows, columns, generator=generator).softmax(-1)
    return AlignedLayer(name=name, side=side, weights=weights)


def toy_text(source: str = f"A dog {EVIL}") -> AlignedText:
    return AlignedText(
        source=source,
        target="Ein Hund",
        source_pieces=SOURCE,
        written_pieces=WRITTEN,
        read_pieces=("<s>", *WRITTEN[:-1]),
        layers=[
            toy_layer("encoder.0", "source", 3, 0),
            toy_layer("decoder.0", "target", 2, 1),
            toy_layer("decoder.0.cross", "cross", 5, 2),
        ],
        first_shown=2,
        note="the sharpest",
    )


def data_of(path: Path) -> dict:
    text = path.read_text()
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


def decode(text: str) -> np.ndarray:
    roots = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8)
    return (roots / 255.0) ** 2


def test_the_page_holds_every_weight(tmp_path: Path) -> None:
    text = toy_text()

    write_alignment_page(tmp_path / "out.html", [text])

    stored = data_of(tmp_path / "out.html")["texts"][0]
    for layer, given in zip(stored["layers"], text.layers, strict=True):
        weights = given.weights.numpy()
        assert (layer["name"], layer["side"], layer["numHeads"]) == (given.name, given.side, len(weights))
        # Half a step of the root, 1 / 510, is at most so much of the weight.
        np.testing.assert_allclose(decode(layer["heads"]), weights.ravel(), atol=0.0041)
        np.testing.assert_allclose(decode(layer["mean"]), weights.mean(0).ravel(), atol=0.0041)
    assert stored["pieces"] == {
        "source": list(SOURCE),
        "written": list(WRITTEN),
        "read": ["<s>", *WRITTEN[:-1]],
    }
    assert (stored["firstShown"], stored["note"]) == (2, "the sharpest")


def test_small_weights_keep_their_size(tmp_path: Path) -> None:
    weights = torch.tensor([[[0.004, 0.001, 0.995, 0.0]] * 3])
    layer = AlignedLayer(name="a", side="cross", weights=weights)
    text = AlignedText(
        source="x",
        target="y",
        source_pieces=SOURCE,
        written_pieces=WRITTEN,
        read_pieces=WRITTEN,
        layers=[layer],
        first_shown=0,
    )

    write_alignment_page(tmp_path / "out.html", [text])

    stored = decode(data_of(tmp_path / "out.html")["texts"][0]["layers"][0]["mean"])
    np.testing.assert_allclose(stored[:4], [0.004, 0.001, 0.995, 0.0], rtol=0.07)


def test_texts_cannot_end_the_script_that_holds_them(tmp_path: Path) -> None:
    write_alignment_page(tmp_path / "out.html", [toy_text()], title=EVIL)

    text = (tmp_path / "out.html").read_text()
    assert data_of(tmp_path / "out.html")["texts"][0]["source"] == f"A dog {EVIL}"
    assert text.count("<script") == text.count("</script>") == 2
    assert "<!--" not in text


def test_single_heads_are_left_out_where_they_are_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alignment_page, "MAX_SENTENCE_BYTES", 3)

    write_alignment_page(tmp_path / "out.html", [toy_text()])

    layers = data_of(tmp_path / "out.html")["texts"][0]["layers"]
    assert [(layer["numHeads"], layer["heads"]) for layer in layers] == [(0, None)] * 3
    assert [decode(layer["mean"]).size for layer in layers] == [16, 9, 12]


def test_the_page_needs_no_other_file_and_no_script_to_show_something(tmp_path: Path) -> None:
    write_alignment_page(tmp_path / "out.html", [toy_text("one"), toy_text("two")])

    text = (tmp_path / "out.html").read_text()
    targets = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert all(target.startswith(("data:image/", "#")) for target in targets)
    still = text[text.index("<noscript>") : text.index("</noscript>")]
    assert still.count("<svg") == 2
    assert "Hund" in still


def test_parts_of_the_stills_have_names_of_their_own(tmp_path: Path) -> None:
    write_alignment_page(tmp_path / "out.html", [toy_text("one"), toy_text("two")])

    names = re.findall(r'\bid="([^"]*)"', (tmp_path / "out.html").read_text())
    assert len(names) == len(set(names))


def toy_panel(rows: int, columns: int, title: str = "") -> Panel:
    weights = torch.rand(rows, columns, generator=torch.Generator().manual_seed(3)).softmax(-1)
    return Panel(title, weights, [f"r{i}" for i in range(rows)], [f"c{i}" for i in range(columns)])


def size_of(png: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(png)) as picture:
        return picture.size


def test_a_picture_grows_with_the_sentence_and_the_layers() -> None:
    small, wide = size_of(alignment_png([toy_panel(3, 4)])), size_of(alignment_png([toy_panel(3, 40)]))
    four = size_of(alignment_png([toy_panel(3, 4, f"layer {place}") for place in range(4)]))

    assert wide[0] > small[0] + 36 * 20
    assert wide[1] < small[1] + 40
    assert four[0] > 2.5 * small[0]
    assert four[1] > 1.8 * small[1]


def test_the_last_row_of_panels_may_have_gaps() -> None:
    with Image.open(io.BytesIO(alignment_png([toy_panel(3, 4)] * 4))) as picture:
        width, height = picture.size
        gap = picture.convert("L").crop((width * 2 // 5, height * 3 // 5, width, height))

    assert gap.getextrema() == (255, 255)


def test_cells_are_as_dark_as_their_root() -> None:
    weights = torch.zeros(1, 30)
    weights[0, ::3], weights[0, 1::3] = 1.0, 0.25
    panel = Panel("", weights, ["r"], ["c"] * 30)

    with Image.open(io.BytesIO(alignment_png([panel]))) as picture:
        colours = picture.convert("RGB").getcolors(10_000)

    common = {colour for _, colour in sorted(colours, reverse=True)[:3]}
    full, half = (0, 114, 178), (127, 184, 216)  # the colour, and half-way from it to white
    for expected in (full, half, (255, 255, 255)):
        assert any(max(abs(a - b) for a, b in zip(colour, expected, strict=True)) <= 2 for colour in common)


def test_any_piece_can_stand_on_an_axis() -> None:
    pieces = ["$x$", "a_b^c", "\u72d7", "\u0627\u0644", EVIL, "w" * 60]
    panel = Panel("$title$", torch.full((6, 6), 1 / 6), pieces, pieces)

    svg = alignment_svg("any", panel)

    assert size_of(alignment_png([panel]))[0] > 0
    assert "$x$" in svg
    assert EVIL not in svg
    assert "w" * 17 not in svg
