"""The perturbation test of explanations, its page, and the curve of merging tokens."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from making.saved_vit import save_vit
from making.small_models import RESNET, SWIN, VIT
from vitrail.cli import main
from vitrail.core.errors import ConfigError, DataError
from vitrail.data.preprocessing import Preprocessing
from vitrail.interpret.perturbation import Faithfulness
from vitrail.models import build, model_settings
from vitrail.models.checkpoint import LoadedModel
from vitrail.studies.faithfulness import (
    faithfulness,
    faithfulness_table,
    measure_faithfulness,
    write_faithfulness,
)
from vitrail.tasks.classification.predictor import Predictor
from vitrail.tasks.evaluating import evaluate


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_vit(tmp_path / "model")


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


CURVE = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "token_merging.py"))


def test_the_curve_begins_with_the_model_itself(saved: Path, image_folder: Path) -> None:
    points = CURVE["token_merging_curve"](
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
    assert re.search(r"<li>Class relevance ranks the patches best: deletion score 0\.\d+, 0\.\d+ below", page)
    _, rows = faithfulness_table(found)
    assert [row[0] for row in rows] == ["class relevance", "attention", "random order"]
    for row in rows:
        assert all(cell in page for cell in row if cell)


def test_a_method_is_not_held_against_itself(found):
    rows = {row[0]: row for row in faithfulness_table(found)[1]}
    assert rows["random order"][2] == ""
    assert rows["attention"][3] == ""
    assert rows["class relevance"][3].startswith("-0.")


def test_a_picture_is_written_for_its_suffix_and_other_names_are_refused(found, tmp_path):
    write_faithfulness(tmp_path / "out.png", found, title="a")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    write_faithfulness(tmp_path / "out.pdf", found, title="a")
    assert (tmp_path / "out.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(ConfigError, match=r"ends in \.html, \.png, \.svg or \.pdf"):
        write_faithfulness(tmp_path / "out.txt", found, title="a")


def test_the_curve_is_a_picture():
    curves = {"constant": [(1.0, 0.9, 0), (1.3, 0.88, 4)], "decreasing": [(1.0, 0.9, 0), (1.4, 0.85, 4)]}
    png = CURVE["merging_png"](curves, title="a run")
    assert png.startswith(b"\x89PNG")
    assert png != CURVE["merging_png"]({"constant": curves["constant"]}, title="a run")


NAMES = ["a", "b", "c", "d", "e"]


def _predictor(name: str, changes: dict) -> Predictor:
    torch.manual_seed(3)
    preprocessing = Preprocessing(image_size=(16, 24)).model_dump(mode="json")
    return Predictor(
        LoadedModel(build(name, **changes), model_settings(name, **changes), preprocessing, NAMES, {})
    )


def _images(count: int) -> list[torch.Tensor]:
    torch.manual_seed(8)
    return list(torch.randint(0, 256, (count, 3, 16, 24), dtype=torch.uint8))


@pytest.mark.parametrize(
    ("name", "changes", "methods", "grid"),
    [
        ("vit_b16", VIT, ["relevance", "rollout", "attention", "gradient_input", "random"], (4, 6)),
        ("swin_t", SWIN, ["relevance", "attention", "gradient_input", "random"], (8, 12)),
        ("resnet18", RESNET, ["gradient_input", "random"], (8, 12)),
    ],
)
def test_the_methods_that_suit_a_model_are_measured_on_the_same_patches(name, changes, methods, grid):
    done = []
    found = measure_faithfulness(_predictor(name, changes), _images(2), num_steps=4, on_image=done.append)

    assert list(found.deletion) == list(found.insertion) == methods
    assert found.grid == grid
    assert done == [1, 2]
    for curves in (*found.deletion.values(), *found.insertion.values()):
        assert curves.shape == (2, 5)
        assert ((curves >= 0) & (curves <= 1)).all()
    # Nothing covered is the image and all covered the filling, whatever the order.
    for method in methods:
        assert found.deletion[method][:, 0] == pytest.approx(found.insertion[method][:, -1], abs=1e-5)
        assert found.deletion[method][:, -1] == pytest.approx(found.insertion[method][:, 0], abs=1e-5)
        assert found.deletion[method][:, 0] == pytest.approx(found.deletion["random"][:, 0], abs=1e-5)


def test_chosen_methods_are_measured_once_beside_a_random_order():
    names = ["occlusion", "gradient_input", "occlusion"]
    found = measure_faithfulness(
        _predictor("vit_b16", VIT), _images(2), methods=names, num_steps=2, filling="mean"
    )
    assert list(found.deletion) == ["occlusion", "gradient_input", "random"]
    assert {curves.shape for curves in found.deletion.values()} == {(2, 3)}


def test_covering_what_occlusion_names_hurts_more_than_covering_at_random():
    """Even without training: occlusion measures what deletion then does, one patch at a time."""
    found = measure_faithfulness(
        _predictor("resnet18", RESNET), _images(4), methods=["occlusion"], num_steps=8, filling="mean"
    )
    scores = {score.method: score for score in found.scores()}
    assert scores["occlusion"].deletion_against["random"].mean < 0


@pytest.mark.parametrize(
    ("count", "options", "error", "message"),
    [
        (1, {"methods": ["relevnce"]}, ConfigError, "Did you mean 'relevance'"),
        (1, {"methods": []}, ConfigError, "no method named"),
        (1, {"filling": "noise"}, ConfigError, "no filling named .noise."),
        (1, {"methods": ["rollout"]}, ConfigError, "do not attend over one set of tokens"),
        (0, {}, DataError, "no image was given"),
    ],
)
def test_bad_requests_are_refused(count, options, error, message):
    with pytest.raises(error, match=message):
        measure_faithfulness(_predictor("swin_t", SWIN), _images(count), **options)
