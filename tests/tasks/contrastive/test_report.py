"""The page of a run of images and texts."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from vitrail.tasks.contrastive.report import Found, RetrievalReportInputs, write_retrieval_report
from vitrail.train.evaluate import Report

SCORES = {
    "mean_recall": 0.4321,
    **{f"{way}_r{depth}": depth / 20 for way in ("image_to_text", "text_to_image") for depth in (1, 5, 10)},
}


def write(path: Path, *found: Found) -> str:
    report = Report(signature={"data": "x@1"}, scores=SCORES, tables={}, class_names=())
    inputs = RetrievalReportInputs(title="clip on x", report=report, command="vitrail train x", found=found)
    write_retrieval_report(path, inputs)
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
