"""Sections that the reports of all tasks share: scores, curves, choices, data, and how to repeat the run."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.report.page import conclusions, section, table, tiles, write_page
from vitrail.report.plots import Curve, line_plot
from vitrail.train.evaluate import Report
from vitrail.train.run import read_entry

STYLE = Path(__file__).with_name("sections.css").read_text(encoding="utf-8")


_MOST = 2**63  # a number above is of a damaged line


class History(NamedTuple):
    """Curves by name, each as steps and values."""

    curves: Mapping[str, Curve]
    """What a run logged and, of validation, its scores: ``loss``, ``rate`` (a share of its peak), ``nll``."""
    parts: Mapping[str, Curve]
    """Parts of the training loss."""


def read_history(path: Path) -> History:
    """Read the curves; damaged lines, such as a killed process leaves, are skipped.

    Of a step that was logged twice, before and after a resume, the later line counts.
    """
    curves: dict[str, dict[float, float]] = defaultdict(dict)
    parts: dict[str, dict[float, float]] = defaultdict(dict)
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = read_entry(line)
        if entry is None:
            continue
        scores, of_loss = (entry.get(name) for name in ("scores", "parts"))
        for found, values in ((curves, entry), (curves, scores), (parts, of_loss)):
            for name, value in values.items() if isinstance(values, dict) else ():
                if isinstance(value, float) or (isinstance(value, int) and abs(value) < _MOST):
                    found[name][float(entry["step"])] = float(value)
    return History(*({name: _curve(points) for name, points in found.items()} for found in (curves, parts)))


def _curve(points: dict[float, float]) -> Curve:
    steps = sorted(points)
    return steps, [points[step] for step in steps]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Contents of a report about a run; texts are plain, the page escapes them."""

    title: str
    report: Report
    """As ``evaluate`` returns it."""
    conclusions: Sequence[str] = ()
    """What the run came to: the first box."""
    command: str
    """Command line that repeats the run."""
    choices: Sequence[tuple[str, str, str]] = ()
    """Automatic settings: name, value, reason."""
    verdict_lines: Sequence[str] = ()
    """Findings of the data doctor."""
    metrics_path: Path | None = None
    """``metrics.jsonl`` of the run, for the curves."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Versions, CPU, threads."""
    experiment: Mapping[str, Any] = field(default_factory=dict)
    """The resolved settings, as in ``config.json``."""

    def history(self) -> History:
        return read_history(self.metrics_path) if self.metrics_path else History({}, {})


def write_run_page(path: Path, record: RunRecord, parts: Iterable[str], *, style: str) -> None:
    """Write the page of a run: the task's sections, then choices, data and how to repeat the run.

    Args:
        parts: sections of the task; empty ones are left out.
        style: CSS of the task's sections.
    """
    body = [*filter(None, parts)]
    if record.choices:
        note = "Settings chosen for this data, machine and budget; --set overrides them."
        body.append(section("Choices", table(("setting", "value", "reason"), record.choices), note))
    if record.verdict_lines:
        lines = "\n".join(map(escape, record.verdict_lines))
        body.append(section("Data", f"<pre>{lines}</pre>", "What the check of the data found."))
    repeat = f"<pre>{escape(record.command)}</pre>"
    if record.environment:
        rows = [(str(name), _text(value)) for name, value in record.environment.items()]
        repeat += f"<details><summary>Environment</summary>{table(('', ''), rows)}</details>"
    if record.experiment:
        tree = json.dumps(record.experiment, indent=2, default=str)
        repeat += f"<details><summary>Every setting</summary><pre>{escape(tree)}</pre></details>"
    body.append(section("Repeat it", repeat))
    write_page(path, title=record.title, body="\n".join(body), style=STYLE + style)


def headline(record: RunRecord, entries: Iterable[tuple[str, str, str]]) -> str:
    """Return the title, the conclusions, the headline scores as for ``page.tiles``, and the signature."""
    words, signature = map(escape, (record.report.measured_on, record.report.signature_line))
    first = f"<h1>{escape(record.title)}</h1>{conclusions(record.conclusions)}{tiles(entries)}"
    return f'{first}<p class="signature">{words} For comparing scores: <code>{signature}</code></p>'


def beside(left: str, right: str) -> str:
    """Set two sections side by side, or stacked in a narrow window."""
    return f'<div class="beside">{left}{right}</div>'


def plots_in_row(plots: Iterable[str]) -> str:
    """Set plots in rows as wide as the window."""
    return '<div class="plots">' + "".join(f"<figure>{plot}</figure>" for plot in plots) + "</div>"


def training_section(
    history: History, *, score: str, score_name: str, note: str, further: Iterable[str] = ()
) -> str:
    """Plot the training curves; empty without any.

    Args:
        score: name of the validation score's curve.
        score_name: for the reader, with its unit.
        note: on training against validation loss, if there are both.
        further: plots after the score's.
    """
    plots, curves = [], history.curves
    if "loss" in curves:
        series = {"training": curves["loss"]} | ({"validation": curves["nll"]} if "nll" in curves else {})
        plots.append(line_plot("loss by step", series, x_label="step", y_label="loss"))
    if score in curves:
        name = f"{score_name} by step"
        plots.append(line_plot(name, {"validation": curves[score]}, x_label="step", y_label=score_name))
    plots += further
    if "rate" in curves:
        series = {"learning rate": curves["rate"]}
        plots.append(
            line_plot("learning rate by step", series, x_label="step", y_label="learning rate / peak")
        )
    if not plots:
        return ""
    return section("Training", plots_in_row(plots), note if "loss" in curves and "nll" in curves else "")


def confusion_table(
    confusion: Sequence[Sequence[int]], *, rows: Sequence[str], columns: Sequence[str]
) -> str:
    """Render a confusion matrix as a table, shaded by the square root of each count's share of its row."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = []
    for name, row in zip(rows, confusion, strict=True):
        total = max(sum(row), 1)
        cells = "".join(
            f'<td class="{"strong" if count / total > 0.5 else "none" if not count else ""}" '
            f'style="--share:{(count / total) ** 0.5 if count else 0:.2f}">{count}</td>'
            for count in row
        )
        body.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    return (
        f'<div class="scroll confusion"><table><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
