"""VTAB on miniatures of its tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from making.benchmark_folders import write_vtab_task
from making.saved_vit import save_vit
from vitrail.cli import main
from vitrail.core.errors import CheckpointError, DataError
from vitrail.studies import vtab
from vitrail.studies.probing import probe
from vitrail.studies.vtab import score_vtab
from vitrail.tasks.classification.benchmarks import BENCHMARKS, VTAB
from vitrail.tasks.training import TrainedRun, train
from vitrail.train.evaluate import Report


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
    for _, _, folder, *_ in VTAB:
        (tmp_path / folder).mkdir()

    def pretend(run, source, **settings):
        accuracy = len(source.partition(":")[0]) / 100
        return Report(signature={}, scores={"accuracy": accuracy}, tables={})

    monkeypatch.setattr(vtab, "probe", pretend)
    scores = score_vtab("model", f"vtab-1k:{tmp_path}")

    expected = [len(name) / 100 for name, benchmark in BENCHMARKS.items() if benchmark.group]
    assert scores.mean == pytest.approx(sum(expected) / 19)
    assert scores.groups["natural"] == pytest.approx(sum(expected[:7]) / 7)


class Trainings:
    """Pretend to train, and note what was asked for; some are interrupted before their report."""

    def __init__(self) -> None:
        self.fresh: list[dict[str, Any]] = []
        self.resumed: list[Path] = []
        self.interrupted = False

    def __call__(
        self, source: str | None = None, *, resume: Path | None = None, **settings: Any
    ) -> TrainedRun:
        if resume is None:
            self.fresh.append({"source": source, **settings})
            folder = settings["output"] / settings["name"]
            folder = folder.with_name(f"{folder.name}-2") if folder.exists() else folder
            folder.mkdir(parents=True)
            (folder / "config.json").write_text("{}")
        else:
            self.resumed.append(resume)
            folder = resume
        if self.interrupted:
            raise KeyboardInterrupt
        accuracy = len(self.fresh) / 8
        Report(signature={}, scores={"accuracy": accuracy}, tables={}).save(folder / "report.json")
        (folder / "report.html").write_text("a page")
        return TrainedRun(folder, {"accuracy": accuracy}, folder / "report.html")


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> Trainings:
    """What stands for ``train``."""
    trainings = Trainings()
    monkeypatch.setattr(vtab, "train", trainings)
    return trainings


def fine_tune(model: Path, root: Path, **settings: Any) -> float | None:
    scores = score_vtab(
        model, f"vtab-1k:{root}", protocol="fine-tune", **{"budget_s": 9, "output": root / "runs", **settings}
    )
    (score,) = (task.accuracy for task in scores.tasks if task.name == "vtab-kitti")
    return score


def test_fine_tuning_starts_from_the_weights_and_is_not_repeated(
    tmp_path: Path, trainings: Trainings
) -> None:
    write_vtab_task(tmp_path / "kitti")
    saved = save_vit(tmp_path / "base")

    assert [fine_tune(saved, tmp_path) for _ in range(2)] == [1 / 8, 1 / 8]
    (call,) = trainings.fresh
    assert call["weights"] == saved
    assert call["source"] == f"vtab-kitti:{tmp_path / 'kitti'}"
    assert call["name"].startswith("vtab-kitti-from-base-")


def test_a_score_is_of_the_same_weights_data_and_budget(tmp_path: Path, trainings: Trainings) -> None:
    write_vtab_task(tmp_path / "kitti")
    one, other = (save_vit(tmp_path / name / "model", seed=seed) for name, seed in (("a", 1), ("b", 2)))

    assert fine_tune(one, tmp_path) == 1 / 8
    assert fine_tune(other, tmp_path) == 2 / 8
    assert fine_tune(one, tmp_path, budget_s=10) == 3 / 8
    assert fine_tune(one, tmp_path) == 1 / 8
    listed = tmp_path / "kitti" / "train800.txt"
    listed.write_text("\n".join(listed.read_text().splitlines()[1:]))
    assert fine_tune(one, tmp_path) == 4 / 8


def test_a_training_that_was_stopped_goes_on(tmp_path: Path, trainings: Trainings) -> None:
    write_vtab_task(tmp_path / "kitti")
    saved = save_vit(tmp_path / "base")
    trainings.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        fine_tune(saved, tmp_path)
    trainings.interrupted = False

    assert fine_tune(saved, tmp_path) == 1 / 8
    (folder,) = (tmp_path / "runs").iterdir()
    assert trainings.resumed == [folder]


def test_the_report_is_read_where_the_run_is(tmp_path: Path, trainings: Trainings) -> None:
    write_vtab_task(tmp_path / "kitti")
    saved = save_vit(tmp_path / "base")
    assert fine_tune(saved, tmp_path) == 1 / 8
    (folder,) = (tmp_path / "runs").iterdir()
    for path in folder.iterdir():  # as of a run that ended before its settings were written
        path.unlink()

    assert fine_tune(saved, tmp_path) == 2 / 8
    assert (tmp_path / "runs" / f"{folder.name}-2" / "report.json").is_file()


def test_a_task_that_tests_unseen_classes_is_fine_tuned(tmp_path: Path, plain_pages: None) -> None:
    root = write_vtab_task(tmp_path / "sun397", num_classes=5)
    listed = root / "train800.txt"
    listed.write_text("".join(f"{line}\n" for line in listed.read_text().splitlines() if line[-1] != "3"))
    saved = save_vit(tmp_path / "base", class_names=("cat", "dog"))
    changes = {"train.steps": 2, "train.validations": 0, "train.batch_size": 4, "train.precision": "float32"}

    trained = train(f"vtab-sun397:{root}", weights=saved, changes=changes, output=tmp_path / "runs")

    assert isinstance(trained, TrainedRun)
    report = Report.load(trained.folder / "report.json")
    assert report.tables["per_class"][3]["support"] == 1
    assert report.signature["benchmark"] == "vtab-sun397, top-1 accuracy"


def test_a_task_that_fails_is_told_and_stops_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = save_vit(tmp_path / "model")
    for name in ("dtd", "kitti"):
        write_vtab_task(tmp_path / "tasks" / name)
    (tmp_path / "tasks" / "dtd" / "test.txt").write_text("images/test/000.png cat\n")
    arguments = ["probe", str(saved), f"vtab-1k:{tmp_path / 'tasks'}", "--protocol", "knn"]

    assert main(arguments) == 1
    shown = capsys.readouterr().out
    assert main([*arguments, "--json"]) == 1
    by_name = {task["name"]: task for task in json.loads(capsys.readouterr().out)["tasks"]}

    assert "DTD failed:" in shown
    assert by_name["vtab-dtd"]["accuracy"] is None
    assert "test.txt cannot be read: line 1 is 'images/test/000.png cat'" in by_name["vtab-dtd"]["error"]
    assert by_name["vtab-kitti"]["accuracy"] is not None
    assert by_name["vtab-kitti"]["error"] == by_name["vtab-svhn"]["error"] == ""


def test_where_every_task_fails_so_does_the_whole(tmp_path: Path) -> None:
    write_vtab_task(tmp_path / "dtd")
    with pytest.raises(CheckpointError):
        score_vtab(tmp_path / "nothing", f"vtab-1k:{tmp_path}")


def test_options_reach_the_probe_of_each_task_and_the_signature(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = save_vit(tmp_path / "model")
    write_vtab_task(tmp_path / "tasks" / "dtd")
    arguments = ["probe", str(saved), f"vtab-1k:{tmp_path / 'tasks'}", "--protocol", "knn", "--json"]
    arguments += ["--neighbours", "3", "--temperature", "0.5", "--preparation", "model"]

    assert main(arguments) == 0
    tree = json.loads(capsys.readouterr().out)

    (signature,) = (task["signature"] for task in tree["tasks"] if task["signature"])
    assert signature["method"] == "weighted 3-nn of 18, temperature 0.5"
    assert signature["resized"] == "as in training"
    assert tree["signature"]["method"] == "weighted 3-nn, temperature 0.5"
    assert tree["signature"]["resized"] == "as in training"


@pytest.mark.parametrize(
    ("protocol", "option", "value"),
    [
        ("linear", "--neighbours", "5"),
        ("linear", "--temperature", "0.1"),
        ("knn", "--budget", "9s"),
        ("linear", "--output", "elsewhere"),
        ("fine-tune", "--preparation", "model"),
        ("fine-tune", "--neighbours", "5"),
    ],
)
def test_options_that_a_protocol_does_not_use_are_refused(
    capsys: pytest.CaptureFixture[str], protocol: str, option: str, value: str
) -> None:
    assert main(["probe", "model", "vtab-1k", "--protocol", protocol, option, value]) == 2
    assert f"{option} requires --protocol" in capsys.readouterr().err


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
