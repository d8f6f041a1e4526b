"""The loop: learning, recording, stopping, refusing."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import NoisySource, SquaresObjective, toy_experiment, toy_model

from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.data.stream import StandIn
from vitrail.tasks.registry import open_run
from vitrail.train import checkpoints, loop
from vitrail.train.events import Event, Logged, Saved, Started, Stepped, Validated
from vitrail.train.interrupt import TrainingInterrupted
from vitrail.train.loop import Meter, fit
from vitrail.train.objective import Loss
from vitrail.train.processes import Processes, single_process
from vitrail.train.run import Run
from vitrail.train.settings import Experiment
from vitrail.train.step import TrainStep


def fit_toy(run: Run, task: Any = None, **options: Any) -> Any:
    return fit(task or SquaresObjective(), toy_model(), NoisySource(31), NoisySource(13), run=run, **options)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path, toy_experiment())


def new_run(tmp_path: Path, experiment: Experiment) -> Run:
    return Run.create(tmp_path, experiment)


def test_training_lowers_the_validation_loss(tmp_path: Path) -> None:
    result = fit_toy(new_run(tmp_path, toy_experiment(train__steps=150, train__validations=50)))
    lines = [entry["scores"]["mse"] for entry in new_metrics(tmp_path, "validation")]
    assert result.scores["mse"] == lines[-1] < 0.5 * lines[0]


def new_metrics(tmp_path: Path, kind: str) -> list[dict[str, Any]]:
    (path,) = tmp_path.iterdir()
    return [entry for entry in open_run(path).metrics() if entry["kind"] == kind]


def test_events_come_in_order_and_agree_with_the_metrics(run: Run) -> None:
    events: list[Event] = []
    fit_toy(run, on_event=events.append)
    assert isinstance(events[0], Saved)
    assert events[1] == Started(0, 23)
    assert [event.step for event in events if isinstance(event, Stepped)] == list(range(1, 24))
    assert [event.step for event in events if isinstance(event, Validated)] == [8, 16, 23]
    assert isinstance(events[-1], Saved)
    first, *_ = logged = [event for event in events if isinstance(event, Logged)]
    assert 0.0 < first.parts["absolute"] ** 2 <= first.loss < 5.0  # means over items
    assert [event._asdict() for event in logged] == [
        {key: value for key, value in entry.items() if key != "kind"}
        for entry in run.metrics()
        if entry["kind"] == "train"
    ]


def test_without_average_and_validation_the_last_weights_are_returned(tmp_path: Path) -> None:
    run = new_run(tmp_path, toy_experiment(optim__ema_fraction=0.0, train__steps=3))
    result = fit(SquaresObjective(), toy_model(), NoisySource(31), None, run=run)
    assert result.scores == {}
    assert result.steps == 3


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_weights_stay_float32_in_either_precision(tmp_path: Path, precision: str) -> None:
    result = fit_toy(new_run(tmp_path, toy_experiment(train__precision=precision, train__steps=5)))
    assert {tensor.dtype for tensor in result.model.state_dict().values()} == {torch.float32}
    assert result.scores["count"] == 13


def test_workers_give_the_batches_of_the_training_process(tmp_path: Path) -> None:
    losses = []
    for num_workers in (0, 2):
        run = new_run(tmp_path, toy_experiment(train__steps=4, train__num_workers=num_workers))
        fit(SquaresObjective(), toy_model(), NoisySource(31), None, run=run)
        losses.append([entry["loss"] for entry in run.metrics()])
    assert losses[0] == losses[1]


class SignallingObjective(SquaresObjective):
    """Send a signal to this process in the fifth step."""

    def __init__(self, number: int) -> None:
        self._number, self._calls = number, 0

    def loss(self, model: Any, batch: Any) -> Loss:
        self._calls += 1
        if self._calls == 5:
            os.kill(os.getpid(), self._number)
        return super().loss(model, batch)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_saves_and_says_how_to_go_on(run: Run, number: int) -> None:
    handler = signal.getsignal(number)
    with pytest.raises(TrainingInterrupted, match=r"step 5 of 23.*--resume") as caught:
        fit_toy(run, SignallingObjective(number))
    assert caught.value.step == 5
    assert signal.getsignal(number) is handler
    newest = checkpoints.newest_checkpoint(run.checkpoints)
    assert newest is not None
    assert newest.name == "step-000005"


def test_it_trains_outside_the_main_thread(run: Run) -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(fit_toy(run)))
    thread.start()
    thread.join()
    assert results[0].steps == 23


class DivergingObjective(SquaresObjective):
    """Give NaN in the fourth step."""

    def __init__(self) -> None:
        self._calls = 0

    def loss(self, model: Any, batch: Any) -> Loss:
        self._calls += 1
        loss = super().loss(model, batch)
        return loss._replace(total=loss.total * (float("nan") if self._calls == 4 else 1.0))


@pytest.mark.parametrize("interval", [1, 100])
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(
    run: Run, interval: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_LOGGED_LINES", 23 / interval)
    with pytest.raises(ConfigError, match=r"NaN at step 4 of 23.*learning_rate.*step 0 .* is kept"):
        fit_toy(run, DivergingObjective())
    assert checkpoints.newest_checkpoint(run.checkpoints) == run.checkpoints / "step-000000"


def test_a_full_disk_keeps_the_former_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(tmp_path, toy_experiment(train__checkpoint_every_s=1e-9))
    write = checkpoints.write_durably

    def fail_after_three_steps(path: Path, content: bytes | str) -> None:
        if "step-000004" in str(path):
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(checkpoints, "write_durably", fail_after_three_steps)
    with pytest.raises(CheckpointError, match="No space left"):
        fit_toy(run)
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-000003"]
    monkeypatch.undo()
    assert fit_toy(run).steps == 23


def test_a_batch_smaller_than_the_number_of_processes_is_refused(tmp_path: Path) -> None:
    run = new_run(tmp_path, toy_experiment(train__batch_size=2))
    with pytest.raises(ConfigError, match=r"batch_size is 2 for 3 processes"):
        fit_toy(run, processes=Processes(0, 3, torch.device("cpu")))
    parts = new_run(tmp_path, toy_experiment(train__batch_size=5, train__accumulate=6))
    with pytest.raises(ConfigError, match=r"batch_size is 5 for 1 processes with 6 micro-batches each"):
        fit_toy(parts)


class TokensObjective(SquaresObjective):
    """Say that what the loss counts are tokens, two for each sample."""

    unit = "tokens"

    def loss(self, model: Any, batch: Any) -> Loss:
        loss = super().loss(model, batch)
        return loss._replace(count=2 * loss.count)


def test_rates_are_of_samples_and_of_what_the_loss_counts_instead(tmp_path: Path) -> None:
    events: list[Event] = []
    fit_toy(new_run(tmp_path, toy_experiment(train__accumulate=2)), on_event=events.append)
    fit_toy(new_run(tmp_path, toy_experiment()), TokensObjective(), on_event=events.append)
    logged = [event for event in events if isinstance(event, Logged)]
    assert all(event.unit == "samples" and event.items_per_s is None for event in logged[:23])
    assert all(event.unit == "tokens" for event in logged[23:])
    assert all(event.items_per_s == pytest.approx(2 * event.samples_per_s) for event in logged[23:])
    assert all(event.samples_per_s > 0 for event in logged)


def test_metrics_are_valid_json_even_when_a_score_is_not_finite(run: Run) -> None:
    run.log(kind="validation", step=1, scores={"a": float("nan"), "b": [float("inf"), 2.0]})
    assert run.metrics()[0]["scores"] == {"a": None, "b": [None, 2.0]}
    assert "NaN" not in json.dumps(run.metrics())


class PartsObjective(SquaresObjective):
    """Count four items for each sample."""

    def loss(self, model: torch.nn.Module, batch: object) -> Loss:
        loss = super().loss(model, batch)
        return loss._replace(count=loss.count * 4)


def test_rates_are_of_samples_and_items_since_the_last_reading_without_pauses() -> None:
    moment = 100.0
    train_step = TrainStep(PartsObjective(), toy_model(), toy_experiment(), single_process())
    source = NoisySource(31)
    batch = train_step.objective.collate([source.load(index, None) for index in range(3)], None)
    plan = toy_experiment().train
    train_step([batch], 0, plan)  # before the run was resumed
    meter = Meter(train_step, clock=lambda: moment)
    for step in (1, 2):
        meter.add([batch, StandIn(batch)])
        train_step([batch, StandIn(batch)], step, plan)
    moment += 5.0
    meter.pause(3.0)
    assert meter.read() == (3.0, 12.0)
    train_step.clear_sums()
    moment += 4.0
    meter.add([batch])
    train_step([batch], 3, plan)
    assert meter.read() == (0.75, 3.0)
