"""What a model has learned as page, picture and folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.core.errors import ConfigError
from vitrail.engines.export.comparison import spread
from vitrail.interpret.heads import HeadGroup, LayerHeads
from vitrail.interpret.learned import BiasTable, Filters, PositionTable
from vitrail.report.tiles import as_colours, set_in_rows
from vitrail.studies.inspecting import HeadFindings, Learned
from vitrail.studies.learned_page import layer_table, list_panels, measured_on, write_learned


@pytest.fixture
def found() -> Learned:
    names = ("encoder.0.mixer", "encoder.1.mixer", "decoder.0.cross_attention")
    heads = HeadFindings(
        layers=(
            LayerHeads(names[0], "self", (3.0, 5.0), (0.5, 1.5), 2.0),
            LayerHeads(names[1], "self", (4.0, 4.0), (1.0, 1.0), 2.0),
            LayerHeads(names[2], "cross", None, (0.0,), 0.0),
        ),
        groups=(
            HeadGroup(names[:2], (2, 2), torch.eye(4)),
            HeadGroup(names[2:], (2,), torch.full((2, 2), 0.5)),
        ),
        num_samples=7,
        origin="validation images of <photos>",
        num_unreadable=2,
        image_size=(24, 40),
    )
    return Learned(
        model="vit_<tiny>",
        filters=Filters("stem", torch.randn(9, 3, 2, 2), True),
        positions=(PositionTable("positions", torch.eye(6), (2, 3)),),
        biases=(
            BiasTable("blocks.0", torch.randn(2, 3, 5)),
            BiasTable("blocks.1", torch.randn(4, 3, 5)),
        ),
        heads=heads,
        left_out={"Moon": "there is <none>", "Stars": "there is <none>"},
    )


def test_the_page_has_every_panel_the_layers_and_what_is_left_out(found: Learned, tmp_path: Path) -> None:
    (written,) = write_learned(tmp_path / "out.html", found, title="About <it>")
    page = written.read_text()

    assert page.count("<svg") == sum(len(group.panels) for group in list_panels(found)) == 7
    for text in ("About &lt;it&gt;", "vit_&lt;tiny&gt;", "validation images of &lt;photos&gt;", "100% of"):
        assert text in page
    assert "<li>0 of 4 heads attend nearly evenly (entropy above 0.97 of 1).</li>" in page
    assert "attention is 4.0 pixels in the first layer, 4.0 in the last." in page
    assert "Moon, Stars" in page
    assert page.count("there is &lt;none&gt;") == 1
    assert "src=http" not in page
    for row in layer_table(found.heads)[1]:  # type: ignore[arg-type]
        assert all(f">{cell}</td>" in page for cell in row)


def test_the_table_names_layers_in_words_and_gives_ranges(found: Learned) -> None:
    assert layer_table(found.heads)[1] == [
        ["encoder layer 1, attention", "2", "4.0 (3.0 to 5.0)", "0.50 (0.25 to 0.75)", "1.00 (0.50 to 1.50)"],
        ["encoder layer 2, attention", "2", "4.0 (4.0 to 4.0)", "0.50 (0.50 to 0.50)", "1.00 (1.00 to 1.00)"],
        ["decoder layer 1, cross-attention", "1", "", "", "0.00"],
    ]
    assert measured_on(found.heads) == (
        "Heads are measured on 7 of the validation images of <photos>, 40 x 24 pixels; 2 that could not be "
        "read were passed over."
    )


def test_columns_that_are_empty_in_all_layers_are_left_out(found: Learned) -> None:
    words = replace(found.heads, layers=found.heads.layers[2:])

    assert layer_table(found.heads)[0][2:] == ["distance, px", "entropy (1 = even)", "entropy, nats"]
    assert layer_table(words) == (
        ["layer", "heads", "entropy, nats"],
        [["decoder layer 1, cross-attention", "1", "0.00"]],
    )


def test_a_folder_holds_the_page_and_a_picture_of_each_panel(found: Learned, tmp_path: Path) -> None:
    written = write_learned(tmp_path / "folder", found, title="About")

    names = ["filters", "positions", "biases", "distance", "entropy", "similarity-1", "similarity-2"]
    assert [file.name for file in written] == ["learned.html", *(f"{name}.png" for name in names)]
    for file in written[1:]:
        with Image.open(file) as picture:
            assert min(picture.size) > 100


def test_one_picture_shows_the_first_of_each_kind_of_panel(found: Learned, tmp_path: Path) -> None:
    write_learned(tmp_path / "out.png", found, title="About")
    write_learned(tmp_path / "out.svg", found, title="About")
    assert b"<svg" in (tmp_path / "out.svg").read_bytes()

    with Image.open(tmp_path / "out.png") as picture:
        assert picture.width > 3 * 400
    only_filters = Learned(model="resnet", filters=found.filters, positions=(), biases=(), heads=None)
    write_learned(tmp_path / "out.png", only_filters, title="About")
    with Image.open(tmp_path / "out.png") as picture:
        assert picture.width < 3 * 400


def test_a_name_that_cannot_be_written_is_refused(found: Learned, tmp_path: Path) -> None:
    (tmp_path / "taken.html").mkdir()
    (tmp_path / "taken").write_text("")

    with pytest.raises(ConfigError, match=r"ends in \.html, \.png, \.svg or \.pdf"):
        write_learned(tmp_path / "out.gif", found, title="About")
    with pytest.raises(ConfigError, match="is a folder already"):
        write_learned(tmp_path / "taken.html", found, title="About")
    with pytest.raises(ConfigError, match="is a file already"):
        write_learned(tmp_path / "taken", found, title="About")


def test_summed_filters_are_drawn_grey_and_said_to_be(found: Learned) -> None:
    weights = torch.randn(9, 1, 2, 2)
    grey = replace(found, filters=Filters("stem", weights, True, are_summed=True))

    (group,) = (each for each in list_panels(grey) if each.key == "filters")

    assert "channels of a filter are added up" in group.note
    pixels = as_colours(weights.numpy())
    assert (pixels[..., :1] == pixels[..., :3]).all()


def test_the_zero_of_a_filter_is_grey_and_its_largest_value_is_black_or_white() -> None:
    kernels = np.zeros((2, 3, 1, 2))
    kernels[0, :, 0, 0], kernels[1, :, 0, 1] = 5.0, -0.1

    pixels = as_colours(kernels)

    assert pixels.shape == (2, 1, 2, 4)
    assert pixels[0, 0].tolist() == [[1.0] * 4, [0.5, 0.5, 0.5, 1.0]]
    assert pixels[1, 0].tolist() == [[0.5, 0.5, 0.5, 1.0], [0.0, 0.0, 0.0, 1.0]]


def test_tiles_stand_row_by_row_with_gaps_of_no_number() -> None:
    sheet = set_in_rows(np.arange(3.0).reshape(3, 1, 1), 2, gap=1)

    expected = [[0, np.nan, 1], [np.nan] * 3, [2, np.nan, np.nan]]
    np.testing.assert_array_equal(sheet, np.array(expected))


def test_places_of_a_long_side_are_spread_over_all_of_it() -> None:
    assert spread(3, 5) == [0, 1, 2]
    assert spread(56, 4) == [0, 18, 37, 55]
