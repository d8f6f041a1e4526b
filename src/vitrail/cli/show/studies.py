"""Terminal output of comparisons, probes, robustness, calibration, benchmarks and faithfulness."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from vitrail.cli.show.lines import (
    MAX_WIDTH,
    on_two_lines,
    show_lines,
    show_signature,
    show_table,
    show_wrapped,
)
from vitrail.core.duration import format_duration

if TYPE_CHECKING:
    from vitrail.engines.bench import BenchReport
    from vitrail.engines.choice import BenchResult
    from vitrail.interpret.perturbation import Faithfulness
    from vitrail.studies.calibrating import Calibration
    from vitrail.studies.comparing import Compared, ComparisonEvent, OnComparisonEvent, RunBegan, RunEnded
    from vitrail.studies.robustness import Robustness
    from vitrail.studies.vtab import VtabScores
    from vitrail.train.evaluate import Report


@contextmanager
def show_parts_done() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a progress listener: a live bar on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar, shown = progress.add_task("", total=None), ""

        def listen(part: str, done: int, total: int) -> None:
            nonlocal shown
            if part != shown:
                progress.reset(bar, description=part, total=total or None)
                shown = part
            progress.update(bar, completed=done)

        yield listen


def show_calibration(found: Calibration) -> None:
    """Print each score without and with the temperature, and the signature."""
    from vitrail.studies.calibrating import HEADER, score_rows

    header = (*HEADER[:2], f"{HEADER[2]} {found.temperature:.3f}")
    show_table(header, score_rows(found.before, found.after), width=MAX_WIDTH)
    show_signature(found.signature)


def show_probe(report: Report) -> None:
    """Print the scores of a probe and their signature."""
    width = max(map(len, report.scores))
    show_lines(f"{name:<{width}}  {score:.4f}" for name, score in report.scores.items())
    show_signature(report.signature)


def show_robustness(found: Robustness) -> None:
    """Print the errors under each corruption in percent, the means, and the signature."""
    from vitrail.studies.robustness import robustness_table

    show_lines([f"errors on clean images: {100 * found.clean:.1f} %; on corrupted ones, by severity:"])
    show_table(*robustness_table(found), width=MAX_WIDTH)
    show_signature(found.signature)


def show_vtab(scores: VtabScores) -> None:
    """Print task accuracies in percent by group, the means, and why tasks failed."""
    rows = []
    for group, mean in scores.groups.items():
        tasks = [task for task in scores.tasks if task.group == group]
        missing = {task.title: "failed" if task.error else "not here" for task in tasks}
        rows += [
            [task.title, missing[task.title] if task.accuracy is None else _percent(task.accuracy)]
            for task in tasks
        ]
        rows.append([f"mean of {group}", _percent(mean)])
    rows.append(["mean of all 19 tasks", _percent(scores.mean)])
    show_table(("task", "accuracy, %"), rows, width=MAX_WIDTH)
    for task in scores.tasks:
        if task.error:
            show_wrapped(f"{task.title} failed: {task.error}")
    show_signature(scores.signature)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


@contextmanager
def show_images_done(total: int) -> Iterator[Callable[[int], None]]:
    """Yield a listener for the number of images done: a live bar on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("images"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=total)
        yield lambda done: progress.update(bar, completed=done)


def show_faithfulness(found: Faithfulness) -> None:
    """Print one row per method, lowest deletion first, with 95 % intervals below."""
    from vitrail.studies.faithfulness import faithfulness_table

    header, rows = faithfulness_table(found)
    show_table(header, [[row[0], *map(on_two_lines, row[1:])] for row in rows])
    Console().print("deletion: lower is better; insertion: higher is better", style="dim")


LABELS = 24  # columns of engine and precision
HEADER = f"{'engine':12}{'precision':12}{'images/s':>9}{'p50 ms':>9}{'p99 ms':>9}{'MiB':>8}{'% of peak':>11}"


def show_bench(report: BenchReport) -> None:
    """Print the results of each batch size, the best engine marked, and their conditions."""
    console = Console(width=MAX_WIDTH) if not sys.stdout.isatty() else Console()
    height, width = report.size
    show_wrapped(
        f"{report.name}, {height}x{width}, {report.gmacs:.2f} GMACs an image; {report.machine}, "
        f"{report.threads} threads, {report.rounds} rounds",
    )
    rows, inner, columns = report.product
    ceilings = ", ".join(f"{name} {rate:,.0f}" for name, rate in report.ceilings.items())
    show_wrapped(f"peak, a product of {rows}x{inner} with {inner}x{columns}, in GFLOP/s: {ceilings}")
    for batch in dict.fromkeys(result.batch for result in report.results):
        best = report.best(batch)
        console.print()
        console.print(Text(f"batch {batch}", style="bold"))
        console.print(Text(HEADER, style="bold"))
        for result in report.results:
            if result.batch == batch:
                _show_result(console, result, is_best=result == best)
    console.print()
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    show_wrapped(f"outputs compared on {report.images}; {versions}")
    if report.unstored is not None:
        show_wrapped(f"the choice is not stored: {report.unstored}")
    if report.folder is not None:
        show_wrapped(f'* the fastest whose outputs agree, used by engine="auto"; stored in {report.folder}')


def _show_result(console: Console, result: BenchResult, *, is_best: bool) -> None:
    label = f"{result.engine:12}{result.precision:12}"
    if result.ran:
        share = "" if result.ceiling_share is None else f"{100 * result.ceiling_share:.0f}"
        figures = f"{result.images_per_s:9.2f}{result.p50_ms:9.1f}{result.p99_ms:9.1f}"
        figures += f"{result.peak_mib:8.0f}{share:>11}"
        console.print(Text(label + figures + (" *" if is_best else ""), style="green" if is_best else ""))
        label = " " * len(label)
    if result.reason is not None:
        said = result.reason if not result.ran else f"outputs differ: {result.reason}"
        lines = wrap(said, MAX_WIDTH - LABELS, break_on_hyphens=False)
        for place, line in enumerate(lines):
            console.print(Text((label if place == 0 else " " * LABELS) + line, style="yellow"))


MOST_PAIRS = 10  # of a table on a terminal; the page has all
LEAST_COLUMNS = 5  # on a narrow terminal: name, score, interval, and two more


@contextmanager
def show_comparing() -> Iterator[OnComparisonEvent]:
    """Yield a listener for ``compare``: the current run, overall progress, and each result."""
    console = Console()
    if not console.is_terminal:
        yield _PlainLines(console)
        return
    columns = [MofNCompleteColumn(), BarColumn(16), TextColumn("{task.fields[left]}")]
    with Progress(*columns, TextColumn("{task.description}"), console=console) as progress:
        yield _Bar(progress)


def show_comparison(compared: Compared) -> None:
    """Print one row per mixer or model, the tests, their conclusions, and the path of the page."""
    from vitrail.studies.comparison import comparison_table, pair_cells

    comparison, console = compared.comparison, Console()
    header, rows = comparison_table(comparison)
    # The longest names leave no more room in 80 columns than for a padding of one.
    show_table(*fit_columns(header, rows, min(console.width, MAX_WIDTH)), padding=1)
    if 0 < len(comparison.pairs) <= MOST_PAIRS:
        show_lines([""])
        header = ["higher", "lower", comparison.words.label, "95 %", "p", "Holm", "significant"]
        pairs = [
            [
                test.first,
                test.second,
                *pair_cells(test, comparison.words),
                "yes" if test.is_significant else "no",
            ]
            for test in comparison.pairs
        ]
        show_table(header, pairs, texts=(0, 1, 6), padding=1)
    show_lines([""])
    for sentence in comparison.statements:
        show_lines(textwrap.wrap(sentence, min(console.width, MAX_WIDTH), subsequent_indent="  "))
    for run in comparison.runs:
        if run.error:
            sys.stderr.write(f"vitrail: failed: {run.name}, seed {run.seed}: {run.error}\n")
    show_lines([f"report {compared.page}"])


def fit_columns(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> tuple[list[str], list[list[str]]]:
    """Drop columns from the right until the table fits into a width; the page has them all."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    count = len(header)
    while count > LEAST_COLUMNS and sum(widths[:count]) + count - 1 > width:
        count -= 1
    return list(header[:count]), [list(row[:count]) for row in rows]


class _Bar:
    """A live progress line for all runs, with results above it."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._heading = progress, ""
        self._bar = progress.add_task("", total=None, left="")

    def __call__(self, event: ComparisonEvent) -> None:
        from vitrail.studies.comparing import RunBegan, RunEnded, RunWent

        if isinstance(event, RunBegan):
            self._heading = f"{event.name}, seed {event.seed}"
            self._progress.update(
                self._bar,
                completed=event.number - 1,
                total=event.total,
                left=_time_left(event),
                description=self._heading,
            )
        elif isinstance(event, RunEnded):
            self._progress.console.print(Text(_result_line(event)), soft_wrap=True)
            self._progress.update(self._bar, completed=event.number, total=event.total)
        elif isinstance(event, RunWent):
            self._progress.update(self._bar, description=f"{self._heading}: {event.line}")
        else:
            self._progress.update(self._bar, description="testing the differences", left="")


class _PlainLines:
    """One line per event."""

    def __init__(self, console: Console) -> None:
        self._console, self._heading = console, ""

    def __call__(self, event: ComparisonEvent) -> None:
        from vitrail.studies.comparing import RunBegan, RunEnded, RunWent

        if isinstance(event, RunBegan):
            self._heading = f"{event.number}/{event.total} {event.name}, seed {event.seed}"
            self._write(", ".join(filter(None, (self._heading, _time_left(event)))))
        elif isinstance(event, RunEnded):
            self._write(_result_line(event))
        elif isinstance(event, RunWent):
            self._write(f"{self._heading}: {event.line}")
        else:
            self._write("testing the differences")

    def _write(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)


def _time_left(event: RunBegan) -> str:
    """Estimate the remaining time, this run included; empty where steps end the runs."""
    left = (event.total - event.number + 1) * event.budget_s
    return f"about {format_duration(left)} left" if event.is_timed else ""


def _result_line(event: RunEnded) -> str:
    from vitrail.studies.comparison import SCORES

    run, words = event.run, SCORES[event.score]
    name = f"{run.name}, seed {run.seed}"
    if run.figures is None:
        return f"{name} failed: {run.error}"
    figures = run.figures
    score = f"{words.label} {words.format(figures.score)}"
    return f"{name}: {score}, {figures.steps:,} steps, {figures.samples_per_s:,.0f} samples/s"
