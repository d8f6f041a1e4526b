from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from making.image_folders import noise
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.interpret.viewer.maps import Heat
from vitrail.report.sections import RunRecord
from vitrail.tasks.classification.report import ExplainedImage, write_report
from vitrail.tasks.classification.scores import classification_tables, headline_scores
from vitrail.train.evaluate import Report

EVIL = '<script>alert("1")</script>'
VOID = {"meta", "img", "br", "input", "link"}


class Page(HTMLParser):
    """What a browser would see: tags in order, texts, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def explained(name: str, predicted: str, share: float, heat: Heat | None) -> ExplainedImage:
    picture = Image.new("RGB", (14, 10), (10, 20, 30))
    shown = Explanation(name=name, title="", picture=picture, scores=((predicted, share),))
    return ExplainedImage(shown, heat, "class 1")


EXPLAINED = explained(f"{EVIL}.png", EVIL, 0.987, Heat(torch.eye(2) * 2, "layer 1, attention"))


def toy_record(tmp_path: Path, classes: int = 3, **changes: object) -> RunRecord:
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(classes * 4) % classes
    probabilities = (
        torch.randn(classes * 4, classes, generator=generator) + torch.eye(classes)[labels]
    ).softmax(-1)
    tables = classification_tables(probabilities, labels, torch.arange(classes * 4))
    report = Report(
        signature={"data": "toys@1a2b", "split": "test"},
        scores=headline_scores(tables, probabilities, labels),
        tables=tables.model_dump(mode="json"),
        class_names=(EVIL, *(f"class {label}" for label in range(1, classes))),
    )
    metrics = tmp_path / "metrics.jsonl"
    lines = [{"step": step, "loss": 2 / step, "rate": 1 / step} for step in range(1, 6)]
    lines += [{"step": 5, "scores": {"accuracy": 0.5, "nll": 0.7}}]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 6, "lo')
    settings: dict[str, object] = {
        "title": f"vit_nano on {EVIL}",
        "report": report,
        "command": "vitrail train 'a&b/' --budget 10m",
        "choices": [("model", "vit_nano", "few images")],
        "verdict_lines": [f"{EVIL}: usable"],
        "metrics_path": metrics,
        "environment": {"packages": {"torch": "2.13"}},
        "experiment": {"train": {"steps": 5}},
    }
    return RunRecord(**{**settings, **changes})  # type: ignore[arg-type]


def write(
    folder: Path,
    errors: Sequence[ExplainedImage] = (EXPLAINED,),
    examples: Sequence[ExplainedImage] = (EXPLAINED,),
    **changes: Any,
) -> str:
    write_report(folder / "report.html", toy_record(folder, **changes), errors, examples)
    return (folder / "report.html").read_text()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("report"))


def test_pictures_without_overlays_say_why(tmp_path: Path) -> None:
    picture = explained("a.png", "class 1", 0.9, None)
    page = Page(write(tmp_path, (), [picture]))
    assert "it has no attention that would show what it looked at" in page.text
    assert "Typical images of each class" in page.text
    assert [attrs["alt"] for tag, attrs in page.tags if tag == "img" and attrs["alt"] == "a.png"] == ["a.png"]
    assert "attention over a.png" not in str(page.tags)


def test_the_images_of_a_page_share_one_scale(tmp_path: Path) -> None:
    weak, strong = (
        explained(name, EVIL, 0.987, Heat(torch.eye(2) * times, ""))
        for name, times in (("weak", 2), ("strong", 9))
    )

    def drawn(*examples: ExplainedImage) -> str:
        page = Page(write(tmp_path, (), examples))
        (over,) = [dict(each)["src"] for _, each in page.tags if each.get("alt") == "attention over weak"]
        return over

    assert drawn(weak) != drawn(weak, strong)
    assert "of all images 9 times even attention" in Page(write(tmp_path, [strong], [weak])).text


def test_page_shows_every_part(written: str, tmp_path: Path) -> None:
    report = toy_record(tmp_path).report
    page = Page(written)
    assert page.open == []
    for part in (
        f"{report.scores['accuracy']:.2%}",
        "data:toys@1a2b|split:test",
        "98.7%",
        "few images",
        "vitrail train 'a&b/' --budget 10m",
        f"{EVIL}: usable",
        '"steps": 5',
        "Most confident errors",
        "Calibration",
        "learning rate / peak",
    ):
        assert part in page.text, part
    body = written[written.index('class="scroll confusion"') :]
    counts = [part.split(">")[1].split("<")[0] for part in body[: body.index("</table>")].split("<td")[1:]]
    assert [int(count) for count in counts] == [count for row in report.tables["confusion"] for count in row]


def test_page_is_one_file_without_markup_of_users_and_names_its_pictures(written: str) -> None:
    page = Page(written)
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.text.count(EVIL) >= 5
    targets = [
        value or "" for _, attrs in page.tags for name, value in attrs.items() if name in ("src", "href")
    ]
    assert targets
    assert all(target.startswith("data:image/") for target in targets)
    assert "@import" not in written
    assert all(attrs.get("alt") for tag, attrs in page.tags if tag == "img")
    plots = [attrs for tag, attrs in page.tags if tag == "svg"]
    assert len(plots) == 4
    assert all(attrs.get("aria-label") for attrs in plots)
    names = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(names) == len(set(names))


def test_many_classes_get_a_plot_instead_of_a_table(tmp_path: Path) -> None:
    page = write(tmp_path, classes=23)
    assert 'class="scroll confusion"' not in page
    assert 'aria-label="confusion matrix' in page
    assert "top-5 accuracy" in page


def test_empty_parts_are_left_out(tmp_path: Path) -> None:
    nothing = {"choices": (), "verdict_lines": (), "metrics_path": None, "environment": {}}
    page = Page(write(tmp_path, (), (), **nothing)).text
    for title in ("Most confident errors", "What it looks at", "Choices", "Training", "Environment"):
        assert title not in page


def test_a_page_is_repeated_exactly_and_stays_when_a_later_write_fails(written: str, tmp_path: Path) -> None:
    assert write(tmp_path) == written
    with pytest.raises(FileNotFoundError):
        write(tmp_path, metrics_path=tmp_path / "missing.jsonl")
    assert (tmp_path / "report.html").read_text() == written


def test_size_is_bounded_for_ten_classes_of_photographs(tmp_path: Path) -> None:
    photograph = EXPLAINED._replace(shown=replace(EXPLAINED.shown, picture=noise((224, 224))))
    write(tmp_path, [photograph] * 16, [photograph] * 30, classes=10)
    assert (tmp_path / "report.html").stat().st_size < 2_000_000
