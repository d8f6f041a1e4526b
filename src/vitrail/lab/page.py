"""The page of measured claims: a table of all, then each with its picture and its numbers."""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path

from vitrail.core.duration import format_duration
from vitrail.lab.contract import Verdict
from vitrail.lab.results import ClaimResult, LabResults, Table, format_cell, summary_table
from vitrail.report.page import section, table, write_page

STYLE = """section img{width:100%;border-radius:9px;background:#fff}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.35em 1.1em;margin:.4em 0 1em}
dt{font-weight:600;color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
.holds{color:var(--good)}.partly{color:var(--warn)}.not{color:var(--bad)}.undecided{color:var(--soft)}"""

_CLASSES: dict[Verdict, str] = {
    "holds": "holds",
    "partly": "partly",
    "does not hold": "not",
    "undecided": "undecided",
}


def write_lab_page(path: Path, results: LabResults) -> None:
    """Write the page; the pictures stand beside it, and are embedded as well.

    Args:
        path: the file, in the folder of the pictures.
        results: what was measured.

    Raises:
        CheckpointError: the disk is full or not writable.
    """
    header, rows = summary_table(results.claims)
    title = "Claims, measured"
    parts = [f"<h1>{title}</h1>", section("All", table(header, rows))]
    parts += [_claim_section(each, path.parent / each.picture) for each in results.claims]
    write_page(path, title=title, body="\n".join(parts), style=STYLE)


def _claim_section(result: ClaimResult, picture: Path) -> str:
    verdict = (
        f"<b class={_CLASSES[result.verdict]}>{result.verdict}</b>"
        f"{escape(result.decision.removeprefix(result.verdict))}"
    )
    facts = [
        ("source", escape(result.source)),
        ("published", escape(result.published)),
        ("criterion", escape(result.criterion)),
        ("measured", escape(result.measured)),
        ("verdict", verdict),
    ]
    described = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts)
    image = ""
    if picture.exists():  # somebody may have taken it away
        source = base64.b64encode(picture.read_bytes()).decode()
        image = f'<img src="data:image/png;base64,{source}" alt="{escape(result.measured, quote=True)}">'
    tables = "".join(map(_rows, result.tables))
    return section(
        result.name,
        f"<p>{escape(result.statement)}</p><dl>{described}</dl>{image}{tables}",
        _conditions(result),
    )


def _rows(measured: Table) -> str:
    rows = [[format_cell(value) for value in row] for row in measured.rows]
    numbers = frozenset(
        index
        for index in range(len(measured.columns))
        if all(isinstance(row[index], int | float | None) for row in measured.rows)
    )
    meaning = table(
        ["column", "meaning"], [[name.replace("_", " "), text] for name, text in measured.columns.items()]
    )
    header = [name.replace("_", " ") for name in measured.columns]
    return (
        f"<details><summary>{escape(measured.caption)} {len(rows)} rows</summary>"
        f"{table(header, rows, numbers)}<details><summary>What the columns "
        f"are</summary>{meaning}</details></details>"
    )


def _conditions(result: ClaimResult) -> str:
    environment = result.environment
    where = (
        f"{environment.get('processor', 'an unknown processor')}, {environment.get('threads', '?')} threads"
    )
    settings = ", ".join(map(result.write_setting, result.settings))
    return (
        f"Seed {result.seed}; {format_duration(max(result.seconds, 0.1))}, "
        f"{format_duration(max(result.processor_s, 0.1))} of processor time; {where}. {settings}"
    )
