"""Progress and rates as functions of the step."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.train.optimise import averaging_weight
from vitrail.train.schedule import is_crossed, planned_steps, progress_at, rate_of, steps_past
from vitrail.train.settings import OptimSettings, Replan


@st.composite
def plans(draw: st.DrawFn) -> tuple[int, tuple[Replan, ...]]:
    steps = first = draw(st.integers(1, 60))
    at_step, replans = 0, []
    for _ in range(draw(st.integers(0, 4))):
        if at_step + 1 >= steps:
            break
        at_step = draw(st.integers(at_step + 1, steps - 1))
        steps = draw(st.integers(at_step + 1, at_step + 60))
        replans.append(Replan(at_step=at_step, steps=steps))
    return first, tuple(replans)


def course_of(plan: tuple[int, tuple[Replan, ...]]) -> list[float]:
    """Return the progress after each step, from 0 to the last planned one."""
    steps, replans = plan
    last = replans[-1].steps if replans else steps
    return [progress_at(step, steps=steps, replans=replans) for step in range(last + 1)]


@given(plans())
def test_progress_rises_from_0_and_reaches_1_at_the_last_planned_step_only(plan) -> None:
    course = course_of(plan)
    assert course[0] == 0.0
    assert course[-1] == 1.0
    assert all(before < after for before, after in itertools.pairwise(course))


@given(plans())
def test_a_replan_changes_no_progress_made_until_its_step(plan) -> None:
    steps, replans = plan
    for count, replan in enumerate(replans):
        for step in range(replan.at_step + 1):
            before = progress_at(step, steps=steps, replans=replans[:count])
            assert progress_at(step, steps=steps, replans=replans[: count + 1]) == before


def test_the_plan_in_force_changes_at_the_replan() -> None:
    replans = (Replan(at_step=5, steps=7), Replan(at_step=6, steps=11))
    planned = [planned_steps(step, steps=13, replans=replans) for step in (0, 4, 5, 6, 10)]
    assert planned == [13, 13, 7, 11, 11]


@pytest.mark.parametrize(("progress", "rate"), [(0.0, 0.0), (0.1, 0.5), (0.2, 1.0), (0.6, 0.55), (1.0, 0.1)])
def test_the_rate_rises_linearly_and_falls_along_a_cosine_to_its_end(progress: float, rate: float) -> None:
    assert rate_of(OptimSettings(warmup_fraction=0.2, final_rate=0.1), progress) == pytest.approx(rate)


@pytest.mark.parametrize("step", [1, 40, 100, 101, 400, 1000])
def test_the_inverse_square_root_is_the_papers_formula_as_a_share_of_its_peak(step: int) -> None:
    # Vaswani et al. 2017, eq. 3, for any width: its peak is at the end of the warm-up.
    warmup, steps = 100, 1000
    expected = min(step**-0.5, step * warmup**-1.5) / warmup**-0.5
    settings = OptimSettings(warmup_fraction=warmup / steps, schedule="inverse_sqrt")
    assert rate_of(settings, step / steps) == pytest.approx(expected)


@given(plans(), st.sampled_from(["cosine", "inverse_sqrt"]))
def test_a_replan_changes_no_rate_of_a_step_before_it_and_leaves_no_gap(plan, schedule) -> None:
    steps, replans = plan

    def rates(count: int, upto: int) -> list[float]:
        course = [progress_at(step, steps=steps, replans=replans[:count]) for step in range(upto + 1)]
        settings = OptimSettings(warmup_fraction=0.3, schedule=schedule)
        return [rate_of(settings, (before + after) / 2) for before, after in itertools.pairwise(course)]

    for count, replan in enumerate(replans):
        assert rates(count + 1, replan.at_step) == rates(count, replan.at_step)
    course = course_of(plan)
    longest = max(after - before for before, after in itertools.pairwise(course))
    steepest = 1 / 0.3 if schedule == "inverse_sqrt" else 3.34  # of the rise; the falls are no steeper
    assert all(
        abs(after - before) <= steepest * longest + 1e-9
        for before, after in itertools.pairwise(rates(len(replans), len(course) - 1))
    )


@given(plans(), st.floats(0.0, 0.99))
def test_the_steps_past_a_share_are_those_whose_progress_is_above_it(plan, share: float) -> None:
    (steps, replans), course = plan, course_of(plan)
    for step in range(len(course)):
        counted = sum(progress > share for progress in course[: step + 1])
        assert steps_past(share, step, steps=steps, replans=replans) == counted


@given(plans(), st.data())
def test_an_early_end_leaves_all_progress_as_it_was(plan, data) -> None:
    steps, replans = plan
    last = replans[-1].steps if replans else steps
    first = replans[-1].at_step if replans else 0
    end = data.draw(st.integers(first + 1, last))
    ended = (*replans, Replan(at_step=end, steps=end))
    assert planned_steps(end, steps=steps, replans=ended) == end
    for step in range(end + 1):
        assert progress_at(step, steps=steps, replans=ended) == progress_at(
            step, steps=steps, replans=replans
        )


def test_an_end_at_the_last_step_is_not_past_one_by_rounding() -> None:
    replans = (Replan(at_step=1, steps=22), Replan(at_step=22, steps=22))
    assert progress_at(22, steps=27, replans=replans) == 1.0


def test_without_warmup_the_rate_begins_at_its_peak() -> None:
    assert rate_of(OptimSettings(warmup_fraction=0.0), 0.0) == 1.0


@given(plans(), st.integers(1, 9))
def test_every_mark_is_crossed_and_at_most_once_a_step(plan, parts: int) -> None:
    course = course_of(plan)
    crossed = sum(is_crossed(parts, before, after) for before, after in itertools.pairwise(course))
    assert 1 <= crossed <= parts
    assert is_crossed(parts, course[-2], course[-1])
    longest = max(after - before for before, after in itertools.pairwise(course))
    if longest < 1 / parts:
        assert crossed == parts


def test_the_average_begins_at_the_weights_and_settles_at_its_horizon() -> None:
    assert averaging_weight(1, horizon=100.0) == 1.0
    assert averaging_weight(91, horizon=1000.0) == pytest.approx(0.1)
    assert averaging_weight(100_000, horizon=100.0) == pytest.approx(0.01)
