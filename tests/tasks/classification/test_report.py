from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from PIL import Image

from vitrail.tasks.classification.report import ExplainedImage, ReportInputs, write_report
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


def toy_inputs(tmp_path: Path, classes: int = 3, **changes: object) -> ReportInputs:
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(classes * 4) % classes
    probabilities = (
        torch.randn(classes * 4, classes, generator=generator) + torch.eye(classes)[labels]
    ).softmax(-1)
    tables = classification_tables(probabilities, labels, torch.arange(classes * 4))
    report = Report(
        signature={"data": "toys@1a2b", "split": "test"},
        scores=headline_scores(probabilities, labels),
        tables=tables.model_dump(mode="json"),
        class_names=(EVIL, *(f"class {label}" for label in range(1, classes))),
    )
    metrics = tmp_path / "metrics.jsonl"
    lines = [{"step": step, "loss": 2 / step, "rate": 1 / step} for step in range(1, 6)]
    lines += [{"step": 5, "scores": {"accuracy": 0.5, "nll": 0.7}}]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 6, "lo')
    picture = Image.new("RGB", (14, 10), (10, 20, 30))
    explained = ExplainedImage(picture, picture, f"{EVIL}.png", "class 1", EVIL, 0.987)
    settings: dict[str, object] = {
        "title": f"vit_nano on {EVIL}",
        "report": report,
        "command": "vitrail train 'a&b/' --budget 10m",
        "choices": [("model", "vit_nano", "few images")],
        "verdict_lines": [f"{EVIL}: usable"],
        "metrics_path": metrics,
        "errors": [explained],
        "examples": [explained],
        "environment": {"packages": {"torch": "2.13"}},
        "experiment": {"train": {"steps": 5}},
    }
    return ReportInputs(**{**settings, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[ReportInputs, str]:
    """The inputs of a report, and its page."""
    folder = tmp_path_factory.mktemp("report")
    inputs = toy_inputs(folder)
    write_report(folder / "report.html", inputs)
    return inputs, (folder / "report.html").read_text()


def write(tmp_path: Path, **changes: object) -> str:
    write_report(tmp_path / "report.html", toy_inputs(tmp_path, **changes))
    return (tmp_path / "report.html").read_text()


def test_pictures_without_overlays_say_why(tmp_path: Path) -> None:
    picture = ExplainedImage(Image.new("RGB", (14, 10)), None, "a.png", "class 1", "class 1", 0.9)
    page = Page(write(tmp_path, errors=[], examples=[picture]))
    assert "it has no attention that would show what it looked at" in page.text
    assert "Typical images of each class" in page.text
    assert [attrs["alt"] for tag, attrs in page.tags if tag == "img" and attrs["alt"] == "a.png"] == ["a.png"]
    assert "attention over a.png" not in str(page.tags)


def test_page_shows_every_part(written: tuple[ReportInputs, str]) -> None:
    inputs, text = written
    page = Page(text)
    assert page.open == []
    for part in (
        f"{inputs.report.scores['accuracy']:.2%}",
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


def test_page_is_one_file_without_markup_of_users(written: tuple[ReportInputs, str]) -> None:
    page = Page(written[1])
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.text.count(EVIL) >= 5
    targets = [
        value or "" for _, attrs in page.tags for name, value in attrs.items() if name in ("src", "href")
    ]
    assert targets
    assert all(target.startswith("data:image/") for target in targets)
    assert "@import" not in written[1]


def test_every_picture_has_a_text_and_every_part_a_name(written: tuple[ReportInputs, str]) -> None:
    page = Page(written[1])
    assert all(attrs.get("alt") for tag, attrs in page.tags if tag == "img")
    plots = [attrs for tag, attrs in page.tags if tag == "svg"]
    assert len(plots) == 4
    assert all(attrs.get("aria-label") for attrs in plots)
    names = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(names) == len(set(names))


def test_confusion_table_has_the_counts(written: tuple[ReportInputs, str]) -> None:
    inputs, page = written
    body = page[page.index('class="scroll confusion"') :]
    cells = [part.split(">")[1].split("<")[0] for part in body[: body.index("</table>")].split("<td")[1:]]
    assert [int(cell) for cell in cells] == [
        count for row in inputs.report.tables["confusion"] for count in row
    ]


def test_many_classes_get_a_plot_instead_of_a_table(tmp_path: Path) -> None:
    page = write(tmp_path, classes=23)
    assert 'class="scroll confusion"' not in page
    assert 'aria-label="confusion matrix' in page
    assert "top-5 accuracy" in page


def test_empty_parts_are_left_out(tmp_path: Path) -> None:
    nothing = {"errors": (), "examples": (), "choices": (), "verdict_lines": (), "metrics_path": None}
    page = Page(write(tmp_path, **nothing, environment={})).text
    for title in ("Most confident errors", "What it looks at", "Choices", "Training", "Environment"):
        assert title not in page


def test_the_same_inputs_give_the_same_page(written: tuple[ReportInputs, str], tmp_path: Path) -> None:
    assert write(tmp_path) == written[1]


def test_a_failed_write_leaves_the_former_page(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("former")
    with pytest.raises(FileNotFoundError):
        write(tmp_path, metrics_path=tmp_path / "missing.jsonl")
    assert (tmp_path / "report.html").read_text() == "former"


def test_size_is_bounded_for_ten_classes_of_photographs(tmp_path: Path) -> None:
    noise = torch.randint(256, (224, 224, 3), dtype=torch.uint8).numpy()
    explained = ExplainedImage(
        Image.fromarray(noise), Image.fromarray(noise), "n.png", "class 1", "class 2", 0.5
    )
    write(tmp_path, classes=10, errors=[explained] * 16, examples=[explained] * 30)
    assert (tmp_path / "report.html").stat().st_size < 2_000_000
