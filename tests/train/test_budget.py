"""Stopping in time, with a clock that the test turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from toy import NoisySource, SquaresObjective, toy_experiment, toy_model

from vitrail.core.errors import ConfigError
from vitrail.tasks.registry import open_run
from vitrail.train.budget import Deadline, calibrate, steps_for_budget
from vitrail.train.events import Event, Replanned, Stepped, Validated
from vitrail.train.loop import fit
from vitrail.train.processes import single_process
from vitrail.train.run import Run


class FakeClock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class TickingObjective(SquaresObjective):
    """The toy's task on a machine where the n-th training step takes ``seconds(n)``."""

    def __init__(self, clock: FakeClock, seconds: Any) -> None:
        self._clock, self._seconds, self.num_steps = clock, seconds, 0

    def loss(self, model: Any, batch: Any) -> Any:
        self._clock.now += self._seconds(self.num_steps)
        self.num_steps += 1
        return super().loss(model, batch)


def run_with(tmp_path: Path, seconds: Any, *, steps: int, budget_s: float) -> tuple[Run, float, list[Event]]:
    """Train with a deadline; return the run, the time taken and the events."""
    clock, events = FakeClock(), list[Event]()
    run = Run.create(tmp_path, toy_experiment(train__steps=steps), {})
    started = clock()
    fit(
        TickingObjective(clock, seconds),
        toy_model(),
        NoisySource(31),
        NoisySource(7),
        run=run,
        on_event=events.append,
        deadline=Deadline(started + budget_s, clock=clock),
    )
    return run, clock() - started, events


def last_step(events: list[Event]) -> int:
    return max(event.step for event in events if isinstance(event, Stepped))


def test_a_machine_as_fast_as_calibrated_keeps_the_plan(tmp_path: Path) -> None:
    run, taken, events = run_with(tmp_path, lambda step: 0.1, steps=100, budget_s=10.05)
    assert run.experiment.train.replans == ()
    assert last_step(events) == 100
    assert taken == pytest.approx(10.0)


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(lambda step: 0.2, id="twice as slow from the start"),
        pytest.param(lambda step: 0.1 if step < 40 else 0.3, id="slower later"),
        pytest.param(lambda step: 0.1 if step % 30 else 3.0, id="stalls"),
        pytest.param(lambda step: 0.1 * (1 + step / 50), id="slower and slower"),
    ],
)
def test_a_slower_machine_stops_in_time_and_uses_the_time(tmp_path: Path, seconds: Any) -> None:
    run, taken, events = run_with(tmp_path, seconds, steps=100, budget_s=10.0)
    assert 8.0 < taken < 10.6
    replans = run.experiment.train.replans
    assert replans
    assert last_step(events) == replans[-1].steps < 100
    assert isinstance(events[-2], Validated) or isinstance(events[-1], Validated)
    assert max(event.step for event in events if isinstance(event, Validated)) == replans[-1].steps


def test_replans_are_on_the_disk_and_announced(tmp_path: Path) -> None:
    run, _, events = run_with(tmp_path, lambda step: 0.2, steps=100, budget_s=10.0)
    announced = [(event.step, event.steps) for event in events if isinstance(event, Replanned)]
    stored = [(replan.at_step, replan.steps) for replan in open_run(run.path).experiment.train.replans]
    assert announced == stored


def test_a_repeated_run_replays_the_replans_to_the_same_weights(tmp_path: Path) -> None:
    run, _, _ = run_with(tmp_path, lambda step: 0.3, steps=60, budget_s=10.0)
    again = Run.create(tmp_path, run.experiment, {})
    model = toy_model()
    result = fit(SquaresObjective(), model, NoisySource(31), NoisySource(7), run=again)
    assert result.steps == run.experiment.train.replans[-1].steps
    losses = [
        [entry["loss"] for entry in each.metrics() if entry["kind"] == "train"] for each in (run, again)
    ]
    assert losses[0] == losses[1]


def test_a_much_faster_machine_gets_one_extension(tmp_path: Path) -> None:
    run, taken, events = run_with(tmp_path, lambda step: 0.06, steps=100, budget_s=10.0)
    assert len(run.experiment.train.replans) == 1
    assert run.experiment.train.replans[0].at_step == 5
    assert 150 < last_step(events) < 167
    assert 9.0 < taken < 10.0


def test_time_that_other_work_took_for_a_while_is_used_when_it_has_gone(tmp_path: Path) -> None:
    run, taken, events = run_with(tmp_path, lambda step: 0.3 if step < 10 else 0.1, steps=97, budget_s=10.0)
    shortest = min(replan.steps for replan in run.experiment.train.replans)
    assert shortest < 60
    assert last_step(events) > 70
    assert 9.0 < taken < 10.0


def test_a_plan_is_not_lengthened_near_its_end(tmp_path: Path) -> None:
    run, _, events = run_with(tmp_path, lambda step: 0.1 if step < 81 else 0.02, steps=100, budget_s=10.1)
    assert run.experiment.train.replans == ()
    assert last_step(events) == 100


def test_pauses_still_to_come_are_counted_and_past_ones_are_not() -> None:
    clock = FakeClock()
    deadline = Deadline(clock() + 20.0, clock=clock)
    deadline.begin(0)
    clock.now += 6.0
    deadline.pause(5.0)
    # 10 steps took 1 second without the pause; 14 seconds are left, of which 10 for pauses: 40 steps.
    assert deadline.review(10, 110, progress=0.5, pauses_left_s=10.0) == 50
    assert deadline.review(10, 50, progress=0.5, pauses_left_s=0.0) == 50


def test_past_the_deadline_one_last_step_is_planned() -> None:
    clock = FakeClock()
    deadline = Deadline(clock() + 1.0, clock=clock)
    clock.now += 5.0
    assert deadline.review(5, 100, progress=0.05, pauses_left_s=0.0) == 6


def test_steps_fill_the_time_left_less_the_reserve() -> None:
    assert steps_for_budget(100.0, 0.5, 20.0) == 160


def test_a_budget_in_which_no_step_fits_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"takes 0\.50 s.*11 s more for one step, 60 s for 100.*longer --budget"
    ):
        steps_for_budget(20.0, 0.5, 30.0)


def test_calibration_measures_the_later_steps_and_leaves_the_model_alone() -> None:
    clock, model = FakeClock(), toy_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    task = TickingObjective(clock, lambda step: {0: 9.0, 1: 2.0, 7: 50.0}.get(step, 0.5))
    times = calibrate(
        task,
        model,
        NoisySource(31),
        NoisySource(7),
        experiment=toy_experiment(),
        processes=single_process(),
        seconds=5.0,
        clock=clock,
    )
    assert times.start_s == pytest.approx(9.0)
    assert times.step_s == pytest.approx(0.5)
    assert task.num_steps == 13
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_calibration_takes_its_steps_in_parts() -> None:
    clock = FakeClock()
    task = TickingObjective(clock, lambda step: 0.25)
    times = calibrate(
        task,
        toy_model(),
        NoisySource(31),
        None,
        experiment=toy_experiment(train__accumulate=3),
        processes=single_process(),
        seconds=5.0,
        clock=clock,
    )
    assert times.step_s == pytest.approx(0.75)
    assert task.num_steps == 3 * (3 + 6)
