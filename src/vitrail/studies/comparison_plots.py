"""Plots of a comparison: scores with intervals, learning curves with bands, and scores against costs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from vitrail.report.plots import SOFT, inline_svg, new_figure
from vitrail.studies.comparison import ComparedRun, Comparison, CurvePoint, Standing, format_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito 2008: for the colour-blind, and legible on white and on black.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = ("o", "s", "^")  # one per round through the colours
DASHES = ("-", "--", ":")
LEAST_MARGIN = 0.1  # of the greatest cost on either side, so that similar costs look similar
WIDE = 10.0  # times the least cost; from there on the axis is logarithmic


class Look(NamedTuple):
    """Style of a mixer or model, the same in all plots."""

    colour: str
    marker: str
    dashes: str


class BandPoint(NamedTuple):
    """One validation, over several runs."""

    x: float
    """Mean over the runs."""
    mean: float
    lower: float
    upper: float


def looks_of(comparison: Comparison) -> dict[str, Look]:
    """Assign every mixer or model its colour and marker, in training order."""
    return {
        name: Look(
            COLOURS[place % len(COLOURS)],
            MARKERS[place // len(COLOURS) % len(MARKERS)],
            DASHES[place // len(COLOURS) % len(DASHES)],
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
    """Plot the mean validation score of each, with a band from its lowest to its highest run.

    Args:
        name: alternative text.
        read: x value of a validation.
    """
    figure, axes = new_figure(x_label, f"validation {_label(comparison)}", size=(4.6, 3.2))
    factor = comparison.words.factor
    for contestant, look in looks_of(comparison).items():
        band = join_curves(comparison.finished(contestant), read)
        if not band:
            continue
        x = [point.x for point in band]
        axes.plot(
            x,
            [factor * point.mean for point in band],
            color=look.colour,
            linestyle=look.dashes,
            marker=look.marker,
            markersize=3.2,
            linewidth=1.5,
        )
        lower, upper = ([factor * point[field] for point in band] for field in (2, 3))
        axes.fill_between(x, lower, upper, color=look.colour, alpha=0.16, linewidth=0)
    axes.set_xlim(left=0)
    return inline_svg(figure, name)


def join_curves(runs: Sequence[ComparedRun], read: Callable[[CurvePoint], float]) -> list[BandPoint]:
    """Average the n-th validations of several runs, as far as all runs have them.

    Validations are evenly spaced over a run, while the steps within a budget differ between runs; so the n-th
    validation is at the same share of each training.
    """
    curves = [run.figures.curve for run in runs if run.figures is not None]
    return [
        BandPoint(
            x=statistics.fmean(read(point) for point in points),
            mean=statistics.fmean(point.score for point in points),
            lower=min(point.score for point in points),
            upper=max(point.score for point in points),
        )
        for points in zip(*curves, strict=False)
    ]


def draw_costs(comparison: Comparison, name: str, costs: Mapping[str, float], x_label: str) -> str:
    """Plot scores against a cost, with the Pareto front.

    Args:
        name: alternative text.
        costs: lower is better.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    figure, axes = new_figure(x_label, _label(comparison), size=(4.2, 3.0))
    factor, looks = comparison.words.factor, looks_of(comparison)
    front = pareto_front({standing.name: standing.score for standing in comparison.standings}, costs)
    scores = {standing.name: factor * standing.score for standing in comparison.standings}
    axes.step(
        [costs[each] for each in front],
        [scores[each] for each in front],
        where="post",
        color=SOFT,
        linewidth=1,
        linestyle="--",
        zorder=1,
    )
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
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
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
    errors: Any = None
    if standing.lower is not None and standing.upper is not None:
        factor = comparison.words.factor
        errors = [
            [factor * max(0.0, standing.score - standing.lower)],
            [factor * max(0.0, standing.upper - standing.score)],
        ]
    axes.errorbar(
        *place,
        xerr=None if is_upright else errors,
        yerr=errors if is_upright else None,
        fmt=look.marker,
        color=look.colour,
        markerfacecolor="none" if is_hollow else look.colour,
        markersize=6,
        capsize=2,
        elinewidth=1,
        zorder=2,
    )


def _tick(value: float) -> str:
    """Format a cost for an axis: short where large, with decimals where small."""
    return format_count(value) if value >= 1000 else f"{value:g}"


def _label(comparison: Comparison) -> str:
    words = comparison.words
    return f"{words.label}, {words.suffix}" if words.suffix else words.label
