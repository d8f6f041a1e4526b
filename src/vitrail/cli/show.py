"""Terminal output that commands share: lines, tables that fit 80 columns, live progress, JSON, errors."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from json import dumps
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

    from vitrail.report.tiles import Matrix


MAX_WIDTH = 80
MOST_COLUMNS, LONGEST_COLUMN = 8, 6  # of a printed matrix: columns, and characters of their names
IN_WORDS = {"nll": "log loss", "correct": "training accuracy"}  # of scores, for a reader
BAR_WIDTH = 40  # of a bar with counts and time, beside its text
SELDOM_S = 15.0  # between lines of progress where there is no terminal
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: str) -> str:
    r"""Return text as a terminal may show it, whatever names of files and classes are in it.

    Control characters, which could rewrite lines, and bytes that are not UTF-8 become escapes as in JSON.

    >>> print(plain("a\x1b[2Jb"))
    a\u001b[2Jb
    """
    return CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def styled(text: str, **options: Any) -> Text:
    """Return text for rich to print, without control characters; options are those of its ``Text``."""
    return Text(plain(text), **options)


def json(value: Any) -> None:
    """Print JSON."""
    lines([to_json(value)])


def to_json(value: Any) -> str:
    """Return JSON that people read."""
    return dumps(value, indent=2, ensure_ascii=False, default=str)


def lines(lines: Iterable[str]) -> None:
    """Print lines without wrapping."""
    sys.stdout.write(plain("".join(f"{line}\n" for line in lines)))


def scores(scores: Mapping[str, float]) -> None:
    """Print a line for each score."""
    named = {IN_WORDS.get(name, name): score for name, score in scores.items()}
    width = max(map(len, named), default=0)
    lines(f"{name:<{width}}  {score:z.4f}" for name, score in named.items())


def signature(signature: Mapping[str, str]) -> None:
    """Print a signature."""
    from vitrail.train.evaluate import join_signature

    wrapped(join_signature(signature))


def published(source: str, own: tuple[str, float] | None = None) -> None:
    """Print what papers report of a benchmark, with one's own score among it; nothing for other data."""
    from vitrail.tasks.classification.published_scores import published_rows

    quoted = published_rows(source)
    rows = [(row.value, row.model.partition(",")[0], row.trained_on) for row in quoted]
    if not rows:
        return
    if own is not None:
        rows.append((100 * own[1], own[0], "this model"))
    cells = [(model, data, f"{value:.2f}") for value, model, data in sorted(rows, reverse=True)]
    lines([""])
    table(("published", "pre-trained on", "score, %"), cells, texts=(0, 1), width=MAX_WIDTH)
    wrapped("; ".join(dict.fromkeys(row.source for row in quoted)))


def errors(errors: Iterable[tuple[str, str]]) -> None:
    """Print errors about files to stderr."""
    for name, error in errors:
        stage("skipped: " + (error if name in error else f"{name}: {error}"))


def line_fault(number: int, severity: str, message: str) -> None:
    """Print to stderr what is wrong with, or doubtful about, a line of a text."""
    fault(f"line {number}: {severity}: {message}")


def fault(text: str) -> None:
    """Print to stderr, on one line, what is wrong."""
    sys.stderr.write(plain(f"vitrail: {text}\n"))


def is_first_process() -> bool:
    """Return whether this is the first of torchrun's processes, the only one that prints."""
    return os.environ.get("RANK", "0") == "0"


def wrapped(text: str, indent: str = "") -> None:
    """Print text in lines of 80 columns; ``indent`` begins all but the first."""
    lines(_folded(text, indent))


def stage(stage: str, indent: str = "  ") -> None:
    """Print the current stage, or an error, to stderr."""
    print(*_folded(plain(f"vitrail: {stage}"), indent), sep="\n", file=sys.stderr, flush=True)


def _folded(text: str, indent: str) -> list[str]:
    return wrap(text, MAX_WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    texts: Collection[int] = (0,),
    width: int | None = None,
    padding: int = 2,
) -> None:
    """Print a table; without column names only its rows.

    Args:
        texts: columns of text, which may fold; the others are numbers.
        width: of the terminal (default: as it is).
        padding: spaces between columns.
    """
    table = Table(
        box=None, pad_edge=False, header_style="bold", padding=(0, padding, 0, 0), show_header=any(header)
    )
    for number, name in enumerate(header):
        is_text = number in texts
        justify: Literal["left", "right"] = "left" if is_text else "right"
        table.add_column(styled(name), overflow="fold", justify=justify, no_wrap=not is_text)
    for row in rows:
        table.add_row(*(styled(cell, overflow="fold") for cell in row))
    Console(width=width).print(table)


def facts(facts: Iterable[tuple[str, str]], width: int | None = None) -> None:
    """Print labels with their texts."""
    table(("", ""), facts, texts=(0, 1), width=width)


def matrices(matrices: Iterable[Matrix]) -> None:
    """Print matrices one below the other, each with its first columns."""
    for matrix in matrices:
        names, texts = matrix.column_names[:MOST_COLUMNS], matrix.texts(3)
        rows = zip(matrix.row_names, texts, strict=True)
        table(
            [matrix.name, *(name[:LONGEST_COLUMN] for name in names)],
            [[name, *row[: len(names)]] for name, row in rows],
        )
        left = matrix.values.shape[1] - len(names)
        lines([f"and {left} more columns", ""] if left else [""])


def on_two_lines(cell: str) -> str:
    """Put a value above its range or interval, so that all columns fit."""
    return cell.replace(" (", "\n", 1).replace(" to ", "..").rstrip(")")


class Live:
    """Progress as a bar on a terminal, and as lines elsewhere.

    Args:
        progress: the bar; disabled where there is no terminal.
    """

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console, self._progress = console, progress
        self._bar = progress.add_task("", total=None, left="")
        self._written = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether the last line was long ago."""
        return time.monotonic() - self._written >= SELDOM_S

    def begin(self, text: str) -> None:
        self._progress.reset(self._bar, description=plain(text))

    def update(self, text: str, **changes: Any) -> None:
        """Change the bar: its text, ``completed``, ``total`` or ``left``, the time."""
        shown = plain(text)[: max(self._console.width - BAR_WIDTH, 0)]  # longer ones would squeeze the bar
        self._progress.update(self._bar, description=shown, **changes)

    def write(self, line: str) -> None:
        """Write a line where there is no bar."""
        if self._progress.disable:
            self.print(line)

    def print(self, line: str) -> None:
        self._written = time.monotonic()
        self._console.print(styled(line), soft_wrap=True)


@contextmanager
def live(console: Console, *columns: ProgressColumn, transient: bool = False) -> Iterator[Live]:
    """Show progress on a console.

    Args:
        columns: of the bar, which its text follows.
        transient: whether the bar goes when it is done.
    """
    from rich.progress import Progress, TextColumn

    text, is_disabled = TextColumn("{task.description}"), not console.is_terminal
    with Progress(*columns, text, console=console, transient=transient, disable=is_disabled) as progress:
        yield Live(console, progress)


@contextmanager
def parts_done() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a listener for the samples done in each part; without a terminal, also lines now and then."""
    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

    columns = BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn()
    with live(Console(stderr=True), *columns, transient=True) as bar:
        shown = ""

        def listen(part: str, done: int, total: int) -> None:
            nonlocal shown
            if part != shown:
                bar.begin(part)
                shown = part
            bar.update(part, completed=done, total=total or None)
            if bar.is_due:
                bar.write(f"{part}: {done:,}{f' of {total:,}' if total else ''}")

        yield listen
