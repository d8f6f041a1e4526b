"""Where a run stands and how fast it learns: pure functions of the step and the recorded plan."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vitrail.experiment import Replan


def planned_steps(step: int, *, steps: int, replans: Sequence[Replan] = ()) -> int:
    """Return the total number of steps that the plan in force at a step foresees."""
    for replan in replans:
        if replan.at_step <= step:
            steps = replan.steps
    return steps


def progress_at(step: int, *, steps: int, replans: Sequence[Replan] = ()) -> float:
    """Return the share of the training that is done after ``step`` steps, 0 to 1.

    Piecewise linear and continuous: a replan changes the slope from its step on, so that progress still
    reaches 1 at the new last step.

    >>> progress_at(50, steps=100)
    0.5
    >>> progress_at(60, steps=100, replans=(Replan(at_step=50, steps=70),))
    0.75
    """
    done, start, end = 0.0, 0, steps
    for replan in replans:
        if replan.at_step > step:
            break
        done += (1 - done) * (replan.at_step - start) / (end - start)
        start, end = replan.at_step, replan.steps
    if step >= end:
        return 1.0
    return done + (1 - done) * (step - start) / (end - start)


def rate_at(progress: float, *, warmup_fraction: float, final_rate: float) -> float:
    """Return the learning rate as a share of its peak: a linear rise, then half a cosine.

    >>> rate_at(0.05, warmup_fraction=0.1, final_rate=0.0)
    0.5
    >>> rate_at(1.0, warmup_fraction=0.1, final_rate=0.01)
    0.01

    Paper: Loshchilov and Hutter 2017 (SGDR), eq. 5, one period, after a warm-up.
    """
    if progress < warmup_fraction:
        return progress / warmup_fraction
    fall = (progress - warmup_fraction) / (1 - warmup_fraction)
    return final_rate + (1 - final_rate) * 0.5 * (1 + math.cos(math.pi * fall))


def is_crossed(parts: int, before: float, after: float) -> bool:
    """Return whether progress passed a multiple of ``1 / parts`` on its way from ``before`` to ``after``."""
    return math.floor(after * parts) > math.floor(before * parts)
