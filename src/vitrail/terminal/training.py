"""What a training shows while it runs, and what it came to."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from vitrail.terminal.lines import MAX_WIDTH, is_first_process, make_table, show_lines

if TYPE_CHECKING:
    from vitrail.data import Verdict
    from vitrail.evaluate import Report
    from vitrail.pipeline import Compared, Prepared, TrainedRun
    from vitrail.pipeline.comparing import ComparisonEvent, OnComparisonEvent
    from vitrail.pipeline.events import OnPipelineEvent, PipelineEvent
    from vitrail.report.comparison import ComparedRun
    from vitrail.train.events import OnEvent


@contextmanager
def show_training() -> Iterator[OnPipelineEvent]:
    """Give a listener for ``pipeline.train``: the verdict and the choices, then the run and its progress.

    The pipeline tells them to the first of several processes alone.
    """
    from vitrail.pipeline.events import Began, Checked, Finished
    from vitrail.pipeline.preparing import Prepared
    from vitrail.train.progress import show_progress

    console = Console()
    with ExitStack() as stack:
        progress: OnEvent | None = None

        def listen(event: PipelineEvent) -> None:
            nonlocal progress
            if isinstance(event, Checked):
                _show_verdict(console, event.verdict)
            elif isinstance(event, Prepared):
                _show_choices(console, event)
            elif isinstance(event, Began):
                console.print(Text(f"run {event.folder}"), soft_wrap=True)
                progress = stack.enter_context(show_progress(console))  # not while the data is checked
            elif isinstance(event, Finished):
                stack.close()
                console.print("evaluating and writing the report ...")
            else:
                assert progress is not None, "a training that has not begun"
                progress(event)

        yield listen


def show_trained(trained: TrainedRun) -> None:
    """Write the final scores and, as the last line, the one that stands for all and where the report is."""
    if is_first_process():
        show_lines(_score_lines(trained.scores))
        show_lines([f"{trained.headline} {trained.score:.3f}  report {trained.report_path}"])


@contextmanager
def show_comparing() -> Iterator[OnComparisonEvent]:
    """Give a listener for ``pipeline.compare``: what is trained, how far it is, and what it came to."""
    from vitrail.pipeline.comparing import RunBegan, RunEnded

    console = Console()
    with ExitStack() as stack:
        status = stack.enter_context(console.status("")) if console.is_terminal else None
        name = ""

        def listen(event: ComparisonEvent) -> None:
            nonlocal name
            if isinstance(event, RunBegan):
                name = f"{event.number}/{event.total} {event.name}"
                line = name
            elif isinstance(event, RunEnded):
                line = _result_line(event.run)
            else:
                line = f"{name}: {event.line}"
            if status is not None:
                status.update(Text(line))
            if status is None or isinstance(event, RunEnded):
                console.print(Text(line), soft_wrap=True)

        yield listen


def show_comparison(compared: Compared) -> None:
    """Write one row for each mixer or model, and, as the last line, where the page is."""
    from vitrail.report.comparison import comparison_table

    header, rows = comparison_table(compared.comparison)
    table = make_table(*header)
    table.padding = (0, 1, 0, 0)  # the longest names leave no more room in 80 columns
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)
    for run in compared.comparison.runs:
        if run.error:
            sys.stderr.write(f"vitrail: failed: {run.name}: {run.error}\n")
    show_lines([f"report {compared.page}"])


def show_report(report: Report) -> None:
    """Write the scores of an evaluation and their signature."""
    if is_first_process():
        show_lines([*_score_lines(report.scores), report.signature_line])


def _show_verdict(console: Console, verdict: Verdict) -> None:
    console.print(Text("\n".join(verdict.summary(width=min(console.width, MAX_WIDTH)))))
    console.print("choosing, and measuring a few steps ...")


def _show_choices(console: Console, prepared: Prepared) -> None:
    table = make_table("setting", "value", "reason")
    for setting, value, reason in prepared.choices:
        table.add_row(Text(setting), Text(value), Text(reason))
    console.print(table)


def _result_line(run: ComparedRun) -> str:
    if run.figures is None:
        return f"{run.name} failed: {run.error}"
    steps, speed = run.figures.steps, run.figures.samples_per_s
    return f"{run.name}: accuracy {run.figures.accuracy:.3f}, {steps} steps, {speed:.0f} samples/s"


def _score_lines(scores: Mapping[str, float]) -> list[str]:
    width = max(map(len, scores), default=0)
    return [f"{name:<{width}}  {score:.4f}" for name, score in scores.items()]
