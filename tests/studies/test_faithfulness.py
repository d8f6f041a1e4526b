"""Explanations of a saved model tested on a data set, and the curve of merging its tokens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.cli import main
from vitrail.core.errors import ConfigError
from vitrail.data.preprocessing import Preprocessing
from vitrail.interpret.perturbation import Faithfulness
from vitrail.models import build, model_settings
from vitrail.models.checkpoint import save_model
from vitrail.studies.faithfulness import faithfulness, table_rows, write_faithfulness
from vitrail.studies.merging import merging_png, token_merging_curve
from vitrail.tasks.evaluating import evaluate

CHANGES = {
    "image_size": (12, 8),
    "patch_size": 2,
    "stem": "patch",
    "width": 12,
    "depth": 2,
    "num_heads": 2,
    "num_classes": 3,
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    save_model(
        tmp_path / "model",
        build("vit_nano", **CHANGES),
        model_settings=model_settings("vit_nano", **CHANGES),
        preprocessing=Preprocessing(image_size=(12, 8)).model_dump(mode="json"),
        class_names=["blue", "green", "red"],
        about={},
    )
    return tmp_path / "model"


def test_images_are_drawn_by_seed_from_a_split(saved: Path, image_folder: Path) -> None:
    found, again, other = (
        faithfulness(saved, image_folder, split="train", num_images=2, num_steps=3, seed=seed)
        for seed in (0, 0, 1)
    )
    assert found.num_images == 2
    assert found.grid == (6, 4)
    assert found.to_json() == again.to_json()
    assert found.to_json() != other.to_json()
    with pytest.raises(ConfigError, match="0 images"):
        faithfulness(saved, image_folder, num_images=0)


def test_the_command_writes_a_page_and_a_table_of_80_columns(
    saved: Path, image_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    arguments = ["faithfulness", str(saved), str(image_folder), "--split", "train", "--images", "2"]

    assert main([*arguments, "--steps", "3", "-o", str(page)]) == 0
    shown = capsys.readouterr().out
    assert main([*arguments, "--steps", "3", "-o", str(page), "--methods", "occlusion", "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)

    assert "random order" in shown
    assert max(len(line) for line in shown.splitlines() if line != str(page)) <= 80
    assert page.read_text().count("<svg") == 2
    assert set(tree["methods"]) == {"occlusion", "random"}
    assert main([*arguments, "-o", str(tmp_path / "page.txt")]) == 2


def test_the_curve_begins_with_the_model_itself(saved: Path, image_folder: Path) -> None:
    points = token_merging_curve(
        saved, image_folder, counts=(4, 8), schedules=("constant", "decreasing"), split="train", rounds=2
    )
    assert [(point.num_merged, point.schedule) for point in points] == [
        (0, "constant"),
        (4, "constant"),
        (8, "constant"),
        (4, "decreasing"),
        (8, "decreasing"),
    ]
    assert points[0].speed == 1
    assert points[0].accuracy == evaluate(saved, image_folder, split="train").scores["accuracy"]
    assert all(point.images_per_s > 0 for point in points)


def test_a_score_with_merging_says_so(saved: Path, image_folder: Path) -> None:
    merged = evaluate(saved, image_folder, split="train", merge_tokens=3)
    assert merged.signature["merging"] == "3 tokens a block"
    assert "merging" not in evaluate(saved, image_folder, split="train").signature


@pytest.fixture
def found() -> Faithfulness:
    noise = np.random.default_rng(0).random((5, 3)) / 50
    fast, slow = np.array([[0.9, 0.2, 0.1]]) + noise, np.array([[0.9, 0.8, 0.1]]) + noise
    return Faithfulness(
        deletion={"relevance": fast, "attention": slow, "random": slow + 0.01},
        insertion={"relevance": slow, "attention": fast, "random": fast},
        shares=[0.0, 0.5, 1.0],
        grid=(1, 2),
        filling="blur",
    )


def test_the_page_has_both_plots_and_a_row_for_each_method(found, tmp_path):
    write_faithfulness(tmp_path / "out.html", found, title="Test of <runs>")
    page = (tmp_path / "out.html").read_text()

    assert page.count("<svg") == 2
    assert "Test of &lt;runs&gt;" in page
    assert "5 images, 1 x 2 patches" in page
    assert [row[0] for row in table_rows(found)] == ["class relevance", "attention", "random order"]
    for row in table_rows(found):
        assert all(cell in page for cell in row if cell)


def test_a_method_is_not_held_against_itself(found):
    rows = {row[0]: row for row in table_rows(found)}
    assert rows["random order"][2] == ""
    assert rows["attention"][3] == ""
    assert rows["class relevance"][3].startswith("-0.")


def test_a_picture_is_written_for_its_suffix_and_other_names_are_refused(found, tmp_path):
    write_faithfulness(tmp_path / "out.png", found, title="a")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match=r"ends in \.html or \.png"):
        write_faithfulness(tmp_path / "out.txt", found, title="a")


def test_the_curve_is_a_picture():
    curves = {"constant": [(1.0, 0.9, 0), (1.3, 0.88, 4)], "decreasing": [(1.0, 0.9, 0), (1.4, 0.85, 4)]}
    png = merging_png(curves, title="a run")
    assert png.startswith(b"\x89PNG")
    assert png != merging_png({"constant": curves["constant"]}, title="a run")
