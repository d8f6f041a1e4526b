"""The whole way on a tiny model: what is written, and that repeated and resumed runs give the same bits."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from making.plain_pages import plain_pages
from vitrail.core.errors import CheckpointError, ConfigError, DataError
from vitrail.engines.loading import load_any
from vitrail.tasks.contract import match_classes
from vitrail.tasks.evaluating import evaluate, open_scoring
from vitrail.tasks.notebook import notebook_progress
from vitrail.tasks.preparing import Fit, typical_loading_s
from vitrail.tasks.registry import open_run
from vitrail.tasks.training import Began, Finished, PipelineEvent, TrainedRun, train
from vitrail.train.budget import Deadline, StepTimes
from vitrail.train.evaluate import Report
from vitrail.train.events import Started, Stepped, Validated
from vitrail.train.interrupt import TrainingInterrupted

pytest.importorskip("sklearn", reason="the data set digits is in the extra demo")

REPOSITORY = Path(__file__).resolve().parents[2]
STEPS = 6
TINY = {
    "train.steps": STEPS,
    "train.batch_size": 32,
    "train.precision": "float32",
    "train.validations": 4,
    "train.checkpoint_every_s": 1e-9,
    "augment.erase": 0.5,
    "augment.mixup": 0.2,
    "model.name": "vit_nano",
    "model.width": 16,
    "model.depth": 1,
    "model.num_heads": 2,
}


def run(*source: str | Path, **request: Any) -> Path:
    with plain_pages():
        trained = train(*source, **request)
    assert isinstance(trained, TrainedRun)
    return trained.folder


def start(folder: Path, name: str, on_event: Callable[[PipelineEvent], None] = lambda event: None) -> Path:
    return run("digits", changes=TINY, output=folder, name=name, on_event=on_event)


def command_of(folder: Path, name: str) -> list[str]:
    """Return the command line that does what ``start`` does."""
    assignments = [part for path, value in TINY.items() for part in ("--set", f"{path}={value}")]
    where = ["--output", str(folder), "--name", name]
    return [sys.executable, "-m", "vitrail", "train", "digits", *assignments, *where]


def weights_of(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that was never stopped."""
    return start(tmp_path_factory.mktemp("runs"), "whole")


def test_a_run_directory_holds_what_the_architecture_page_says(whole: Path) -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.split("## A run directory")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    documented = {name.split("/")[0] for cell in cells for name in re.findall(r"`([^`]+)`", cell)}

    assert {path.name for path in whole.iterdir()} == documented
    assert [path.name for path in (whole / "checkpoints").iterdir()] == [f"step-{STEPS:06d}"]


def test_every_choice_is_stored_with_its_reason(whole: Path) -> None:
    stored = json.loads((whole / "choices.json").read_text())["choices"]
    choices = {choice["setting"]: choice for choice in stored}

    assert choices["train.steps"] == {"setting": "train.steps", "value": "6", "reason": "you set it"}
    assert choices["optim.name"]["reason"] != "you set it"
    assert json.loads((whole / "verdict.json").read_text())["usable"]


def test_a_run_interrupted_and_resumed_gives_the_same_bits(whole: Path) -> None:
    def interrupt(event: PipelineEvent) -> None:
        if isinstance(event, Stepped) and event.step == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(TrainingInterrupted, match=r"after step 3 of 6.*--resume .*interrupted"):
        start(whole.parent, "interrupted", interrupt)

    assert weights_of(run(resume=whole.parent / "interrupted")) == weights_of(whole)


def test_a_killed_command_goes_on_to_the_same_bits(whole: Path) -> None:
    command = command_of(whole.parent, "killed")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step 2,"):
                process.kill()

    assert process.returncode == -signal.SIGKILL
    assert weights_of(run(resume=whole.parent / "killed")) == weights_of(whole)


def test_two_processes_make_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launched = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    environment = {**os.environ, **launched, "RANK": "1", "LOCAL_RANK": "1", "OMP_NUM_THREADS": "1"}
    for name, value in {**launched, "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    command, streams = command_of(tmp_path, "both"), {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **streams) as second:
        try:
            folder = start(tmp_path, "both")
            shown, error = second.communicate(timeout=120)
        finally:
            second.kill()

    assert (second.returncode, shown) == (0, ""), error
    assert [path.name for path in tmp_path.iterdir()] == ["both"]
    assert (folder / "report.html").exists()
    losses = [entry["step"] for entry in open_run(folder).metrics() if entry["kind"] == "train"]
    assert losses == list(range(1, STEPS + 1))


def test_a_full_disk_at_the_end_loses_nothing(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill_disk(event: PipelineEvent) -> None:
        if isinstance(event, Finished):
            monkeypatch.setattr(os, "fsync", full_disk)

    full = whole.parent / "full"
    shutil.copytree(whole, full)
    for name in ("report.json", "report.html"):
        (full / name).write_text("former")
    with pytest.raises(CheckpointError, match=r"No space left.*resume"):
        train(resume=full, on_event=fill_disk)
    assert weights_of(full) == weights_of(whole)
    monkeypatch.undo()
    run(resume=full)

    assert weights_of(full) == weights_of(whole)
    assert Report.load(full / "report.json").scores == Report.load(whole / "report.json").scores
    assert {path.name for path in full.iterdir()} == {path.name for path in whole.iterdir()}


def test_the_run_is_told_of_before_its_first_step(tmp_path: Path) -> None:
    told: list[PipelineEvent] = []

    def stop(event: PipelineEvent) -> None:
        told.append(event)
        if isinstance(event, Began):
            raise InterruptedError

    with pytest.raises(InterruptedError):
        start(tmp_path, "first", stop)

    assert list(dict.fromkeys(type(event).__name__ for event in told)) == [
        "Checking",
        "Checked",
        "Prepared",
        "Began",
    ]
    assert told[-1] == Began(tmp_path / "first")


def test_a_finished_run_goes_on_for_a_budget_and_is_repeated_to_the_same_bits(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = Fit(4, 2, StepTimes(0.0, 0.1, 0.0), Deadline(math.inf))
    training = import_module("vitrail.tasks.training")
    monkeypatch.setattr(training, "fit_steps", lambda *arguments: planned)
    monkeypatch.setattr(Deadline, "is_due", lambda *arguments: False)
    longer = shutil.copytree(whole, tmp_path / "longer")
    with plain_pages():
        trained = train(resume=longer, budget_s=60)

    assert isinstance(trained, TrainedRun)
    assert trained.former_scores == Report.load(whole / "report.json").scores
    steps = [entry for entry in open_run(longer).metrics() if entry["kind"] == "train"]
    assert [entry["step"] for entry in steps] == list(range(1, STEPS + 5))
    assert steps[STEPS - 1]["rate"] < steps[STEPS]["rate"] > steps[-1]["rate"]
    choice = json.loads((longer / "choices.json").read_text())["choices"][-1]
    assert choice["value"] == "6 + 4"
    assert choice["reason"].endswith("% of its peak, as after 6 of 10 steps of one training")

    repeated = run("digits", config=longer / "config.json", output=tmp_path, name="repeated")
    assert weights_of(repeated) == weights_of(longer) != weights_of(whole)


def test_a_copied_model_folder_is_evaluated_too(whole: Path) -> None:
    assert evaluate(whole / "model", "digits").scores == Report.load(whole / "report.json").scores


def test_all_samples_of_other_data_are_scored_unless_a_split_is_named(whole: Path, tmp_path: Path) -> None:
    for label in "37":
        (tmp_path / label).mkdir()
        for i in range(5):
            Image.new("L", (8, 8), 20 * i + int(label)).save(tmp_path / label / f"{i}.png")

    reports = [
        evaluate(whole, source, split=split)
        for source, split in (("digits", None), (tmp_path, None), (tmp_path, "test"))
    ]
    own, other, drawn = (report.signature for report in reports)

    assert [report["samples"] for report in (own, other, drawn)] == ["359", "10", "2"]
    assert other["split"] == "test (all of the source)"
    assert other["classes"] == "2 of 10: 3; 7"
    assert "classes" not in own
    assert reports[1].measured_on.endswith(", classes 2 of 10: 3; 7.")
    (study,) = open_scoring(whole, load_any(whole), tmp_path, "test")
    assert len(study.source) == 10
    one_class = shutil.copytree(tmp_path / "7", tmp_path / "one" / "7").parent
    assert evaluate(whole, one_class).signature["classes"] == "1 of 10: 7"


def test_training_data_that_was_moved_is_not_other_data(tmp_path: Path, image_folder: Path) -> None:
    settings = {**TINY, "train.steps": 1, "data.test_fraction": 0.4}
    folder = run(image_folder, changes=settings, output=tmp_path, name="before")

    moved = evaluate(folder, shutil.copytree(image_folder, tmp_path / "moved")).signature

    assert moved["samples"] == Report.load(folder / "report.json").signature["samples"] == "6"

    gathered = tmp_path / "gathered"
    for path in image_folder.glob("*/*"):
        (gathered / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, gathered / path.parent.name / f"copy of {path.name}")
    copies = evaluate(folder, gathered)
    assert copies.signature["copies"] == "6 of 15"  # 6 are its test, 3 were held out for validation
    assert copies.measured_on.endswith("6 of 15 are in the training data, too: the scores are too high.")
    assert "copies" not in moved

    next(image_folder.glob("*/*")).unlink()
    less = evaluate(folder, image_folder)
    assert "since the training and was divided anew" in less.measured_on
    assert "changed" not in moved


def test_data_of_other_classes_is_neither_scored_nor_gone_on_with(whole: Path, image_folder: Path) -> None:
    with pytest.raises(DataError, match="does not know: blue; green; red"):
        evaluate(whole, image_folder)
    with pytest.raises(ConfigError, match="was trained on digits, not on"):
        train(image_folder, resume=whole)
    other = SimpleNamespace(class_names=("Cat", "cow"), source="pets")
    with pytest.raises(DataError, match=r"Expected classes among cat; dog\. Rename classes such as 'Cat'"):
        match_classes(other, ["cat", "dog"])
    apart = SimpleNamespace(class_names=("e\u0301te\u0301", "cat"), source="pets")
    assert match_classes(apart, ["cat", "dog", "\u00e9t\u00e9"]).tolist() == [2, 0]


def test_a_shortened_training_in_bfloat16_tells_its_steps_and_is_scored_as_it_is_used(tmp_path: Path) -> None:
    shortened = {**TINY, "train.replans": [{"at_step": 2, "steps": 4}], "train.precision": "bfloat16"}
    trained = train("digits", changes=shortened, output=tmp_path, name="short")

    assert isinstance(trained, TrainedRun)
    assert open_run(trained.folder).metrics()[-1]["step"] == 4
    assert "<td>4</td><td>6 planned at first: you set it</td>" in trained.report_path.read_text()
    report = Report.load(trained.folder / "report.json")
    assert report.signature["precision"] == "float32"
    assert evaluate(trained.folder, "digits", batch_size=50).scores == pytest.approx(report.scores, rel=1e-5)


def test_a_notebook_shows_a_bar_on_one_line(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = shutil.copytree(whole, tmp_path / "finished")
    run(resume=finished)
    assert capsys.readouterr().out == ""

    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    run(resume=finished)
    assert capsys.readouterr().out == f"\r[{'#' * 24}] step {STEPS} of {STEPS}\n"

    monkeypatch.setattr("vitrail.tasks.notebook.EVERY_S", 0.0)
    listen = notebook_progress()
    listen(Started(0, 4))
    listen(Validated(2, {"accuracy": 0.5, "count": 8}, 1.0))
    listen(Stepped(2, 4))
    shown = capsys.readouterr().out.split("\r")[1:]
    assert [line.rstrip() for line in shown] == [
        f"[{'.' * 24}] step 0 of 4",
        f"[{'#' * 12}{'.' * 12}] step 2 of 4, validation accuracy 0.500",
    ]


def test_what_is_done_once_does_not_count_as_loading_of_each_sample() -> None:
    class SlowAtFirst:
        seconds = 0.6

        def __len__(self) -> int:
            return 1000

        def load(self, index: int, generator: None) -> None:
            time.sleep(self.seconds)
            self.seconds = 0.0

    source: Any = SlowAtFirst()
    assert typical_loading_s(source) < 0.1
