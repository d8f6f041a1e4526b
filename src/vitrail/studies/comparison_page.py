"""HTML page of a comparison: conclusions, scores, tests, curves, costs, and every run."""

from __future__ import annotations

from html import escape
from pathlib import Path

from vitrail.report.page import section, table, write_page
from vitrail.report.sections import plots_in_row
from vitrail.studies.comparison import ComparedRun, Comparison, PairTest, comparison_table, format_count
from vitrail.studies.comparison_plots import DASHES, draw_costs, draw_curves, draw_scores, looks_of
from vitrail.studies.comparison_statements import conditions

STYLE = (
    ".failed{color:var(--bad)}.says{margin:0;padding-left:1.2em}.says li:first-child{font-weight:600}"
    ".scores svg{margin:0 0 1em}"
    ".names{display:flex;flex-wrap:wrap;gap:4px 18px;margin:0 0 14px;font-size:.875rem}"
    ".names i{display:inline-block;width:26px;height:0;border-top:3px solid;margin-right:6px;"
    "vertical-align:middle}"
)
TESTS = {
    "mcnemar": "McNemar's exact test",
    "bootstrap": "paired bootstrap",
    "welch and bootstrap": "Welch's t over seeds and paired bootstrap, the greater p of both",
}
BORDERS = dict(zip(DASHES, ("solid", "dashed", "dotted"), strict=True))
MOST_ROWS = 12  # of a table that is not collapsed


def write_comparison(path: Path, comparison: Comparison) -> None:
    """Write the page, with what is finished so far.

    Raises:
        CheckpointError: the disk is full or not writable.
    """
    title = f"{comparison.kind}s on {Path(comparison.data).name}".capitalize()
    parts = [f"<h1>{escape(title)}</h1><p>{escape(conditions(comparison))}</p>"]
    if comparison.statements:
        lines = "".join(f"<li>{escape(sentence)}</li>" for sentence in comparison.statements)
        parts.append(section("What it says", f"<ul class=says>{lines}</ul>"))
    parts.append(_table_section(comparison))
    if comparison.pairs:
        parts.append(_pairs_section(comparison))
    if comparison.standings:
        parts += [_curves_section(comparison), _costs_section(comparison)]
    if any(run.error for run in comparison.runs):
        parts.append(_failures_section(comparison))
    if comparison.standings:
        parts.append(_runs_section(comparison))
    write_page(path, title=title, body="\n".join(filter(None, parts)), style=STYLE)


def _table_section(comparison: Comparison) -> str:
    words = comparison.words
    header, rows = comparison_table(comparison)
    picture = f'<div class="scores">{draw_scores(comparison)}</div>' if comparison.standings else ""
    several = any(standing.over == "seeds" for standing in comparison.standings)
    over = "seeds; short strokes are single runs" if several else words.samples
    note = (
        f"The highest {words.label} first, with 95 % intervals over {over}. MACs are the multiplications of "
        f"{words.macs_of} in convolutions, linear layers, attention and recurrent layers; means and Fourier "
        "transforms count as none."
    )
    return section("Scores", picture + table(header, rows, frozenset(range(1, len(header)))), note)


def _pairs_section(comparison: Comparison) -> str:
    """Show the tests; of many pairs the significant ones, with the others collapsed."""
    words, pairs = comparison.words, comparison.pairs
    header = ("", "difference", "95 %", "p", "corrected", "")
    numbers = frozenset({1, 2, 3, 4})
    shown = [test for test in pairs if test.is_shown]
    if len(pairs) <= MOST_ROWS:
        content = table(header, [_pair_row(comparison, test) for test in pairs], numbers)
    else:
        content = ""
        if shown:
            content = table(header, [_pair_row(comparison, test) for test in shown], numbers)
        everything = table(header, [_pair_row(comparison, test) for test in pairs], numbers)
        content += f"<details><summary>All {len(pairs)} pairs</summary>{everything}</details>"
    tests = ", or ".join(TESTS[name] for name in dict.fromkeys(test.test for test in pairs))
    note = f"In {words.label}, on the same {words.samples}: {tests}."
    if len(pairs) > 1:
        note += f" The p are corrected for {len(pairs)} pairs (Holm), intervals are not."
        note += f" {len(shown)} of {len(pairs)} differences are shown."
    return section("Differences", content, note)


def _pair_row(comparison: Comparison, test: PairTest) -> list[str]:
    factor = comparison.words.factor
    return [
        f"{test.first} - {test.second}",
        f"{factor * test.difference:+.1f}",
        f"{factor * test.lower:+.1f} to {factor * test.upper:+.1f}",
        format_p(test.p),
        format_p(test.p_corrected),
        "shown" if test.is_shown else "not shown",
    ]


def _curves_section(comparison: Comparison) -> str:
    """Plot the learning curves; empty without validations."""
    finished = [run.figures for run in comparison.runs if run.figures is not None]
    if not any(figures.curve for figures in finished):
        return ""
    by_time = draw_curves(comparison, "curves by time", lambda point: point.elapsed_s, "training time, s")
    by_step = draw_curves(comparison, "curves by step", lambda point: point.step, "step")
    note = f"The {comparison.words.label} on validation samples while training."
    if any(len(standing.seeds) > 1 for standing in comparison.standings):
        note += " Lines are means over the seeds, bands reach from the lowest to the highest."
    return section("Learning curves", _names(comparison) + plots_in_row([by_time, by_step]), note)


def _costs_section(comparison: Comparison) -> str:
    standings = comparison.standings
    words = comparison.words
    costs = {
        "parameters": ({each.name: float(each.parameters) for each in standings}, "parameters"),
        "MACs": ({each.name: float(each.macs) for each in standings}, "MACs"),
        "training time": ({each.name: each.training_s for each in standings}, "training time, s"),
    }
    plots = [
        draw_costs(comparison, f"{words.label} against {name}", values, label)
        for name, (values, label) in costs.items()
    ]
    note = (
        "The dashed front joins those that no other beats in both; hollow marks are beaten. Whether a step "
        "of the front is more than chance is told by the table of differences."
    )
    title = f"{words.label} against its cost"
    return section(title[0].upper() + title[1:], _names(comparison) + plots_in_row(plots), note)


def _names(comparison: Comparison) -> str:
    """Return the colour legend, in table order."""
    looks = looks_of(comparison)
    entries = "".join(
        f'<span><i style="border-color:{look.colour};border-top-style:{BORDERS[look.dashes]}"></i>'
        f"{escape(standing.name)}</span>"
        for standing in comparison.standings
        for look in [looks[standing.name]]
    )
    return f'<div class="names">{entries}</div>'


def _failures_section(comparison: Comparison) -> str:
    lines = "".join(
        f"<p class=failed><b>{escape(title_of(run))}</b>: {escape(run.error)}</p>"
        for run in comparison.runs
        if run.error
    )
    return section("Failed", lines)


def _runs_section(comparison: Comparison) -> str:
    """List every finished run with a link to its report."""
    words = comparison.words
    rows = "".join(
        "<tr>"
        f'<td><a href="{escape(f"{run.folder}/report.html", quote=True)}">{escape(run.name)}</a></td>'
        f"<td class=number>{run.seed}</td><td class=number>{words.format(run.figures.score)}</td>"
        f"<td class=number>{words.format_interval(run.figures.lower, run.figures.upper)}</td>"
        f"<td class=number>{run.figures.steps:,}</td><td class=number>{run.figures.training_s:,.0f}</td>"
        f"<td class=number>{format_count(run.figures.samples_per_s)}</td></tr>"
        for standing in comparison.standings
        for run in comparison.finished(standing.name)
        if run.figures is not None
    )
    names = ("report of", "seed", words.label, f"95 % over {words.samples}", "steps", "seconds", "samples/s")
    head = "".join(f"<th{' class=number' if place else ''}>{name}</th>" for place, name in enumerate(names))
    content = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    if rows.count("<tr>") > MOST_ROWS:
        content = f"<details><summary>All {rows.count('<tr>')} runs</summary>{content}</details>"
    return section("Every run", content)


def title_of(run: ComparedRun) -> str:
    """Return the title of a run."""
    return f"{run.name}, seed {run.seed}"


def format_p(p: float) -> str:
    """Format a p-value.

    >>> format_p(0.0004), format_p(0.031), format_p(1.0)
    ('< 0.001', '0.031', '1.000')
    """
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
