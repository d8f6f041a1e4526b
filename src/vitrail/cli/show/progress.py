"""Training progress: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from vitrail.train.events import (
    Event,
    Kept,
    Logged,
    OnEvent,
    Replanned,
    Started,
    Stepped,
    StoppedEarly,
    Validated,
)

_PLAIN_EVERY_S = 15.0
_WINDOW = 50  # steps over which the time left is estimated


@contextmanager
def show_progress(console: Console) -> Iterator[OnEvent]:
    """Yield a listener for ``fit`` that draws on a console."""
    if not console.is_terminal:
        yield _PlainLines(console)
        return
    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.fields[state]}"),
    ]
    with Progress(*columns, console=console) as progress:
        yield _Bar(progress)


class _TimeLeft:
    """Estimate the remaining time from the latest steps."""

    def __init__(self) -> None:
        self._moments: deque[tuple[int, float]] = deque(maxlen=_WINDOW)

    def add(self, step: int) -> None:
        self._moments.append((step, time.monotonic()))

    def text(self, steps: int) -> str:
        if len(self._moments) < 2:
            return ""
        (first, began), (last, ended) = self._moments[0], self._moments[-1]
        seconds = (steps - last) * (ended - began) / max(last - first, 1)
        return f"{format_seconds(seconds)} left"


class _Bar:
    """A live progress line."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._time_left = progress, _TimeLeft()
        self._bar = progress.add_task("training", left="", state="")
        self._accuracy = ""

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started | Stepped):
            self._time_left.add(event.step)
            self._progress.update(
                self._bar,
                completed=event.step,
                total=event.steps,
                left=self._time_left.text(event.steps),
            )
        elif isinstance(event, Logged):
            self._progress.update(self._bar, state=f"{_describe(event)} {self._accuracy}")
        elif isinstance(event, Validated):
            self._accuracy = _scores(event)
        elif isinstance(event, Replanned | StoppedEarly | Kept):
            if isinstance(event, StoppedEarly):
                self._progress.update(self._bar, total=event.step, left="")
            self._progress.console.print(_explain(event))


class _PlainLines:
    """Occasional lines; checkpoints are left out, as there is one every minute."""

    def __init__(self, console: Console) -> None:
        self._console, self._time_left = console, _TimeLeft()
        self._written = time.monotonic()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            resumed = f"resuming after step {event.step} of {event.steps}"
            if event.step == event.steps:
                resumed = f"all {event.steps} steps are done already"
            self._write(resumed if event.step else f"training for {event.steps} steps")
        elif isinstance(event, Stepped):
            self._time_left.add(event.step)
        elif isinstance(event, Logged):
            if event.step == event.steps or time.monotonic() - self._written >= _PLAIN_EVERY_S:
                head = f"step {event.step}/{event.steps}"
                self._write(", ".join([head, _describe(event), self._time_left.text(event.steps)]))
        elif isinstance(event, Validated):
            self._write(f"step {event.step}, {_scores(event)}")
        elif isinstance(event, Replanned | StoppedEarly | Kept):
            self._write(_explain(event))

    def _write(self, line: str) -> None:
        self._written = time.monotonic()
        self._console.print(line, highlight=False, soft_wrap=True)


def format_seconds(seconds: float) -> str:
    """Format a duration.

    >>> format_seconds(7.2), format_seconds(83), format_seconds(7260)
    ('7 s', '1 min 23 s', '2 h 01 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _describe(event: Logged) -> str:
    parts = "".join(f", {name} {value:.3f}" for name, value in event.parts.items())
    rate = event.samples_per_s if event.items_per_s is None else event.items_per_s
    return f"loss {event.loss:.3f}{parts}, {rate:.0f} {event.unit}/s"


def _scores(event: Validated) -> str:
    named = [f"{name} {score:.4f}" for name, score in event.scores.items() if isinstance(score, float)]
    return "validation " + ", ".join(named)


def _explain(event: Replanned | StoppedEarly | Kept) -> str:
    if isinstance(event, StoppedEarly):
        place = f"stopped early at step {event.step} of {event.former_steps}"
        if event.best is None:
            return place
        return f"{place}: {event.score} was best at step {event.best_step}, {event.best:.4f}"
    if isinstance(event, Kept):
        return f"the weights of step {event.step} are kept, the best validation of {event.steps} steps"
    pace = "slower" if event.steps < event.former_steps else "faster"
    return f"the machine is {pace} than measured before: {event.steps} steps instead of {event.former_steps}"
