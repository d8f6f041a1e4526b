"""HTML page of a comparison: conclusions, scores, tests, curves, costs, and every run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vitrail.report.page import conclusions, section, table, write_page
from vitrail.report.plots import MORE_COLOURS, SOFT, inline_svg, new_figure
from vitrail.report.sections import plots_in_row
from vitrail.studies.comparison import (
    ComparedRun,
    Comparison,
    CurvePoint,
    PairTest,
    Standing,
    comparison_table,
    conditions,
    format_count,
    pair_cells,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE = (
    ".failed{color:var(--bad)}"
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
MARKERS = ("o", "s", "^")  # one per round through the colours
DASHES = ("-", "--", ":")
LEAST_MARGIN = 0.1  # of the greatest cost on either side, so that similar costs look similar
WIDE = 10.0  # times the least cost; from there on the axis is logarithmic
BORDERS = dict(zip(DASHES, ("solid", "dashed", "dotted"), strict=True))
MOST_ROWS = 12  # of a table that is not collapsed


def write_comparison(path: Path, comparison: Comparison) -> None:
    """Write the page, with what is finished so far.

    Raises:
        CheckpointError: the disk is full or not writable.
    """
    title = f"{comparison.kind}s on {Path(comparison.data).name}".capitalize()
    parts = [
        f"<h1>{escape(title)}</h1><p>{escape(conditions(comparison))}</p>",
        conclusions(comparison.statements),
        _table_section(comparison),
    ]
    if comparison.pairs:
        parts.append(_pairs_section(comparison))
    if comparison.standings:
        parts += [_curves_section(comparison), _costs_section(comparison)]
    failures = "".join(
        f"<p class=failed><b>{escape(run.name)}, seed {run.seed}</b>: {escape(run.error)}</p>"
        for run in comparison.runs
        if run.error
    )
    if failures:
        parts.append(section("Failed", failures))
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
    shown = [test for test in pairs if test.is_significant]

    def rows(tests: Sequence[PairTest]) -> str:
        header = ("", "difference", "95 %", "p", "corrected", "")
        cells = []
        for test in tests:
            verdict = "significant" if test.is_significant else "not significant"
            cells.append([f"{test.first} - {test.second}", *pair_cells(test, words), verdict])
        return table(header, cells, frozenset({1, 2, 3, 4}))

    content = rows(pairs)
    if len(pairs) > MOST_ROWS:
        collapsed = f"<details><summary>All {len(pairs)} pairs</summary>{content}</details>"
        content = (rows(shown) if shown else "") + collapsed
    tests = ", or ".join(TESTS[name] for name in dict.fromkeys(test.test for test in pairs))
    note = f"In {words.label}, on the same {words.samples}: {tests}."
    if len(pairs) > 1:
        note += f" The p are corrected for {len(pairs)} pairs (Holm), intervals are not."
        note += f" {len(shown)} of {len(pairs)} differences are significant."
    return section("Differences", content, note)


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
    standings, words = comparison.standings, comparison.words
    costs: dict[str, Callable[[Standing], float]] = {
        "parameters": lambda each: each.parameters,
        "MACs": lambda each: each.macs,
        "training time, s": lambda each: each.training_s,
    }
    plots = []
    for label, cost in costs.items():
        name = f"{words.label} against {label.removesuffix(', s')}"
        by_name = {each.name: float(cost(each)) for each in standings}
        plots.append(draw_costs(comparison, name, by_name, label))
    note = (
        "The dashed line is the Pareto front; hollow marks are dominated. The table of differences says "
        "whether a step of the front is significant."
    )
    title = words.label[0].upper() + words.label[1:]
    return section(f"{title} against its cost", _names(comparison) + plots_in_row(plots), note)


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
    return section("Runs", content)


class Look(NamedTuple):
    """Style of a mixer or model, the same in all plots."""

    colour: str
    marker: str
    dashes: str


def looks_of(comparison: Comparison) -> dict[str, Look]:
    """Assign every mixer or model its colour and marker, in training order."""
    return {
        name: Look(
            MORE_COLOURS[place % len(MORE_COLOURS)],
            MARKERS[place // len(MORE_COLOURS) % len(MARKERS)],
            DASHES[place // len(MORE_COLOURS) % len(DASHES)],
        )
        for place, name in enumerate(comparison.names)
    }


def draw_scores(comparison: Comparison) -> str:
    """Plot each score with its interval and single runs, best on top.

    Points, not bars: bars would have to begin at zero, and hide small differences.
    """
    words, standings, looks = comparison.words, comparison.standings, looks_of(comparison)
    longest = max(len(standing.name) for standing in standings)
    size = (3.2 + 0.075 * longest, 0.34 * len(standings) + 0.9)
    figure, axes = new_figure(_label(comparison), "", size=size)
    for row, standing in enumerate(standings):
        look = looks[standing.name]
        runs = [run.figures.score for run in comparison.finished(standing.name) if run.figures]
        if len(runs) > 1:
            x = [words.factor * score for score in runs]
            axes.plot(x, [row] * len(x), "|", color=look.colour, alpha=0.8, markersize=9)
        _draw_point(axes, (words.factor * standing.score, row), standing, comparison, look, is_upright=False)
    axes.set_yticks(range(len(standings)), [standing.name for standing in standings])
    axes.set_ylim(len(standings) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    return inline_svg(figure, "scores with intervals")


def draw_curves(comparison: Comparison, name: str, read: Callable[[CurvePoint], float], x_label: str) -> str:
    """Plot the mean validation score of each, with a band from its lowest to its highest run."""
    figure, axes = new_figure(x_label, f"validation {_label(comparison)}", size=(4.6, 3.2))
    factor = comparison.words.factor
    for contestant, look in looks_of(comparison).items():
        if band := join_curves(comparison.finished(contestant), read):
            x, *scores = zip(*band, strict=True)
            mean, lower, upper = ([factor * score for score in row] for row in scores)
            style: dict[str, Any] = {"color": look.colour, "linestyle": look.dashes, "marker": look.marker}
            axes.plot(x, mean, markersize=3.2, linewidth=1.5, **style)
            axes.fill_between(x, lower, upper, color=look.colour, alpha=0.16, linewidth=0)
    axes.set_xlim(left=0)
    return inline_svg(figure, name)


def join_curves(
    runs: Sequence[ComparedRun], read: Callable[[CurvePoint], float]
) -> list[tuple[float, float, float, float]]:
    """Return mean x, mean, lowest and highest score of the n-th validations, as far as all runs have them.

    Validations are evenly spaced over a run, while the steps within a budget differ between runs; so the n-th
    validation is at the same share of each training.
    """
    curves = [run.figures.curve for run in runs if run.figures is not None]
    band = []
    for points in zip(*curves, strict=False):
        scores = [point.score for point in points]
        band.append((statistics.fmean(map(read, points)), statistics.fmean(scores), min(scores), max(scores)))
    return band


def draw_costs(comparison: Comparison, name: str, costs: Mapping[str, float], x_label: str) -> str:
    """Plot scores against a cost, with the Pareto front."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    figure, axes = new_figure(x_label, _label(comparison), size=(4.2, 3.0))
    factor, looks = comparison.words.factor, looks_of(comparison)
    front = pareto_front({standing.name: standing.score for standing in comparison.standings}, costs)
    scores = {standing.name: factor * standing.score for standing in comparison.standings}
    x, y = ([of[each] for each in front] for of in (costs, scores))
    axes.step(x, y, where="post", color=SOFT, linewidth=1, linestyle="--", zorder=1)
    for standing in comparison.standings:
        place = (costs[standing.name], scores[standing.name])
        look = looks[standing.name]
        _draw_point(axes, place, standing, comparison, look, is_hollow=standing.name not in front)
    if min(costs.values()) > 0 and max(costs.values()) > WIDE * min(costs.values()):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0), numticks=6))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.margins(x=0.08)
    else:
        low, high = min(costs.values()), max(costs.values())
        margin = max(LEAST_MARGIN * high, 0.08 * (high - low))
        axes.set_xlim(low - margin, high + margin)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: format_count(value) if value >= 1000 else f"{value:g}")
    )
    return inline_svg(figure, name)


def pareto_front(scores: Mapping[str, float], costs: Mapping[str, float]) -> list[str]:
    """Return the names that none dominates in score and cost, cheapest first.

    >>> pareto_front({"a": 0.9, "b": 0.8, "c": 0.7}, {"a": 3, "b": 1, "c": 2})
    ['b', 'a']
    """

    def is_beaten(name: str) -> bool:
        return any(
            scores[other] >= scores[name]
            and costs[other] <= costs[name]
            and (scores[other] > scores[name] or costs[other] < costs[name])
            for other in scores
        )

    return sorted((name for name in scores if not is_beaten(name)), key=lambda name: costs[name])


def _draw_point(
    axes: Axes,
    place: tuple[float, float],
    standing: Standing,
    comparison: Comparison,
    look: Look,
    *,
    is_upright: bool = True,
    is_hollow: bool = False,
) -> None:
    """Plot a point with its interval, vertical or horizontal."""
    style: dict[str, Any] = {"fmt": look.marker, "color": look.colour, "markersize": 6, "zorder": 2}
    if standing.lower is not None and standing.upper is not None:
        sides = (standing.score - standing.lower, standing.upper - standing.score)
        errors = [[comparison.words.factor * max(0.0, side)] for side in sides]
        style |= {"yerr" if is_upright else "xerr": errors, "capsize": 2, "elinewidth": 1}
    axes.errorbar(*place, markerfacecolor="none" if is_hollow else look.colour, **style)


def _label(comparison: Comparison) -> str:
    words = comparison.words
    return f"{words.label}, {words.suffix}" if words.suffix else words.label
