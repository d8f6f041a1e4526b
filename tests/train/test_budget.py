"""Stopping in time, with a clock that the test turns."""

from __future__ import annotations

import importlib
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


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.getloadavg", lambda: (0.0, 0.0, 0.0))


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
    run = Run.create(tmp_path, toy_experiment(train__steps=steps))
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


@pytest.mark.parametrize("slower_from", [25, 50, 75])
def test_a_machine_of_half_the_speed_overruns_by_three_percent_at_most(
    tmp_path: Path, slower_from: int
) -> None:
    _, taken, _ = run_with(
        tmp_path, lambda step: 0.1 if step < slower_from else 0.2, steps=100, budget_s=10.0
    )
    assert 9.0 < taken < 10.3


def test_replans_are_on_the_disk_and_announced(tmp_path: Path) -> None:
    run, _, events = run_with(tmp_path, lambda step: 0.2, steps=100, budget_s=10.0)
    announced = [(event.step, event.steps) for event in events if isinstance(event, Replanned)]
    stored = [(replan.at_step, replan.steps) for replan in open_run(run.path).experiment.train.replans]
    assert announced == stored


def test_a_repeated_run_replays_the_replans_to_the_same_weights(tmp_path: Path) -> None:
    run, _, _ = run_with(tmp_path, lambda step: 0.3, steps=60, budget_s=10.0)
    again = Run.create(tmp_path, run.experiment)
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
    assert run.experiment.train.replans[0].at_step == 10  # after half a second
    assert 150 < last_step(events) < 167
    assert 9.0 < taken < 10.0


def test_time_that_other_work_took_for_a_while_is_used_when_it_has_gone(tmp_path: Path) -> None:
    run, taken, events = run_with(tmp_path, lambda step: 0.3 if step < 10 else 0.1, steps=97, budget_s=10.0)
    shortest = min(replan.steps for replan in run.experiment.train.replans)
    assert shortest < 60
    assert last_step(events) > 70
    assert 9.0 < taken < 10.0


def test_a_plan_is_not_lengthened_near_its_end(tmp_path: Path) -> None:
    run, _, events = run_with(tmp_path, lambda step: 0.1 if step < 96 else 0.02, steps=100, budget_s=10.1)
    assert run.experiment.train.replans == ()
    assert last_step(events) == 100


def test_pauses_still_to_come_are_counted_and_past_ones_are_not() -> None:
    clock = FakeClock()
    deadline = Deadline(clock() + 20.0, clock=clock)
    deadline.begin(0)
    clock.now += 6.0
    deadline.pause(5.0)
    # 10 steps took 1 second without the pause; 14 seconds are left, of which 10 for pauses: 40 steps.
    assert deadline.review(10, 80, progress=0.5, num_pauses=2) == 50
    assert deadline.review(10, 50, progress=0.5, num_pauses=0) == 50


def test_what_follows_training_is_estimated_anew_from_the_speed_of_the_machine() -> None:
    clock = FakeClock()
    deadline = Deadline(clock() + 30.0, after_s=lambda step_s: 50 * step_s, pause_s=1.0, clock=clock)
    deadline.begin(0)
    assert deadline.left_s(0.1, 3) == pytest.approx(22.0)
    clock.now += 2.0
    # A step takes 0.2 seconds: 28 are left, 10 of them for the evaluation and 3 for pauses.
    assert deadline.review(10, 110, progress=0.1, num_pauses=3) == 10 + 75


def test_past_the_deadline_one_last_step_is_planned() -> None:
    clock = FakeClock()
    deadline = Deadline(clock() + 1.0, clock=clock)
    clock.now += 5.0
    assert deadline.review(5, 100, progress=0.05, num_pauses=0) == 6


@pytest.mark.parametrize("halved_at", [0.1, 0.3, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95])
@pytest.mark.parametrize(("budget_s", "step_s"), [(60.0, 0.1), (600.0, 2.0)])
def test_a_machine_that_becomes_half_as_fast_keeps_the_budget(
    tmp_path: Path, halved_at: float, budget_s: float, step_s: float
) -> None:
    clock, experiment = FakeClock(), toy_experiment(train__steps=int(0.9 * budget_s / step_s))
    start, after_steps = clock(), int(0.05 * budget_s / step_s)

    def seconds(_: int) -> float:
        return step_s * (2 if clock() > start + halved_at * budget_s else 1)

    def after_s(now_s: float) -> float:
        return max(after_steps * now_s, 2 * after_steps * step_s - 0.03 * budget_s)

    deadline = Deadline(start + budget_s, after_s=after_s, clock=clock)
    objective, data = TickingObjective(clock, seconds), (NoisySource(31), NoisySource(7))
    run = Run.create(tmp_path, experiment)
    fit(objective, toy_model(), *data, run=run, deadline=deadline)
    over_s = clock() + after_steps * seconds(0) - start - budget_s
    assert -0.1 * budget_s < over_s < 0.03 * budget_s


@pytest.mark.parametrize("every", [15, 40, 160])
def test_steps_that_other_programs_hold_up_now_and_then_do_not_end_a_run(tmp_path: Path, every: int) -> None:
    clock, budget_s = FakeClock(), 30.0
    experiment = toy_experiment(train__steps=int(0.9 * budget_s / 0.03))

    def seconds(step: int) -> float:
        return 0.6 if step % every == every - 1 else 0.03

    deadline = Deadline(clock() + budget_s, after_s=lambda step_s: 40 * step_s, clock=clock)
    started = clock()
    run = Run.create(tmp_path, experiment, ())
    fit(TickingObjective(clock, seconds), toy_model(), NoisySource(31), None, run=run, deadline=deadline)
    assert 0.75 * budget_s < clock() - started < 1.03 * budget_s


def test_steps_fill_the_time_left() -> None:
    assert steps_for_budget(100.0, {"start": 15.0, "report": 5.0}, 0.5) == 160


@pytest.mark.parametrize(
    ("left_s", "message"),
    [
        (4.9, r"20s are enough for 9 training steps: one takes about 0\.5s, start 12s, report 3\.1s\. Exp"),
        (-9.0, r"enough for 0 training steps: .*Give --budget 2m, or a smaller model"),
    ],
)
@pytest.mark.parametrize("load", [0.0, 1e6])
def test_a_budget_of_too_few_steps_is_refused(
    left_s: float, message: str, load: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psutil.getloadavg", lambda: (load, 0.0, 0.0))
    with pytest.raises(ConfigError, match=message) as caught:
        steps_for_budget(20.0, {"start": 12.0, "report": 8.0 - left_s}, 0.5)
    assert ("Other programs slow this machine: load 1000000 on" in str(caught.value)) == (load > 0)


@pytest.mark.parametrize(("seconds", "sizes"), [(10.0, {2, 4}), (60.0, {2, 4, 8}), (1e6, {2, 24})])
def test_parts_of_steps_are_measured_where_whole_ones_take_too_long(seconds: float, sizes: set[int]) -> None:
    clock, seen = FakeClock(), set[int]()

    class Slow(TickingObjective):
        def loss(self, model: Any, batch: Any) -> Any:
            seen.add(len(batch))
            clock.now += 1.0 * len(batch)
            return super().loss(model, batch)

    objective = Slow(clock, lambda step: 0.5)
    times = calibrate(
        objective,
        toy_model(),
        NoisySource(31),
        NoisySource(7),
        experiment=toy_experiment(train__batch_size=24, train__validations=2),
        processes=single_process(),
        seconds=seconds,
        clock=clock,
    )
    assert times.step_s == pytest.approx(24.5)
    assert seen == sizes


@pytest.mark.parametrize(("sample_s", "longest_s"), [(0.46, 57.0), (0.9, 57.0), (1.2, 57.0), (0.07, 4.0)])
def test_a_step_that_is_too_long_is_known_in_five_seconds(sample_s: float, longest_s: float) -> None:
    clock = FakeClock()

    class Slow(TickingObjective):
        def loss(self, model: Any, batch: Any) -> Any:
            clock.now += sample_s * len(batch)
            return super().loss(model, batch)

    times = calibrate(
        Slow(clock, lambda step: 0.05),
        toy_model(),
        NoisySource(256),
        None,
        experiment=toy_experiment(train__batch_size=128 if longest_s > 10 else 64),
        processes=single_process(),
        seconds=0.3 * longest_s,  # 3 % of a budget of ten such steps
        longest_s=longest_s,
        clock=clock,
    )
    assert times.step_s > longest_s
    assert clock() - 100.0 < 5.0


@pytest.mark.parametrize(("rate_of_one", "num_threads"), [(3.0, 1), (0.5, 2)])
def test_where_other_programs_have_the_cores_threads_and_two_sizes_are_tried(
    monkeypatch: pytest.MonkeyPatch, rate_of_one: float, num_threads: int
) -> None:
    def product_rates(*_: object) -> list[float]:
        return [rate_of_one if torch.get_num_threads() == 1 else 1.0]

    monkeypatch.setattr("psutil.getloadavg", lambda: (1e6, 0.0, 0.0))
    monkeypatch.setattr(importlib.import_module("vitrail.train.machine"), "_product_rates", product_rates)
    former, clock, seen = torch.get_num_threads(), FakeClock(), list[int]()
    waits = [7.0, 1.2, 3.0, 1.3]  # of three steps of 2 samples, and of one of 4

    def seconds(step: int) -> float:
        seen.append(torch.get_num_threads())
        return waits[step]

    torch.set_num_threads(2)
    try:
        times = calibrate(
            TickingObjective(clock, seconds),
            toy_model(),
            NoisySource(256),
            None,
            experiment=toy_experiment(train__batch_size=128),
            processes=single_process(),
            seconds=1.8,
            longest_s=4.0,
            clock=clock,
        )
    finally:
        torch.set_num_threads(former)
    assert seen == [num_threads] * 4
    assert times.step_s == pytest.approx(1.3 + 2 * 0.1 * 31)  # and not 64 times 1.2


def test_calibration_measures_the_later_steps_and_leaves_the_model_alone() -> None:
    clock, model = FakeClock(), toy_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    seconds = {2: 9.0, 3: 2.0, 9: 50.0}  # the first two are parts of a step
    task = TickingObjective(clock, lambda step: seconds.get(step, 0.5))
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
    assert task.num_steps == 2 + 13
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
