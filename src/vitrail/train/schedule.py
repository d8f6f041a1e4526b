"""Training progress and learning rate as pure functions of the step and the recorded plan."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from vitrail.train.settings import OptimSettings, Replan


def planned_steps(step: int, *, steps: int, replans: Sequence[Replan] = ()) -> int:
    """Return the total number of steps planned as of a step."""
    for replan in replans:
        if replan.at_step <= step:
            steps = replan.steps
    return steps


def progress_at(step: int, *, steps: int, replans: Sequence[Replan] = (), before: bool = False) -> float:
    """Return the fraction of the training done after ``step`` steps.

    Piecewise linear and continuous: a replan changes the slope from its step on, so that progress still
    reaches 1 at the new last step. A replan that ends the training leaves progress as it is; only one that
    goes on with a finished training sets it back.

    Args:
        before: at a step where progress is set back, return what it was until then.

    >>> progress_at(50, steps=100)
    0.5
    >>> progress_at(60, steps=100, replans=(Replan(at_step=50, steps=70),))
    0.75
    >>> progress_at(50, steps=100, replans=(Replan(at_step=50, steps=50),))
    0.5
    >>> again = (Replan(at_step=50, steps=100, progress=0.5),)
    >>> [progress_at(at, steps=50, replans=again, before=True) for at in (25, 50, 75)]
    [0.5, 1.0, 0.75]
    """
    done, start, end = 0.0, 0, steps
    for replan in replans:
        if replan.at_step + (before and replan.progress is not None) > step:
            break
        if replan.progress is not None:
            done = replan.progress
        elif replan.at_step < end:
            done = min(1.0, done + (1 - done) * (replan.at_step - start) / (end - start))
        else:
            done = 1.0
        start, end = replan.at_step, replan.steps
    if start == end:
        return done
    if step >= end:
        return 1.0
    return min(1.0, done + (1 - done) * (step - start) / (end - start))  # rounding may pass the end


def steps_past(share: float, step: int, *, steps: int, replans: Sequence[Replan] = ()) -> int:
    """Return how many of the first ``step`` steps, or of those since a restart, ended above ``share``.

    >>> [steps_past(0.75, step, steps=8) for step in (5, 6, 7, 8)]
    [0, 0, 1, 2]
    """
    restarts = (replan.at_step for replan in replans if replan.progress is not None)
    ends = range(max((at for at in restarts if at < step), default=0) + 1, step + 1)
    return len(ends) - bisect_right(
        ends, share, key=lambda at: progress_at(at, steps=steps, replans=replans, before=True)
    )


def rate_of(optim: OptimSettings, progress: float) -> float:
    """Return the learning rate as a fraction of its peak: linear warm-up, then decay.

    The cosine decays to ``final_rate``; the inverse square root is ``sqrt(warmup_fraction / progress)``.

    >>> rate_of(OptimSettings(warmup_fraction=0.1), 0.05)
    0.5
    >>> rate_of(OptimSettings(final_rate=0.01), 1.0)
    0.01
    >>> rate_of(OptimSettings(warmup_fraction=0.1, schedule="inverse_sqrt"), 0.4)
    0.5

    Paper: Loshchilov and Hutter 2017 (SGDR), eq. 5, one period, after a warm-up; Vaswani et al. 2017, eq. 3,
    as a share of its largest value.
    """
    warmup = optim.warmup_fraction
    if progress < warmup:
        return progress / warmup
    if optim.schedule == "inverse_sqrt":
        return math.sqrt(warmup / progress)
    fall = (progress - warmup) / (1 - warmup)
    return optim.final_rate + (1 - optim.final_rate) * 0.5 * (1 + math.cos(math.pi * fall))


def is_crossed(parts: int, before: float, after: float) -> bool:
    """Return whether progress passed a multiple of ``1 / parts`` between two values."""
    return math.floor(after * parts) > math.floor(before * parts)
