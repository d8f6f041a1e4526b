from __future__ import annotations

import base64
import io
import re

import pytest
from PIL import Image

from vitrail.report.comparison import (
    ComparedRun,
    Comparison,
    Figures,
    comparison_table,
    format_count,
    write_comparison,
)

FIGURES = Figures(
    accuracy=0.875,
    accuracy_lower=0.8,
    accuracy_upper=0.93,
    parameters=1_234_567,
    macs=45_600_000,
    samples_per_s=1234.4,
    peak_memory_mib=512.3,
    steps=70,
    training_s=3.5,
)


@pytest.fixture
def comparison() -> Comparison:
    runs = (
        ComparedRun(name="attention", folder="attention", figures=FIGURES),
        ComparedRun(name="fourier", error="the loss <b>became</b> NaN"),
        ComparedRun(name="pooling", folder="pooling-2", figures=FIGURES.with_changes({"accuracy": 0.9})),
        ComparedRun(name="mlp"),
    )
    return Comparison(
        kind="mixer", data="photos/", budget_s=90.0, seed=3, changes={"train.batch_size": 8}, runs=runs
    )


def test_the_table_begins_with_the_most_accurate(comparison):
    header, rows = comparison_table(comparison)
    assert header == ["mixer", "accuracy", "steps", "parameters", "MACs", "samples/s", "peak MiB"]
    assert rows[0] == ["pooling", "90.0%", "70", "1,234,567", "45.6 M", "1,234", "512"]
    assert rows[1][:2] == ["attention", "87.5%"]
    assert rows[2] == ["fourier", "failed", "-", "-", "-", "-", "-"]
    assert rows[3] == ["mlp", "-", "-", "-", "-", "-", "-"]


def test_memory_that_nobody_counted_is_a_dash(comparison):
    run = ComparedRun(name="mlp", figures=FIGURES.with_changes({"peak_memory_mib": None}))
    _, rows = comparison_table(comparison.model_copy(update={"runs": (run,)}))
    assert rows[0][-1] == "-"


def test_the_page_holds_picture_table_failures_and_links(comparison, tmp_path):
    path = tmp_path / "comparison.html"
    write_comparison(path, comparison)
    page = path.read_text(encoding="utf-8")

    encoded = re.search(r'src="data:image/png;base64,([^"]+)"', page)
    assert encoded is not None
    picture = Image.open(io.BytesIO(base64.b64decode(encoded[1])))
    assert picture.format == "PNG"
    assert picture.width > 1000
    assert "http" not in page
    assert "<td>pooling</td>" in page
    assert "the loss &lt;b&gt;became&lt;/b&gt; NaN" in page
    assert 'href="pooling-2/report.html"' in page
    assert "1m 30s, with seed 3, train.batch_size=8" in page


def test_a_page_without_a_finished_run_has_no_picture(comparison, tmp_path):
    write_comparison(tmp_path / "page.html", comparison.model_copy(update={"runs": comparison.runs[1:2]}))
    assert "<img" not in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("count", "text"),
    [(999, "999"), (1_000, "1.00 k"), (45_600_000, "45.6 M"), (987_654_321, "988 M"), (17.6e9, "17.6 G")],
)
def test_great_numbers_have_three_digits(count, text):
    assert format_count(count) == text


def test_runs_of_very_different_length_are_called_so(comparison, tmp_path):
    short = ComparedRun(name="mlp", folder="mlp", figures=FIGURES.with_changes({"steps": 2}))
    write_comparison(tmp_path / "a.html", comparison)
    write_comparison(
        tmp_path / "b.html", comparison.model_copy(update={"runs": (*comparison.runs[:3], short)})
    )

    assert "start-up and" not in (tmp_path / "a.html").read_text()
    assert "start-up and speed decide more than the architecture" in (tmp_path / "b.html").read_text()
