"""VTAB on miniatures of its tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmark_folders import write_vtab_task
from saved_vit import save_vit
from vitrail.cli import main
from vitrail.data.benchmarks import BENCHMARKS
from vitrail.data.benchmarks.vtab import TASKS
from vitrail.errors import DataError
from vitrail.evaluate import Report
from vitrail.pipeline import vtab
from vitrail.pipeline.probing import probe
from vitrail.pipeline.training import TrainedRun
from vitrail.pipeline.vtab import score_vtab


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VITRAIL_DATA", raising=False)


def test_tasks_that_are_there_are_scored_and_a_mean_needs_all(tmp_path: Path) -> None:
    saved = save_vit(tmp_path / "model")
    for name in ("patch_camelyon", "eurosat", "resisc45", "diabetic_retinopathy", "kitti"):
        write_vtab_task(tmp_path / "tasks" / name, num_classes=2 if name == "patch_camelyon" else 3)
    done: list[str] = []
    scores = score_vtab(
        saved, f"vtab-1k:{tmp_path / 'tasks'}", protocol="knn", on_task=lambda task: done.append(task.name)
    )

    assert done == [name for name, benchmark in BENCHMARKS.items() if benchmark.group]
    by_name = {task.name: task.accuracy for task in scores.tasks}
    alone = probe(saved, f"vtab-kitti:{tmp_path / 'tasks' / 'kitti'}", protocol="knn")
    assert by_name["vtab-kitti"] == alone.scores["accuracy"]
    special = [task.accuracy for task in scores.tasks if task.group == "specialised"]
    assert scores.groups["specialised"] == pytest.approx(sum(special) / 4)
    assert scores.groups["natural"] is None
    assert scores.groups["structured"] is None
    assert scores.mean is None
    assert scores.signature["tasks"] == "5 of 19"


def test_the_mean_is_that_of_the_nineteen_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for task in TASKS:
        (tmp_path / task.folder).mkdir()

    def pretend(run, source, *, protocol, on_progress):
        accuracy = len(source.partition(":")[0]) / 100
        return Report(signature={}, scores={"accuracy": accuracy}, tables={})

    monkeypatch.setattr(vtab, "probe", pretend)
    scores = score_vtab("model", f"vtab-1k:{tmp_path}")

    expected = [len(name) / 100 for name, benchmark in BENCHMARKS.items() if benchmark.group]
    assert scores.mean == pytest.approx(sum(expected) / 19)
    assert scores.groups["natural"] == pytest.approx(sum(expected[:7]) / 7)


def test_fine_tuning_starts_from_the_weights_and_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_vtab_task(tmp_path / "kitti")
    started: list[dict[str, object]] = []

    def pretend(source, **settings):
        started.append({"source": source, **settings})
        folder = settings["output"] / settings["name"]
        folder.mkdir(parents=True)
        Report(signature={}, scores={"accuracy": 0.75}, tables={}).save(folder / "report.json")
        return TrainedRun(folder, {"accuracy": 0.75}, folder / "report.html")

    monkeypatch.setattr(vtab, "train", pretend)
    for _ in range(2):
        scores = score_vtab(
            "runs/base", f"vtab-1k:{tmp_path}", protocol="fine-tune", budget_s=9, output=tmp_path / "runs"
        )

    assert [task.accuracy for task in scores.tasks if task.name == "vtab-kitti"] == [0.75]
    (call,) = started
    assert call["weights"] == "runs/base"
    assert call["source"] == f"vtab-kitti:{tmp_path / 'kitti'}"
    assert call["name"] == "vtab-kitti-from-base"


def test_without_any_task_the_error_says_how_they_lie(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train800\.txt"):
        score_vtab("model", f"vtab-1k:{tmp_path}")


def test_the_command_shows_tasks_and_means_in_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_vtab_task(tmp_path / "tasks" / "dtd")
    saved = save_vit(tmp_path / "model")
    arguments = ["probe", str(saved), f"vtab-1k:{tmp_path / 'tasks'}", "--protocol", "knn"]

    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert main([*arguments, "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)

    assert "mean of natural" in shown
    assert "mean of all 19 tasks" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert len(tree["tasks"]) == 19
    assert main(["probe", str(saved), str(tmp_path / "tasks" / "dtd"), "--protocol", "fine-tune"]) == 2
