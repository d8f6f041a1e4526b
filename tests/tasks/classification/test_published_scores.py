"""Scores of benchmarks as papers report them, on miniatures."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from making.benchmark_folders import PETS, WNIDS, colour_image, write_imagenet, write_pets, write_real
from making.saved_vit import save_vit
from vitrail.cli import main
from vitrail.cli.training import show_trained
from vitrail.core.errors import DataError
from vitrail.data.preprocessing import Preprocessing
from vitrail.engines.loading import load
from vitrail.report.significance import resample
from vitrail.studies import comparing
from vitrail.studies.comparing import compare
from vitrail.studies.probing import probe
from vitrail.tasks.classification.benchmarks import BENCHMARKS
from vitrail.tasks.classification.comparing import ACCURACY, BalancedAccuracy, comparison_metric
from vitrail.tasks.classification.published_scores import published_rows, reassess
from vitrail.tasks.evaluating import evaluate
from vitrail.tasks.registry import TASKS, open_run
from vitrail.tasks.training import TrainedRun, train
from vitrail.train.evaluate import Report

LABELS = {1: 970, 2: 230, 3: 809, 5: 57}
TINY = {
    "train.steps": 2,
    "train.batch_size": 4,
    "train.validations": 1,
    "train.precision": "float32",
    "model.name": "vit_nano",
    "model.width": 8,
    "model.depth": 1,
    "model.num_heads": 2,
}


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that VITRAIL_DATA names; comparisons train within this process."""
    monkeypatch.setenv("VITRAIL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))

    def run(command, log, on_progress) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(command[3:]) == 0

    monkeypatch.setattr(comparing, "run_to_the_end", run)
    return tmp_path / "data"


def answers(saved: Path, root: Path) -> dict[int, int]:
    """Return what the model says of each validation image, by number."""
    model, preprocessing = load(saved), Preprocessing(image_size=(12, 8))
    with torch.inference_mode():
        return {
            number: int(model(preprocessing.normalise(preprocessing.read(file)[None])).argmax())
            for number in LABELS
            for file in root.rglob(f"ILSVRC2012_val_{number:08d}.JPEG")
        }


def test_real_counts_any_label_and_leaves_out_images_without(tmp_path: Path, data: Path) -> None:
    root = write_imagenet(data / "imagenet", LABELS)
    saved = save_vit(tmp_path / "model", class_names=[f"thing {i}" for i in range(1000)], sharpness=40.0)
    said = answers(saved, root)
    # Image 1 has the model's answer among two labels, 2 and 3 another one, 5 has none.
    write_real(
        data / "imagenet-real" / "real.json",
        {1: [said[1], 7], 2: [(said[2] + 1) % 1000], 3: [(said[3] + 2) % 1000]},
    )
    report = evaluate(saved, "imagenet-real")

    assert report.scores["real_accuracy"] == pytest.approx(1 / 3)
    top_1 = np.mean([said[number] == label for number, label in LABELS.items()])
    assert report.scores["accuracy"] == pytest.approx(top_1)
    assert report.signature["real"] == "3 of 4 images have labels"
    assert report.signature["incomplete"] == "4 of 50000 images"
    assert next(iter(report.scores)) == "real_accuracy"


def test_classes_of_imagenet_are_matched_by_number(tmp_path: Path, data: Path) -> None:
    root = write_imagenet(data / "imagenet", LABELS)
    saved = save_vit(tmp_path / "model", class_names=[str(i) for i in range(1000)])
    said = answers(saved, root)
    report = evaluate(saved, "imagenet")
    assert report.tables["labels"] == list(LABELS.values())
    assert report.tables["predicted"] == pytest.approx(list(said.values()))

    by_wnid = save_vit(tmp_path / "by-wnid", class_names=WNIDS)
    assert evaluate(by_wnid, "imagenet").tables["predicted"] == report.tables["predicted"]
    few = save_vit(tmp_path / "few", class_names=("cat", "dog"))
    with pytest.raises(DataError, match="does not know"):
        evaluate(few, "imagenet")


@pytest.mark.parametrize(
    ("name", "headline", "signed"),
    [
        ("oxford-pets", "accuracy", "oxford-pets, top-1 accuracy"),
        (
            "kornblith-oxford-pets",
            "mean_per_class_accuracy",
            "kornblith-oxford-pets, mean accuracy of the classes",
        ),
    ],
)
def test_pets_are_scored_by_top_1_and_by_the_mean_of_the_classes_where_that_protocol_is_named(
    tmp_path: Path, data: Path, name: str, headline: str, signed: str
) -> None:
    write_pets(data / "oxford-pets", per_breed=6)
    names = [name.replace("_", " ") for name in PETS]
    report = evaluate(save_vit(tmp_path / "model", class_names=names), name)
    labels, predicted = (np.array(report.tables[name]) for name in ("labels", "predicted"))
    mean = np.mean([(predicted[labels == label] == label).mean() for label in range(3)])
    assert next(iter(report.scores)) == headline
    assert report.scores["accuracy"] == pytest.approx((predicted == labels).mean())
    assert report.scores["mean_per_class_accuracy"] == pytest.approx(mean)
    assert report.signature["benchmark"] == signed


@pytest.mark.parametrize("name", ["oxford-pets", "flowers102", "cifar10", "cifar100", "imagenet", "vtab-dtd"])
def test_the_headline_of_a_table_of_vit_or_vtab_is_top_1(name: str) -> None:
    assert BENCHMARKS[name].metric == "accuracy"


def test_published_rows_stand_beside_the_score_best_first(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pets(data / "oxford-pets", per_breed=6)
    saved = save_vit(tmp_path / "mine", class_names=[name.replace("_", " ") for name in PETS])

    assert main(["evaluate", str(saved), "oxford-pets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert main(["evaluate", str(saved), "oxford-pets", "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)

    start = next(place for place, line in enumerate(lines) if line.startswith("published"))
    rows = [line for line in lines[start + 1 :] if re.search(r"\d\.\d\d$", line)]
    values = [float(line.split()[-1]) for line in rows]
    assert values == sorted(values, reverse=True)
    assert rows[0].split() == ["ViT-H/14", "JFT-300M", "97.56"]
    (own,) = (line for line in rows if line.startswith("mine"))
    assert float(own.split()[-1]) == pytest.approx(100 * tree["scores"]["accuracy"], abs=0.006)
    assert max(map(len, lines)) <= 80
    assert tree["published"][0]["value"] == 97.56
    assert {"model": "ViT-L/16", "value": 94.73}.items() <= next(
        row for row in tree["published"] if row["model"] == "ViT-L/16" and row["trained_on"] == "ImageNet-21k"
    ).items()
    assert published_rows("digits") == []


@pytest.mark.parametrize("drops_class", [True, False])
def test_real_is_refused_where_numbers_mean_other_classes(
    tmp_path: Path, data: Path, drops_class: bool
) -> None:
    """One class fewer, of the data and of a model that knows them by wnid; or the wnids in another order."""
    listed = write_imagenet(data / "imagenet", LABELS) / "LOC_synset_mapping.txt"
    if drops_class:
        listed.write_text("".join(listed.read_text().splitlines(keepends=True)[:-1]))
    write_real(data / "imagenet-real" / "real.json", {1: [970]})
    saved = save_vit(tmp_path / "model", class_names=WNIDS if drops_class else WNIDS[::-1])
    with pytest.raises(DataError, match=r"the ReaL labels do not fit .* classes"):
        evaluate(saved, "imagenet-real")
    assert evaluate(saved, "imagenet").scores["accuracy"] >= 0


def test_a_training_that_could_not_be_scored_is_refused_before_it_begins(data: Path) -> None:
    root = write_imagenet(data / "imagenet", LABELS)
    for label in LABELS.values():
        colour_image(root / "ILSVRC/Data/CLS-LOC/train" / WNIDS[label] / f"{WNIDS[label]}_1.JPEG", label, 9)
    with pytest.raises(DataError, match=r"real\.json"):
        train("imagenet-real", changes=TINY, dry_run=True)


def test_a_training_reports_what_papers_report(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pets(data / "oxford-pets", per_breed=6)
    finished = train("oxford-pets", changes=TINY, output=tmp_path, name="run")

    assert isinstance(finished, TrainedRun)
    assert finished.headline == next(iter(finished.scores)) == "accuracy"
    page = finished.report_path.read_text(encoding="utf-8")
    assert "mean accuracy of classes" in page
    assert "what papers report" not in page
    logged = [entry for entry in open_run(finished.folder).metrics() if entry["kind"] == "validation"]
    assert all("balanced_accuracy" not in entry["scores"] for entry in logged)
    show_trained(finished)
    assert "accuracy 0." in capsys.readouterr().out.splitlines()[-1]


def test_a_training_by_kornblith_s_protocol_is_selected_and_reported_by_the_mean_of_classes(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pets(data / "oxford-pets", per_breed=6)
    finished = train("kornblith-oxford-pets", changes=TINY, output=tmp_path, name="run")

    assert isinstance(finished, TrainedRun)
    assert finished.headline == next(iter(finished.scores)) == "mean_per_class_accuracy"
    report = Report.load(finished.folder / "report.json")
    assert report.signature["benchmark"] == "kornblith-oxford-pets, mean accuracy of the classes"
    assert report.signature["incomplete"] == "6 of 3669 images"
    assert evaluate(finished.folder, "kornblith-oxford-pets").signature == report.signature
    assert "mean accuracy of classes" in finished.report_path.read_text(encoding="utf-8")
    logged = [entry for entry in open_run(finished.folder).metrics() if entry["kind"] == "validation"]
    assert all("balanced_accuracy" in entry["scores"] for entry in logged)
    assert logged
    show_trained(finished)
    assert "mean_per_class_accuracy 0." in capsys.readouterr().out.splitlines()[-1]


def test_an_unreadable_test_image_is_an_error_not_left_out(tmp_path: Path, data: Path) -> None:
    root = write_pets(data / "oxford-pets", per_breed=6)
    finished = train("oxford-pets", changes=TINY, output=tmp_path, name="run")
    assert isinstance(finished, TrainedRun)
    (root / "images" / f"{PETS[0]}_1.jpg").write_bytes(b"broken")
    with pytest.raises(DataError, match="is not an image"):
        evaluate(finished.folder, "oxford-pets")
    with pytest.raises(DataError, match="1 image of the published test cannot be read"):
        train("oxford-pets", changes=TINY, output=tmp_path, dry_run=True)


def test_a_probe_resizes_as_published_by_default(tmp_path: Path, data: Path) -> None:
    write_pets(data / "oxford-pets", per_breed=6)
    saved = save_vit(tmp_path / "model", class_names=("cat", "dog"))
    published = probe(saved, "oxford-pets", protocol="knn")
    own = probe(saved, "oxford-pets", protocol="knn", preparation="model")
    assert "squash bilinear" in published.signature["input"]
    assert published.signature["resized"] == "squash 1, as published"
    assert "crop bicubic" in own.signature["input"]
    assert "mean_per_class_accuracy" in published.scores


def test_the_command_lists_benchmarks_in_80_columns(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pets(data / "oxford-pets")
    assert main(["benchmarks"]) == 0
    listed = capsys.readouterr().out
    assert main(["benchmarks", "oxford-pets"]) == 0
    told = capsys.readouterr().out
    assert main(["benchmarks", "oxford-pet"]) == 2

    (row,) = (line for line in listed.splitlines() if line.startswith("oxford-pets"))
    assert row.split()[-1] == "yes"
    assert "3,680 train, 3,669 test; 37 classes" in told
    assert "vitrail train oxford-pets --weights RUN" in told
    shown = [line for line in (listed + told).splitlines() if str(data) not in line]
    assert max(map(len, shown)) <= 80


def test_any_of_several_labels_is_right_and_images_without_are_left_out() -> None:
    assert reassess([1, 2, 3, 4], [{1, 7}, set(), {2}, {4}]) == [True, False, True]
    with pytest.raises(DataError, match="none of 1"):
        reassess([1], [set()])


def test_only_benchmarks_with_this_score_are_ranked_by_it() -> None:
    assert comparison_metric("kornblith-flowers102:somewhere").score == "balanced_accuracy"
    assert comparison_metric("flowers102:somewhere") is ACCURACY
    assert comparison_metric("imagenet-real").score == "real_accuracy"
    assert comparison_metric("cifar10") is ACCURACY
    assert comparison_metric("photos/") is ACCURACY
    assert TASKS["detection"].comparison_metric("oxford-pets").score == "ap"


def test_resamples_are_scored_by_the_classes_that_were_drawn() -> None:
    labels = np.array([0, 0, 0, 0, 2, 5, 5], dtype=np.int64)
    runs = [(labels, np.array(right, dtype=bool)) for right in ([1, 1, 1, 0, 0, 1, 0], [0, 1, 1, 1, 1, 0, 0])]

    found = BalancedAccuracy().resample(runs, 11)

    for score, drawn in zip(found, resample(len(labels), 11), strict=True):
        of_runs = [
            np.mean([is_right[drawn][labels[drawn] == label].mean() for label in set(labels[drawn])])
            for _, is_right in runs
        ]
        assert score == pytest.approx(np.mean(of_runs))


def test_models_are_ranked_by_the_score_of_papers(tmp_path: Path, data: Path) -> None:
    write_pets(data / "oxford-pets", per_breed=7)
    compared = compare(
        "kornblith-oxford-pets", mixers=["pooling", "fourier"], changes=TINY, output=tmp_path, name="c"
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


def test_models_are_ranked_by_the_labels_of_real(tmp_path: Path, data: Path) -> None:
    root = write_imagenet(data / "imagenet", LABELS)
    for label in LABELS.values():
        folder = root / "ILSVRC/Data/CLS-LOC/train" / WNIDS[label]
        for number in range(3):
            colour_image(folder / f"{WNIDS[label]}_{number}.JPEG", label, number)
    # Whatever is said of image 1 is right, image 2 has no label, and of 3 and 5 nearly everything is wrong.
    write_real(data / "imagenet-real" / "real.json", {1: list(range(1000)), 3: [0], 5: [0]})

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
