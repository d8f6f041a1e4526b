"""Comparisons on benchmarks that papers do not score by plain accuracy."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np
import pytest

from making.benchmark_folders import WNIDS, colour_image, write_imagenet, write_pets, write_real
from vitrail.cli import main
from vitrail.report.significance import resample
from vitrail.studies import comparing
from vitrail.studies.comparing import compare
from vitrail.tasks.classification.comparing import ACCURACY, Answers, BalancedAccuracy, comparison_metric
from vitrail.tasks.registry import TASKS
from vitrail.train.evaluate import Report

TINY = {
    "train.steps": 2,
    "train.batch_size": 4,
    "train.precision": "float32",
    "train.validations": 1,
    "model.name": "vit_nano",
    "model.width": 8,
    "model.depth": 1,
    "model.num_heads": 2,
}


def test_only_benchmarks_with_this_score_are_ranked_by_it() -> None:
    assert comparison_metric("flowers102:somewhere").score == "balanced_accuracy"
    assert comparison_metric("imagenet-real").score == "real_accuracy"
    assert comparison_metric("cifar10") is ACCURACY
    assert comparison_metric("photos/") is ACCURACY
    assert TASKS["detection"].comparison_metric("oxford-pets").score == "ap"


def test_resamples_are_scored_by_the_classes_that_were_drawn() -> None:
    labels = np.array([0, 0, 0, 0, 2, 5, 5], dtype=np.int64)
    runs = [
        Answers(labels, np.array(right, dtype=bool))
        for right in ([1, 1, 1, 0, 0, 1, 0], [0, 1, 1, 1, 1, 0, 0])
    ]

    found = BalancedAccuracy().resample(runs, 11)

    for score, drawn in zip(found, resample(len(labels), 11), strict=True):
        of_runs = [
            np.mean([run.is_right[drawn][labels[drawn] == label].mean() for label in set(labels[drawn])])
            for run in runs
        ]
        assert score == pytest.approx(np.mean(of_runs))


@pytest.fixture(autouse=True)
def within_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train without new processes, on data of this folder."""
    monkeypatch.setenv("VITRAIL_DATA", str(tmp_path))

    def train(command, log, on_progress) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(command[3:]) == 0

    monkeypatch.setattr(comparing, "run_to_the_end", train)


def test_models_are_ranked_by_the_score_of_papers(tmp_path: Path) -> None:
    write_pets(tmp_path / "oxford-pets", per_breed=7)
    compared = compare(
        "oxford-pets", mixers=["pooling", "fourier"], changes=TINY, output=tmp_path, name="c"
    ).comparison

    assert compared.score == "balanced_accuracy"
    for run in compared.runs:
        assert run.figures is not None
        scores = Report.load(tmp_path / "c" / str(run.folder) / "report.json").scores
        assert run.figures.score == scores["mean_per_class_accuracy"]
        assert run.figures.curve
    (pair,) = compared.pairs
    assert pair.test == "bootstrap"
    assert "class mean" in (tmp_path / "c" / "comparison.html").read_text(encoding="utf-8")


def test_models_are_ranked_by_the_labels_of_real(tmp_path: Path) -> None:
    labels = {1: 970, 2: 230, 3: 809, 5: 57}
    root = write_imagenet(tmp_path / "imagenet", labels)
    for label in labels.values():
        folder = root / "ILSVRC/Data/CLS-LOC/train" / WNIDS[label]
        for number in range(3):
            colour_image(folder / f"{WNIDS[label]}_{number}.JPEG", label, number)
    # Whatever is said of image 1 is right, image 2 has no label, and of 3 and 5 nearly everything is wrong.
    write_real(tmp_path / "imagenet-real" / "real.json", {1: list(range(1000)), 3: [0], 5: [0]})

    compared = compare(
        "imagenet-real",
        mixers=["pooling", "fourier"],
        changes={**TINY, "data.validation_fraction": 0.25},
        output=tmp_path,
        name="c",
    ).comparison

    assert compared.score == "real_accuracy"
    for run in compared.runs:
        assert run.figures is not None
        report = Report.load(tmp_path / "c" / str(run.folder) / "report.json")
        assert run.figures.score == report.scores["real_accuracy"] >= 1 / 3
        assert comparison_metric("imagenet-real").read(tmp_path / "c" / str(run.folder)).shape == (3,)
    (pair,) = compared.pairs
    assert pair.test == "mcnemar"
    assert "ReaL" in (tmp_path / "c" / "comparison.html").read_text(encoding="utf-8")
