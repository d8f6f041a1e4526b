"""A run that was killed and resumed ends with the bits of one that never stopped."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import NoisySource, SquaresObjective, toy_experiment, toy_model, train_toy

from vitrail.core.errors import CheckpointError
from vitrail.tasks.registry import open_run
from vitrail.train.checkpoints import (
    Position,
    load_training,
    newest_checkpoint,
    prune_checkpoints,
    save_training,
)
from vitrail.train.processes import single_process
from vitrail.train.run import Run
from vitrail.train.settings import Replan
from vitrail.train.step import TrainStep

SCRIPT = Path(__file__).with_name("killing.py")
MEASURED = {"elapsed_s", "samples_per_s", "peak_memory_mib"}


def metrics(run: Run) -> list[dict[str, Any]]:
    return [{key: value for key, value in entry.items() if key not in MEASURED} for entry in run.metrics()]


def killed_and_whole(tmp_path: Path, settings: list[str]) -> tuple[Run, Run]:
    """Train with and without being killed; the scores, curves and weights must be the same."""
    command = [sys.executable, str(SCRIPT), str(tmp_path / "runs"), *settings]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 5
    killed, whole = (open_run(tmp_path / "runs" / name) for name in ("killed", "whole"))
    assert metrics(killed) == metrics(whole)
    assert killed.experiment == whole.experiment
    name = "model/model.safetensors"
    assert (killed.path / name).read_bytes() == (whole.path / name).read_bytes()
    return killed, whole


def test_a_run_killed_at_any_moment_ends_with_the_same_weights(tmp_path: Path) -> None:
    settings = [
        "optim.name=muon",  # and AdamW for what is no hidden matrix
        "train.steps=37",
        'train.replans=[{"at_step": 5, "steps": 41}, {"at_step": 19, "steps": 31}]',
        "train.checkpoint_every_s=1e-9",  # a checkpoint after each step: most kills hit its writing
    ]
    killed, whole = killed_and_whole(tmp_path, settings)
    assert metrics(whole)[-1]["step"] == 31
    name = "checkpoints/step-000031/state.safetensors"
    assert (killed.path / name).read_bytes() == (whole.path / name).read_bytes()
    assert [path.name for path in killed.checkpoints.iterdir()] == ["step-000031"]


def test_a_run_that_stops_early_keeps_its_best_weights_through_every_kill(tmp_path: Path) -> None:
    settings = [
        "optim.learning_rate=0.3",  # too high, so that scores get worse again
        "optim.average=tail",
        "optim.tail_fraction=0.9",
        "train.accumulate=2",
        "train.steps=60",
        "train.validations=20",
        "train.patience=4",
        "train.keep=best",
        "train.checkpoint_every_s=1e-9",
    ]
    killed, whole = killed_and_whole(tmp_path, settings)
    validations = [entry for entry in metrics(whole) if entry["kind"] == "validation"]
    best = min(validations, key=lambda entry: entry["scores"]["mse"])
    assert best is validations[-5]
    assert whole.experiment.train.replans == (
        Replan(at_step=validations[-1]["step"], steps=validations[-1]["step"]),
    )
    name = "checkpoints/best/weights.safetensors"
    assert (killed.path / name).read_bytes() == (whole.path / name).read_bytes()
    last = f"step-{validations[-1]['step']:06d}"
    assert {path.name for path in killed.checkpoints.iterdir()} == {last, "best"}
    about = json.loads((killed.path / "model" / "model.json").read_text())["about"]
    assert about["scores"] == best["scores"]


def test_dropout_and_noise_matter_to_the_comparison(tmp_path: Path) -> None:
    first = train_toy(tmp_path / "a", single_process(), ["train.steps=3"])
    other = train_toy(tmp_path / "b", single_process(), ["train.steps=3"], dropout=0.0)
    again = train_toy(tmp_path / "c", single_process(), ["train.steps=3"])
    assert metrics(first) != metrics(other)
    assert metrics(first) == metrics(again)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint after two steps."""
    train_toy(tmp_path / "run", single_process(), ["train.steps=2"])
    folder = newest_checkpoint(tmp_path / "run" / "checkpoints")
    assert folder is not None
    return folder


def fresh_step(dim: int = 7) -> TrainStep:
    model = toy_model()
    if dim != 7:
        model.head = torch.nn.Linear(7, 3)
    return TrainStep(SquaresObjective(), model, toy_experiment(), single_process())


def test_a_checkpoint_brings_back_step_and_sums(saved: Path) -> None:
    train_step = fresh_step()
    position = load_training(saved, train_step)
    assert position.step == 2
    assert position.elapsed_s > 0
    assert train_step.optimisers.state()["head.weight/step"] == 2


def test_a_checkpoint_of_another_model_is_refused(saved: Path) -> None:
    with pytest.raises(CheckpointError, match=r"head\.weight is \(1, 7\), not \(3, 7\)"):
        load_training(saved, fresh_step(dim=3))


def test_a_cut_off_checkpoint_is_refused(saved: Path) -> None:
    path = saved / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="damaged"):
        load_training(saved, fresh_step())


def test_a_checkpoint_of_a_later_version_is_refused(saved: Path) -> None:
    path = saved / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 99}))
    with pytest.raises(CheckpointError, match="version 99"):
        load_training(saved, fresh_step())


def test_another_number_of_threads_is_warned_about(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load_training(saved, fresh_step())
    assert not caplog.records
    path = saved / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"threads": 5}))
    with caplog.at_level(logging.WARNING):
        load_training(saved, fresh_step())
    assert "threads = 1, the run had 5" in caplog.text


def test_the_newest_complete_checkpoint_counts_and_litter_is_removed(tmp_path: Path) -> None:
    train_step = fresh_step()
    assert newest_checkpoint(tmp_path) is None
    for step in (9, 10):
        (tmp_path / f".step-{step:06d}.writing-1").mkdir(parents=True)
        save_training(tmp_path, train_step, Position(step, 0.0, {}, {}))
        assert [path.name for path in tmp_path.iterdir()] == [f"step-{step:06d}"]
    (tmp_path / "step-000010").rename(tmp_path / ".step-000010.ready")
    assert newest_checkpoint(tmp_path) == tmp_path / "step-000010"


def test_a_finished_run_resumes_to_its_result_at_once(tmp_path: Path) -> None:
    train_toy(tmp_path / "run", single_process(), ["train.steps=2"])
    weights = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    run = train_toy(tmp_path / "run", single_process())
    assert (run.path / "model" / "model.safetensors").read_bytes() == weights
    about = json.loads((run.path / "model" / "model.json").read_text())["about"]
    assert about["steps"] == 2
    assert about["scores"]["count"] == len(NoisySource(13))


def test_what_a_kill_left_of_older_checkpoints_is_removed_on_resuming(tmp_path: Path) -> None:
    (tmp_path / "step-000002").mkdir()
    (tmp_path / "step-000003").mkdir()
    (tmp_path / ".step-000004.writing-7").mkdir()

    prune_checkpoints(tmp_path, kept=tmp_path / "step-000003")

    assert [path.name for path in tmp_path.iterdir()] == ["step-000003"]
