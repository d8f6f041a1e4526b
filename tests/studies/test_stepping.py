"""The steps of one head: they follow from each other, for images and sentences."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from making.small_models import SWIN, VIT
from making.small_translators import small_translator
from vitrail.cli import main
from vitrail.core.errors import ConfigError
from vitrail.data.preprocessing import Preprocessing
from vitrail.models import build, model_settings
from vitrail.models.checkpoint import LoadedModel
from vitrail.studies.stepping import explain_steps
from vitrail.tasks.explaining import ExplainOptions
from vitrail.tasks.registry import TASKS


def classifier(name: str, changes: dict) -> LoadedModel:
    torch.manual_seed(3)
    preprocessing = Preprocessing(image_size=(16, 24)).model_dump(mode="json")
    model = build(name, **changes).eval()
    for parameter in model.parameters():  # positions and biases begin at zero
        torch.nn.init.normal_(parameter, std=0.3)
    return LoadedModel(model, model_settings(name, **changes), preprocessing, list("abcde"), {})


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def steps_of(found: tuple) -> dict[str, np.ndarray]:
    return {each.name.split(",")[0].split(" by")[0]: each.values for each in found}


def check_steps(steps: dict[str, np.ndarray]) -> None:
    """Compute each step from those before it."""
    assert np.allclose(steps["scores"], steps["Q"] @ steps["K"].T, atol=1e-4)
    scaled = steps["scores"] / np.sqrt(steps["Q"].shape[1])
    assert np.allclose(steps["scaled"], scaled, atol=1e-4)
    scores = np.where(steps.get("mask", True), scaled + steps.get("bias", 0.0), -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    assert np.allclose(steps["softmax"], weights, atol=1e-4)
    assert np.allclose(steps["Z"], weights @ steps["V"], atol=1e-4)


@pytest.mark.parametrize(
    ("name", "changes", "num_tokens", "head", "where"),
    [
        ("vit_b16", VIT, 25, 1, "layer 1, attention, head 1"),
        ("swin_t", {**SWIN, "patch_size": 4}, 24, -1, "layer 1 (stage 1), attention"),
    ],
)
def test_the_steps_of_an_image_follow_from_each_other(
    name: str, changes: dict, num_tokens: int, head: int, where: str, photo: Path, tmp_path: Path
) -> None:
    loaded = classifier(name, changes)
    options = ExplainOptions(tmp_path / "steps.svg", layer=1, head=head)

    found = explain_steps(TASKS["classification"], loaded, str(photo), options, tokens=range(num_tokens))

    assert found.title.endswith(f": {where}")
    steps = steps_of(found.matrices)
    assert steps["X"].shape == (num_tokens, changes["width"])
    assert ("bias" in steps, "mask" in steps) == (name == "swin_t", name == "swin_t")
    check_steps(steps)
    assert b"<svg" in (tmp_path / "steps.svg").read_bytes()


def test_few_tokens_are_shown_with_their_places(photo: Path, tmp_path: Path) -> None:
    loaded, task = classifier("vit_b16", VIT), TASKS["classification"]
    options = ExplainOptions(tmp_path / "steps.pdf")

    by_default = explain_steps(task, loaded, str(photo), options).matrices
    chosen = explain_steps(task, loaded, str(photo), options, tokens=[0, 8]).matrices

    assert [*by_default[0].rows] == ["class", "0,4", "1,3", "2,1", "3,0", "3,5"]
    weights = next(each for each in chosen if each.name.startswith("softmax"))
    assert (weights.name, weights.rows, weights.columns) == (
        "softmax, 2 of 25 keys",
        ["class", "1,1"],
        ["class", "1,1"],
    )


@pytest.mark.parametrize(("part", "masked"), [("cross", False), ("source", False), ("target", True)])
def test_the_steps_of_a_sentence_follow_from_each_other(part: str, masked: bool, tmp_path: Path) -> None:
    options = ExplainOptions(tmp_path / "steps.png", target="ein hund", layer=1, head=2)

    found = explain_steps(TASKS["translation"], small_translator(), "a dog runs", options, part=part)

    steps = steps_of(found.matrices)
    check_steps(steps)
    assert ("X of the keys" in steps) == (part == "cross")
    if masked:
        assert np.array_equal(steps["mask"], np.tril(np.ones(steps["mask"].shape, dtype=bool)))


@pytest.mark.parametrize(
    ("changes", "tokens", "message"),
    [
        ({"output": Path("steps.html")}, None, r"ends in \.png, \.svg or \.pdf"),
        ({"layer": 3}, None, "no layer 3"),
        ({"head": 0}, None, "no head 0 in layer 2, attention. Expected 1, the first, to 3,"),
        ({}, [25], "no token 25"),
    ],
)
def test_what_does_not_exist_is_refused(
    changes: dict, tokens: list[int] | None, message: str, photo: Path, tmp_path: Path
) -> None:
    options = ExplainOptions(tmp_path / "steps.png")._replace(**changes)

    with pytest.raises(ConfigError, match=message):
        explain_steps(TASKS["classification"], classifier("vit_b16", VIT), str(photo), options, tokens=tokens)

    assert not (tmp_path / "steps.png").exists()


def test_the_command_prints_numbers(
    photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vitrail.engines.loading.load_any", lambda run: classifier("vit_b16", VIT))
    command = ["explain", "somewhere", str(photo), "--steps", "--layer", "1", "--head", "3"]

    assert main([*command, "--tokens", "0,3", "--json"]) == 0
    matrices = {each["name"]: each for each in json.loads(capsys.readouterr().out)["matrices"]}
    assert len(matrices["Q"]["values"]) == 2

    assert main(command) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == "steps.png"
    assert max(map(len, shown)) <= 80

    for further in (["--part", "cross"], ["--tokens", "x"], ["-o", "a.gif"], [str(photo)]):
        assert main([*command, *further]) == 2
    assert main(["explain", "somewhere", str(photo), "--tokens", "1"]) == 2
    assert "requires --steps" in capsys.readouterr().err
