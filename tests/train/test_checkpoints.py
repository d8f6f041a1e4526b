"""A run that was killed and resumed ends with the bits of one that never stopped."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from toy import NoisySource, SquaresEvaluator, SquaresObjective, toy_experiment, toy_model, train_toy

from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.core.sealed import read_sealed, write_sealed
from vitrail.tasks.registry import open_run
from vitrail.train import checkpoints
from vitrail.train.budget import Plan
from vitrail.train.checkpoints import (
    Position,
    Selected,
    Selection,
    load_training,
    newest_checkpoint,
    newest_step,
    prune_checkpoints,
    read_metrics,
    save_training,
)
from vitrail.train.events import Event, Kept, StoppedEarly
from vitrail.train.interrupt import TrainingInterrupted
from vitrail.train.loop import TrainResult, fit
from vitrail.train.objective import Loss
from vitrail.train.processes import single_process
from vitrail.train.run import Run
from vitrail.train.settings import Replan, TrainSettings
from vitrail.train.step import TrainStep

SCRIPT = Path(__file__).with_name("killing.py")
MEASURED = {"elapsed_s", "samples_per_s", "peak_memory_mib"}


def metrics(run: Run) -> list[dict[str, Any]]:
    return [{key: value for key, value in entry.items() if key not in MEASURED} for entry in run.metrics()]


KILLED = {
    "to the end": [
        "optim.name=muon",  # and AdamW for what is not a hidden matrix
        "train.steps=37",
        'train.replans=[{"at_step": 5, "steps": 41}, {"at_step": 19, "steps": 31}]',
        "train.checkpoint_every_s=1e-9",  # a checkpoint after each step: most kills hit its writing
    ],
    "early": [
        "optim.learning_rate=0.3",  # too high, so that scores get worse again
        "optim.average=tail",
        "optim.tail_fraction=0.9",
        "train.accumulate=2",
        "train.steps=60",
        "train.validations=20",
        "train.patience=4",
        "train.keep=best",
        "train.checkpoint_every_s=1e-9",
    ],
}


@pytest.fixture(scope="module")
def killed_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of ``KILLED``, killed and whole."""
    folder = tmp_path_factory.mktemp("runs")
    command = [sys.executable, str(SCRIPT), str(folder), json.dumps(KILLED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert all(count >= 5 for count in json.loads(done.stdout).values())
    return folder


def killed_and_whole(folder: Path) -> tuple[Run, Run]:
    """Compare a run that was killed with one that was not: scores, curves and weights must be the same."""
    killed, whole = (open_run(folder / name) for name in ("killed", "whole"))
    assert metrics(killed) == metrics(whole)
    assert killed.experiment == whole.experiment
    name = "model/model.safetensors"
    assert (killed.path / name).read_bytes() == (whole.path / name).read_bytes()
    return killed, whole


def test_a_run_killed_at_any_moment_ends_with_the_same_weights(killed_runs: Path) -> None:
    killed, whole = killed_and_whole(killed_runs / "to the end")
    assert metrics(whole)[-1]["step"] == 31
    name = "checkpoints/step-000031/state.safetensors"
    assert (killed.path / name).read_bytes() == (whole.path / name).read_bytes()
    assert [path.name for path in killed.checkpoints.iterdir()] == ["step-000031"]


def test_a_run_that_stops_early_keeps_its_best_weights_through_every_kill(killed_runs: Path) -> None:
    killed, whole = killed_and_whole(killed_runs / "early")
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


def test_a_cut_off_checkpoint_and_one_of_a_later_version_are_refused(saved: Path) -> None:
    state, tensors = saved / "state.json", saved / "state.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="damaged"):
        load_training(saved, fresh_step())
    write_sealed(state, read_sealed(state) | {"version": 99})
    with pytest.raises(CheckpointError, match="version 99"):
        load_training(saved, fresh_step())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace('"step": 2', '"step": 1'), "does not match its digest"),
        (lambda text: text.replace('"num_since": 0', '"num_since": 1'), "does not match its digest"),
        (lambda text: text[:-9], "cannot be read"),
        (lambda text: unsealed(text, step="two"), "step must be a whole number"),
        (lambda text: unsealed(text, selection=None), "selection must be"),
        (lambda text: unsealed(text, sums={}), "sums must be"),
        (lambda text: unsealed(text, more=1), "more is not a setting"),
        (lambda text: unsealed(text, format=None), "says it is None"),
    ],
)
def test_a_changed_state_is_refused(saved: Path, change: Callable[[str], str], message: str) -> None:
    path = saved / "state.json"
    path.write_text(change(path.read_text()))
    with pytest.raises(CheckpointError, match=message):
        load_training(saved, fresh_step())


def unsealed(text: str, **changes: Any) -> str:
    """Return changed JSON without its digest, as of an older version."""
    return json.dumps(
        {name: value for name, value in (json.loads(text) | changes).items() if name != "digest"}
    )


def test_a_checkpoint_without_digest_and_mark_of_the_metrics_is_read(saved: Path) -> None:
    path = saved / "state.json"
    tree = json.loads(unsealed(path.read_text()))
    del tree["metrics"]
    path.write_text(json.dumps(tree))
    assert load_training(saved, fresh_step()).metrics is None


@pytest.mark.parametrize("threads", [0, 5])
def test_another_number_of_threads_is_warned_about(
    saved: Path, caplog: pytest.LogCaptureFixture, threads: int
) -> None:
    with caplog.at_level(logging.WARNING):
        load_training(saved, fresh_step())
    assert not caplog.records
    path = saved / "state.json"
    write_sealed(path, read_sealed(path) | {"threads": threads})
    with caplog.at_level(logging.WARNING):
        load_training(saved, fresh_step())
    assert f"threads = 1, the run had {threads}" in caplog.text


def test_what_has_the_shape_of_its_parameter_is_sharded_as_it_is(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharded: list[bool] = []

    def sharded_like(stored: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        sharded.append(stored.shape == target.shape)
        return stored

    monkeypatch.setattr(checkpoints, "sharded_like", sharded_like)
    train_step = fresh_step()
    load_training(saved, train_step)
    optimisers = train_step.optimisers
    of_optimisers = [
        tensor.shape == optimisers.parameter(key).shape for key, tensor in optimisers.state().items()
    ]
    num_others = len(train_step.model.state_dict()) + len(train_step.average.tensors())
    assert 0 < sum(of_optimisers) < len(of_optimisers)
    assert sharded == [True] * (num_others + sum(of_optimisers))


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_changed_metrics_are_noticed_by_the_checkpoint(saved: Path, has_checkpoint: bool) -> None:
    run = open_run(saved.parents[1])
    assert read_metrics(run) == run.metrics()
    path = run.path / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[::-1]))
    if has_checkpoint:
        with pytest.raises(CheckpointError, match=r"metrics\.jsonl"):
            read_metrics(run)
    else:
        shutil.rmtree(saved)
        assert read_metrics(run)[0]["step"] == 2


def test_the_newest_complete_checkpoint_counts_and_litter_is_removed(tmp_path: Path) -> None:
    train_step = fresh_step()
    assert newest_checkpoint(tmp_path) is None
    assert newest_step(tmp_path) == 0
    for step in (9, 10):
        (tmp_path / f".step-{step:06d}.writing-1").mkdir(parents=True)
        save_training(
            tmp_path, train_step, Position(step=step, elapsed_s=0.0, scores={}, selection=Selected())
        )
        assert [path.name for path in tmp_path.iterdir()] == [f"step-{step:06d}"]
    (tmp_path / "step-000010").rename(tmp_path / ".step-000010.ready")
    assert newest_step(tmp_path) == 10
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
    (tmp_path / "step-000005").mkdir()
    (tmp_path / ".step-000004.writing-7").mkdir()
    prune_checkpoints(tmp_path, kept=tmp_path / "step-000003")
    assert [path.name for path in tmp_path.iterdir()] == ["step-000003"]


class PeakedObjective(SquaresObjective):
    """The toy's task with a score that rises and falls again while the loss falls."""

    best_by: tuple[str, Literal["max", "min"]] = ("closeness", "max")

    def __init__(self, signal_at: int = 0) -> None:
        self._signal_at, self._calls = signal_at, 0

    def loss(self, model: Any, batch: Any) -> Loss:
        self._calls += 1
        if self._calls == self._signal_at:
            signal.raise_signal(signal.SIGTERM)
        return super().loss(model, batch)

    def evaluator(self) -> SquaresEvaluator:
        return PeakedEvaluator()


class PeakedEvaluator(SquaresEvaluator):
    """Score how close the mean of squares is to a value that training passes."""

    def result(self) -> dict[str, Any]:
        result = super().result()
        return {**result, "closeness": -abs(result["mse"] - 0.3)}


SETTINGS = {
    "train__steps": 60,
    "train__validations": 20,
    "train__checkpoint_every_s": 1e-9,
    "optim__warmup_fraction": 0.5,
}


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power fails here, and most runs write a checkpoint after each step."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def new_run(tmp_path: Path, **changes: Any) -> Run:
    return Run.create(tmp_path, toy_experiment(**(SETTINGS | changes)))


def fit_peaked(run: Run, signal_at: int = 0, **options: Any) -> TrainResult:
    return fit(PeakedObjective(signal_at), toy_model(), NoisySource(31), NoisySource(13), run=run, **options)


def validations(run: Run) -> list[dict[str, Any]]:
    return [entry for entry in run.metrics() if entry["kind"] == "validation"]


def best_of(run: Run) -> dict[str, Any]:
    return max(validations(run), key=lambda entry: entry["scores"]["closeness"])


def stored(run: Run) -> tuple[bytes, dict[str, Any]]:
    folder = run.checkpoints / "best"
    return (folder / "weights.safetensors").read_bytes(), json.loads((folder / "state.json").read_text())


def test_training_stops_when_the_score_has_not_improved_for_as_long_as_patience_lasts(tmp_path: Path) -> None:
    events: list[Event] = []
    run = new_run(tmp_path, train__patience=3)
    result = fit_peaked(run, on_event=events.append)
    best, last = best_of(run), validations(run)[-1]
    assert validations(run)[0] is not best
    assert validations(run).index(last) == validations(run).index(best) + 3
    assert result.steps == result.model_step == last["step"] < 60
    assert run.metrics()[-1]["step"] == last["step"]
    assert open_run(run.path).experiment.train.replans == (Replan(at_step=last["step"], steps=last["step"]),)
    (stopped,) = (event for event in events if isinstance(event, StoppedEarly))
    assert stopped == StoppedEarly(last["step"], 60, best["step"], "closeness", best["scores"]["closeness"])
    assert [path.name for path in run.checkpoints.iterdir()] == [f"step-{last['step']:06d}"]


def test_the_model_is_returned_with_the_weights_of_the_best_validation(tmp_path: Path) -> None:
    events: list[Event] = []
    run = new_run(tmp_path, train__keep="best")
    result = fit_peaked(run, on_event=events.append)
    best = best_of(run)
    assert result.steps == 60  # without patience the plan is fulfilled
    assert best["step"] < 45
    assert result.model_step == best["step"]
    assert result.scores == best["scores"]
    assert events[-1] == Kept(best["step"], 60, best["scores"]["closeness"])
    evaluator, source = PeakedEvaluator(), NoisySource(13)
    batch = SquaresObjective().collate([source.load(index, None) for index in range(13)], None)
    with torch.inference_mode():
        evaluator.update(result.model.eval(), batch)
    assert evaluator.result()["closeness"] == pytest.approx(best["scores"]["closeness"], abs=1e-6)


STOPPING = {"train__patience": 3, "train__keep": "best"}


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, TrainResult]:
    """A run that stopped early and keeps its best weights."""
    run = new_run(tmp_path_factory.mktemp("whole"), **STOPPING)
    return run, fit_peaked(run)


@pytest.mark.parametrize("average", ["ema", "tail"])
def test_a_run_interrupted_anywhere_keeps_and_stops_as_one_that_was_not(tmp_path: Path, average: str) -> None:
    changes = STOPPING | {"optim__average": average}
    whole = new_run(tmp_path, **changes)
    expected = fit_peaked(whole)
    best, last = best_of(whole)["step"], expected.steps
    for signal_at in (best - 1, best, best + 1, last - 1, last):
        run = new_run(tmp_path, **changes)
        if signal_at < last:
            with pytest.raises(TrainingInterrupted):
                fit_peaked(run, signal_at)
        else:  # the signal comes with the step that ends the training
            fit_peaked(run, signal_at)
        result = fit_peaked(open_run(run.path))
        assert metrics(run) == metrics(whole)
        assert stored(run) == stored(whole)
        assert result.model_step == expected.model_step
        for name, tensor in expected.model.state_dict().items():
            assert torch.equal(result.model.state_dict()[name], tensor)


@pytest.mark.parametrize("num_left", [0, 2])
def test_a_power_failure_that_takes_lines_of_the_metrics_changes_neither_weights_nor_stop(
    tmp_path: Path, whole_run: tuple[Run, TrainResult], num_left: int
) -> None:
    (whole, expected), run = whole_run, new_run(tmp_path, **STOPPING)
    with pytest.raises(TrainingInterrupted):
        fit_peaked(run, best_of(whole)["step"] + 4)  # after a validation that was worse than the best
    path = run.path / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:num_left]))
    result = fit_peaked(open_run(run.path))
    assert (result.steps, result.model_step) == (expected.steps, expected.model_step)
    assert result.scores == expected.scores
    assert stored(run) == stored(whole)
    for name, tensor in expected.model.state_dict().items():
        assert torch.equal(result.model.state_dict()[name], tensor)


def test_a_kill_between_the_checkpoint_and_the_best_weights_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, run = (new_run(tmp_path, train__keep="best") for _ in range(2))
    fit_peaked(whole)
    save, best_step = checkpoints.save_best, best_of(whole)["step"]

    def die_at_the_best(root: Path, train_step: Any, best: Any) -> None:
        if best.step == best_step:
            raise RuntimeError("killed")
        save(root, train_step, best)

    monkeypatch.setattr(checkpoints, "save_best", die_at_the_best)
    with pytest.raises(RuntimeError, match="killed"):
        fit_peaked(run)
    assert stored(run)[1]["step"] < best_step
    monkeypatch.undo()
    assert fit_peaked(run).model_step == best_step
    assert stored(run) == stored(whole)


def test_a_repeated_run_stops_where_the_first_one_did(tmp_path: Path) -> None:
    first = new_run(tmp_path, train__patience=3)
    expected = fit_peaked(first).model.state_dict()
    for changes in ({}, {"train.patience": 0}):  # decided again, or only recorded
        again = Run.create(tmp_path, first.experiment.with_changes(changes))
        events: list[Event] = []
        result = fit_peaked(again, on_event=events.append).model.state_dict()
        assert metrics(again) == metrics(first)
        assert again.experiment.train.replans == first.experiment.train.replans
        assert sum(isinstance(event, StoppedEarly) for event in events) == 1
        assert all(torch.equal(result[name], expected[name]) for name in expected)


@pytest.mark.parametrize("average", ["ema", "tail"])
def test_a_run_that_stopped_early_and_went_on_is_repeated_to_the_same_weights(
    tmp_path: Path, average: str
) -> None:
    first = new_run(tmp_path, train__patience=3, optim__average=average)
    stopped = fit_peaked(first)
    Plan(first, single_process(), None).extend(stopped.steps, 30)
    expected = fit_peaked(open_run(first.path))
    assert expected.steps > stopped.steps
    again = Run.create(tmp_path, open_run(first.path).experiment)
    result = fit_peaked(again)
    assert metrics(again) == metrics(first)
    assert result.steps == expected.steps
    weights = expected.model.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in result.model.state_dict().items())


def test_a_finished_run_resumes_to_its_best_weights_at_once(whole_run: tuple[Run, TrainResult]) -> None:
    run, expected = whole_run
    again = fit_peaked(open_run(run.path))
    assert again.steps == expected.steps
    assert again.scores == expected.scores
    assert torch.equal(again.model.state_dict()["head.weight"], expected.model.state_dict()["head.weight"])


@pytest.mark.parametrize("step", [1, 59])
def test_best_weights_of_another_step_are_refused(
    tmp_path: Path, whole_run: tuple[Run, TrainResult], step: int
) -> None:
    run = open_run(shutil.copytree(whole_run[0].path, tmp_path / "run"))
    path = run.checkpoints / "best" / "state.json"
    write_sealed(path, read_sealed(path) | {"step": step})
    with pytest.raises(CheckpointError, match=rf"step {step}\..*the best validation"):
        fit_peaked(run)


def test_damaged_best_weights_are_told_before_the_training_goes_on(tmp_path: Path) -> None:
    run = new_run(tmp_path, train__keep="best", train__steps=60)
    with pytest.raises(TrainingInterrupted):
        fit_peaked(run, best_of(fit_whole(tmp_path))["step"] + 4)
    path = run.checkpoints / "best" / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    events: list[Event] = []
    with pytest.raises(CheckpointError, match=r"weights\.safetensors .* is damaged"):
        fit_peaked(open_run(run.path), on_event=events.append)
    assert events == []


def fit_whole(tmp_path: Path) -> Run:
    run = new_run(tmp_path, train__keep="best", train__steps=60)
    fit_peaked(run)
    return run


@pytest.mark.parametrize("goal", ["max", "min"])
def test_the_earliest_of_equal_scores_is_best_and_what_is_no_number_never(goal: Any) -> None:
    selection = Selection(("a", goal), TrainSettings(steps=1, batch_size=1, patience=3))
    values = [float("nan"), 2.0, None, 2.0, float("inf") if goal == "max" else float("-inf"), 2]
    assert [selection.add(step, {"a": value}) for step, value in enumerate(values)] == [
        False, True, False, False, False, False,
    ]  # fmt: skip
    assert selection.best is not None
    assert selection.best.step == 1
    assert selection.so_far.num_since == 4
    assert selection.is_hopeless
    assert selection.add(9, {"a": 3.0 if goal == "max" else 1.0})
    assert not selection.is_hopeless


@pytest.mark.parametrize("patience", [0, 1, 2])
def test_training_is_hopeless_after_so_many_validations_without_a_better_score(patience: int) -> None:
    selection = Selection(("a", "min"), TrainSettings(steps=1, batch_size=1, patience=patience))
    hopeless = []
    for step in range(4):
        selection.add(step, {"a": 1.0})
        hopeless.append(selection.is_hopeless)
    assert hopeless == [0 < patience <= num_since for num_since in range(4)]


def test_nothing_is_best_where_nothing_is_chosen() -> None:
    selection = Selection(None, TrainSettings(steps=1, batch_size=1))
    assert not selection.add(1, {"a": 1.0})
    assert selection.best is None
    assert selection.stopped_early(1, 2) == StoppedEarly(1, 2, None, None, None)


@pytest.mark.parametrize("changes", [{"train__keep": "best"}, {"train__patience": 2}])
def test_choosing_needs_validations_and_a_score_to_choose_by(tmp_path: Path, changes: dict[str, Any]) -> None:
    class UnrankedObjective:
        collate, loss, evaluator = SquaresObjective.collate, SquaresObjective.loss, SquaresObjective.evaluator

    run = new_run(tmp_path, **changes)
    with pytest.raises(ConfigError, match="nothing is validated"):
        fit(SquaresObjective(), toy_model(), NoisySource(31), None, run=run)
    with pytest.raises(ConfigError, match="UnrankedObjective names no score"):
        fit(UnrankedObjective(), toy_model(), NoisySource(31), NoisySource(13), run=run)
    never = new_run(tmp_path, **changes, train__validations=0)
    with pytest.raises(ConfigError, match="nothing is validated"):
        fit_peaked(never)
