"""Plots as files: the formats, and names that are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.core.errors import ConfigError
from vitrail.report.plots import PICTURES, check_picture_path, frame, pixel_figure, to_picture, white_figure

MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.parametrize("suffix", PICTURES)
def test_a_plot_is_the_same_file_at_every_call(suffix: str) -> None:
    def draw() -> bytes:
        figure = white_figure(2, 2, "a plot")
        axes = figure.add_subplot()
        frame(axes, "x", "y")
        axes.plot([1, 2, 4])
        return to_picture(figure, suffix.upper())

    assert draw().startswith(MAGIC[suffix])
    assert draw() == draw()


def test_a_picture_keeps_its_pixels_in_a_figure(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (130, 195, 3), dtype=np.uint8)

    (tmp_path / "a.png").write_bytes(to_picture(pixel_figure(Image.fromarray(pixels))))

    with Image.open(tmp_path / "a.png") as written:
        assert np.array_equal(np.asarray(written.convert("RGB")), pixels)


@pytest.mark.parametrize(
    ("name", "others", "message"),
    [
        ("a.gif", (".html", ".htm"), r"ends in \.html, \.png, \.svg or \.pdf\. Choose \.html for a page"),
        ("a", (".html", ".htm"), r"written to a\."),
        ("a.html", (), r"ends in \.png, \.svg or \.pdf\. Choose \.png for pixels"),
        ("a.txt", (".html", ".htm", ""), "without a suffix for a folder"),
    ],
)
def test_other_names_are_refused(name: str, others: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_picture_path(Path(name), others=others)

    for good in ("a.PNG", "a.svg", "a.pdf", *(f"a{other}" for other in others)):
        check_picture_path(Path(good), others=others)
