"""Texts find their images and images their texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from making.colour_clip import COLOURS, load_colour_clip, write_colour_images
from vitrail.core.errors import ConfigError, DataError
from vitrail.report.sections import RunRecord
from vitrail.tasks.captioning.dataset import CaptionSplit
from vitrail.tasks.contrastive.predictor import ImageTextEncoder
from vitrail.tasks.contrastive.report import Found, find_examples, write_retrieval_report
from vitrail.tasks.contrastive.retrieval import retrieve
from vitrail.train.evaluate import Report


@pytest.fixture(scope="module")
def encoder() -> ImageTextEncoder:
    return ImageTextEncoder(load_colour_clip(), batch_size=2)


def test_each_text_finds_its_image_first(encoder: ImageTextEncoder, tmp_path: Path) -> None:
    files = write_colour_images(tmp_path)
    found = retrieve(encoder, files, ["a small green thing", "blue"], top=2)
    assert [result.matches[0].name for result in found.results] == [str(files[1]), str(files[2])]
    assert all(len(result.matches) == 2 for result in found.results)
    assert all(result.matches[0].cosine >= result.matches[1].cosine for result in found.results)
    assert json.loads(json.dumps(found.to_json()))["results"][1]["query"] == "blue"


def test_each_image_finds_its_text_and_bad_files_are_reported(
    encoder: ImageTextEncoder, tmp_path: Path
) -> None:
    files = write_colour_images(tmp_path)
    files[0].write_bytes(b"")
    found = retrieve(encoder, files, list(COLOURS), by_image=True, top=9)
    assert [(result.query, result.matches[0].name) for result in found.results] == [
        (str(files[1]), "green"),
        (str(files[2]), "blue"),
    ]
    assert [name for name, _ in found.errors] == [str(files[0])]
    assert len(found.results[0].matches) == 3


def test_no_text_and_no_image_are_refused(encoder: ImageTextEncoder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no text was given"):
        retrieve(encoder, write_colour_images(tmp_path), [])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no image"):
        retrieve(encoder, tmp_path / "empty", ["red"])


def test_examples_are_spread_and_say_which_image_is_their_own(tmp_path: Path) -> None:
    files = write_colour_images(tmp_path)
    files.append(tmp_path / "missing.png")
    captions = [[f"a photo of a {colour} thing " * 5] for colour in COLOURS]  # too long, and cut
    split = CaptionSplit(files, [*captions, ["red"]], [*COLOURS, "missing"])
    found = find_examples(load_colour_clip(), split, num_captions=3, num_images=2)
    assert [each.caption for each in found] == [texts[0] for texts in captions]
    assert [[is_own for _, is_own in each.images] for each in found] == [[True, False]] * 3
    assert found[0].images[0][0].size == (24, 16)


SCORES = {
    "mean_recall": 0.4321,
    **{f"{way}_r{depth}": depth / 20 for way in ("image_to_text", "text_to_image") for depth in (1, 5, 10)},
}


def write(path: Path, *found: Found) -> str:
    report = Report(signature={"data": "x@1"}, scores=SCORES, tables={}, class_names=())
    record = RunRecord(title="clip on x", report=report, command="vitrail train x")
    write_retrieval_report(path, record, found)
    return path.read_text(encoding="utf-8")


def test_scores_and_found_images_are_shown_and_text_is_escaped(tmp_path: Path) -> None:
    picture = Image.new("RGB", (8, 6), "red")
    page = write(tmp_path / "report.html", Found("a <b>dog</b>", ((picture, False), (picture, True))))
    assert "43.2%" in page
    assert "25.0%" in page
    assert "a &lt;b&gt;dog" in page
    assert page.count("<img") == 2
    assert page.count("class=own") == 1


def test_without_examples_the_page_has_no_section_of_them(tmp_path: Path) -> None:
    assert "Found by captions" not in write(tmp_path / "report.html")
