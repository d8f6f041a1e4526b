"""What a training shows while it runs, and what it came to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from vitrail.cli.show.lines import MAX_WIDTH, is_first_process, make_table, show_lines, show_signature

if TYPE_CHECKING:
    from vitrail.data.findings import Verdict
    from vitrail.tasks.events import OnPipelineEvent, PipelineEvent
    from vitrail.tasks.preparing import Prepared
    from vitrail.tasks.training import TrainedRun
    from vitrail.train.evaluate import Report
    from vitrail.train.events import OnEvent


@contextmanager
def show_training() -> Iterator[OnPipelineEvent]:
    """Give a listener for ``train``: the verdict and the choices, then the run and its progress.

    The pipeline tells them to the first of several processes alone.
    """
    from vitrail.tasks.events import Began, Checked, Finished
    from vitrail.tasks.preparing import Prepared
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


def show_report(report: Report) -> None:
    """Write the scores of an evaluation and their signature."""
    if is_first_process():
        show_lines(_score_lines(report.scores))
        show_signature(report.signature)


def _show_verdict(console: Console, verdict: Verdict) -> None:
    console.print(Text("\n".join(verdict.summary(width=min(console.width, MAX_WIDTH)))))
    console.print("choosing, and measuring a few steps ...")


def _show_choices(console: Console, prepared: Prepared) -> None:
    table = make_table("setting", "value", "reason")
    for setting, value, reason in prepared.choices:
        table.add_row(Text(setting), Text(value), Text(reason))
    console.print(table)


def _score_lines(scores: Mapping[str, float]) -> list[str]:
    width = max(map(len, scores), default=0)
    return [f"{name:<{width}}  {score:.4f}" for name, score in scores.items()]
