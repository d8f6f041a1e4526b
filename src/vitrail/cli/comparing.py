"""The command compare: its progress, tables and conclusions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.console import Console

from vitrail.cli import show
from vitrail.cli.app import EXIT_SOME_FAILED, Flag, Settings, app, data_settings, parse_numbers, split_names
from vitrail.core.duration import format_duration, parse_duration

if TYPE_CHECKING:
    from vitrail.studies.comparing import Compared, ComparisonEvent, OnComparisonEvent, RunEnded

MOST_PAIRS = 10  # of a table on a terminal; the page has all
LEAST_COLUMNS = 5  # on a narrow terminal: name, score, interval, and two more


@app.command(
    help_epilogue="Example: vitrail compare photos/ --mixers attention,fourier --budget 3m --seeds 3"
)
def compare(
    data: str,
    /,
    *,
    mixers: str | None = None,
    models: str | None = None,
    budget: str | None = None,
    seeds: str | None = None,
    languages: str | None = None,
    set_: Settings = (),
    output: Path = Path("runs"),
    name: str | None = None,
    seed: int | None = None,
    json: Flag = False,
) -> int:
    """Train token mixers or models with the same budget each, and test which differences are significant.

    Args:
        data: Any data that `vitrail train` takes: images, images with boxes or captions, texts.
        mixers: Comma-separated token mixers, or all, the default.
        models: Comma-separated models, instead of mixers.
        budget: Time limit of each training, such as 90s or 3m.
        seeds: Number of seeds, such as 3, or the seeds, such as 1,5,9.
        languages: Source and target language of sentence pairs, such as en,de.
        set_: One setting of all runs, such as model.name=vit_nano; may be given several times.
        output: Parent folder of the comparison's folder.
        name: Name of that folder; an existing comparison is resumed. Default: date and data.
        seed: The only seed, or the first one if --seeds is a number.
        json: Print all results as JSON, and nothing else.
    """
    from vitrail.core.config import parse_assignments

    budget_s = None if budget is None else parse_duration(budget)
    changes = parse_assignments(set_) | data_settings(languages)
    listed = None if seeds is None else parse_numbers("--seeds", seeds)
    num_seeds = listed[0] if listed and "," not in str(seeds) else listed  # a single number is how many

    from vitrail.studies.comparing import compare as run_compare

    with nullcontext(lambda event: None) if json else show_comparing() as listen:
        compared = run_compare(
            data,
            mixers=None if mixers is None else split_names(mixers),
            models=None if models is None else split_names(models),
            budget_s=budget_s,
            changes=changes,
            output=output,
            name=name,
            seed=seed,
            seeds=num_seeds,
            on_event=listen,
        )
    if json:
        show.json({"folder": str(compared.folder), **compared.comparison.model_dump(mode="json")})
    else:
        show_comparison(compared)
    return EXIT_SOME_FAILED if any(run.error for run in compared.comparison.runs) else 0


@contextmanager
def show_comparing() -> Iterator[OnComparisonEvent]:
    """Yield a listener for ``compare``: the current run, overall progress, and each result."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

    from vitrail.studies.comparing import RunBegan, RunEnded

    columns = MofNCompleteColumn(), BarColumn(16), TextColumn("{task.fields[left]}")
    with show.live(Console(), *columns) as live:
        heading = numbered = ""

        def listen(event: ComparisonEvent) -> None:
            nonlocal heading, numbered
            if isinstance(event, RunBegan):
                heading = f"{event.name}, seed {event.seed}"
                numbered, left = f"{event.number}/{event.total} {heading}", ""
                if event.is_timed:  # else steps end the runs
                    seconds = (event.total - event.number + 1) * event.budget_s
                    left = f"about {format_duration(seconds)} left"
                live.update(heading, completed=event.number - 1, total=event.total, left=left)
                live.write(f"{numbered}, {left}" if left else numbered)
            elif isinstance(event, RunEnded):
                live.update(heading, completed=event.number, total=event.total)
                live.print(_result_line(event))
            else:
                live.update(f"{heading}: {event}")
                live.write(f"{numbered}: {event}")

        yield listen


def show_comparison(compared: Compared) -> None:
    """Print one row per mixer or model, the tests, their conclusions, and the path of the page."""
    from vitrail.studies.comparison import comparison_table, pair_cells

    comparison, console = compared.comparison, Console()
    header, rows = comparison_table(comparison)
    # The longest names leave no more room in 80 columns than for a padding of one.
    show.table(*fit_columns(header, rows, min(console.width, show.MAX_WIDTH)), padding=1)
    if 0 < len(comparison.pairs) <= MOST_PAIRS:
        show.lines([""])
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
        show.table(header, pairs, texts=(0, 1, 6), padding=1)
    show.lines([""])
    for sentence in comparison.statements:
        show.lines(wrap(sentence, min(console.width, show.MAX_WIDTH), subsequent_indent="  "))
    for run in comparison.runs:
        if run.error:
            show.fault(f"failed: {run.name}, seed {run.seed}: {run.error}")
    show.lines([f"report {compared.page}"])


def fit_columns(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> tuple[list[str], list[list[str]]]:
    """Drop columns from the right until the table fits into a width; the page has them all."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    count = len(header)
    while count > LEAST_COLUMNS and sum(widths[:count]) + count - 1 > width:
        count -= 1
    return list(header[:count]), [list(row[:count]) for row in rows]


def _result_line(event: RunEnded) -> str:
    from vitrail.studies.comparison import SCORES

    run, words = event.run, SCORES[event.score]
    name = f"{run.name}, seed {run.seed}"
    if run.figures is None:
        return f"{name} failed: {run.error}"
    figures = run.figures
    score = f"{words.label} {words.format(figures.score)}"
    return f"{name}: {score}, {figures.steps:,} steps, {figures.samples_per_s:,.0f} samples/s"
