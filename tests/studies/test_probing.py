"""Probes of a frozen model on a folder of images, their cache, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from making.saved_vit import save_vit
from vitrail.cli import main
from vitrail.core.errors import ConfigError
from vitrail.engines.loading import load_any
from vitrail.studies.probing import image_part, open_reader, probe, read_features, read_split, weighted_votes
from vitrail.tasks.classification.opening import open_dataset


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))


def test_features_are_computed_once_and_are_those_of_the_model(
    tmp_path: Path, divided_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_any(save_vit(tmp_path / "model", class_names=("cat", "dog")))
    dataset = open_dataset(divided_folder)
    reader = open_reader(*image_part(loaded))
    told: list[tuple[str, int, int]] = []
    first = read_split(dataset, "test", reader, 4, lambda *event: told.append(event))

    pixels = torch.stack([reader.preprocessing.read(image) for image in dataset.test.images])
    with torch.inference_mode():
        expected = read_features(loaded.model, reader.preprocessing.normalise(pixels))
    assert torch.allclose(first.values, expected, atol=3e-2)  # products and the cache in half precision
    assert first.labels.tolist() == dataset.test.labels.tolist()
    assert told == [("features of test", 4, 6), ("features of test", 6, 6)]

    monkeypatch.setattr("vitrail.studies.probing.read_features", None)  # nothing is computed again
    assert torch.equal(read_split(dataset, "test", reader).values, first.values)


def test_both_protocols_score_a_model_of_other_classes(tmp_path: Path, divided_folder: Path) -> None:
    saved = save_vit(tmp_path / "model", class_names=("cat", "dog"))
    near = probe(saved, divided_folder, protocol="knn", num_neighbours=3)
    linear = probe(saved, divided_folder)

    reader = open_reader(*image_part(load_any(saved)))
    dataset = open_dataset(divided_folder)
    train, validation, test = (read_split(dataset, name, reader) for name in dataset.splits)
    bank = [torch.cat(pair) for pair in zip(train, validation, strict=True)]
    votes = weighted_votes(bank[0], bank[1], test.values, num_classes=3, num_neighbours=3)
    right = (votes.argmax(dim=-1) == test.labels).double().mean()
    assert near.scores["accuracy"] == pytest.approx(float(right))
    assert near.class_names == ("blue", "green", "red")
    assert near.signature["protocol"] == "weighted 3-nn of 15, temperature 0.07"

    strength = float(linear.signature["protocol"].split("C=")[1].split()[0])
    reference = LogisticRegression(C=strength, tol=1e-9, max_iter=5000)
    reference.fit(bank[0].double().numpy(), bank[1].numpy())
    expected = reference.score(test.values.double().numpy(), test.labels.numpy())
    assert linear.scores["accuracy"] == pytest.approx(expected)


def test_the_command_shows_scores_in_80_columns(
    tmp_path: Path, divided_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["probe", str(save_vit(tmp_path / "model")), str(divided_folder), "--protocol", "knn"]

    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert main([*arguments, "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)

    assert "accuracy" in shown
    assert "protocol:weighted 15-nn of 15" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert tree["signature"]["features"] == "12 of model"
    assert main([*arguments, "--neighbours", "0"]) == 2


def test_numbers_that_are_not_positive_are_refused(tmp_path: Path, divided_folder: Path) -> None:
    with pytest.raises(ConfigError, match="temperature"):
        probe(save_vit(tmp_path / "model"), divided_folder, protocol="knn", temperature=0)
