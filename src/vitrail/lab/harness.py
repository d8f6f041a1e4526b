"""The lab: claims of papers, measured, judged by criteria written first, and written up as a page."""

from __future__ import annotations

import base64
import json
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar, get_args

import numpy as np
import torch
from pydantic import Field

from vitrail.core.config import Config
from vitrail.core.durable import atomic_write
from vitrail.core.duration import format_duration
from vitrail.core.errors import CheckpointError, ConfigError, did_you_mean
from vitrail.core.registry import Registry
from vitrail.report.page import conclusions, section, table, write_page
from vitrail.report.plots import MORE_COLOURS, check_picture_path, frame, is_picture, to_picture, white_figure
from vitrail.train.optimise import Optimisers
from vitrail.train.run import describe_environment
from vitrail.train.schedule import rate_of
from vitrail.train.settings import OptimSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure

Verdict = Literal["holds", "partly", "does not hold", "undecided"]


class Row(Config):
    """A row of a result table; a subclass' docstring is the caption, those of its fields the columns."""


class SeededRow(Row):
    """A row of one seed."""

    seed: int
    """Of everything that is random in the row."""


R = TypeVar("R", bound=Row)
C = TypeVar("C", bound=tuple[Any, ...])


class Judgement(Config):
    """What the measured rows say of a claim."""

    verdict: Verdict
    """By the claim's own criterion; undecided where the measurement cannot decide."""
    measured: str
    """The numbers that decided it, in one sentence."""


class Progress(NamedTuple):
    """Progress of a measurement, in parts."""

    done: int
    total: int
    what: str
    """The part that comes next, or the last one."""


OnProgress = Callable[[Progress], None]


class Claim(Config):
    """A claim and the program that measures it; its fields are the settings of the measurement.

    With its defaults a claim takes less than three minutes on two CPU cores; ``--set`` and tests change that.
    """

    name: ClassVar[str]
    """That of its file."""
    statement: ClassVar[str]
    """In one sentence, in our words."""
    source: ClassVar[str]
    """Authors, year, and section, table or figure."""
    published: ClassVar[str]
    """The result as published, in its own words or numbers."""
    criterion: ClassVar[str]
    """What the rows must show for the claim to hold, or to hold in part; ``judge`` computes exactly this."""

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        cls.name = cls.__module__.rpartition(".")[2]

    @abstractmethod
    def run(self, progress: OnProgress, *, seed: int) -> list[Any]:
        """Measure the claim; ``progress`` is called before each part and after the last."""

    @abstractmethod
    def judge(self, rows: Sequence[Any]) -> Judgement:
        """Apply the criterion to the rows alone."""

    @abstractmethod
    def draw(self, rows: Sequence[Any]) -> Figure:
        """Plot the rows."""


class SeededClaim(Claim):
    """A claim that is measured with several seeds."""

    num_seeds: int = Field(default=3, ge=1)
    """Seeds of data and weights, one after the other."""

    def seeds(self, first: int) -> range:
        return range(first, first + self.num_seeds)


TEXTS = ("name", "statement", "source", "published", "criterion")


CLAIMS: Registry[Claim] = Registry(
    "claim", "vitrail.lab", lambda file: {file.CLAIM.name: file.CLAIM} if hasattr(file, "CLAIM") else {}
)


def decide(*, holds: bool, partly: bool) -> Verdict:
    """Return the verdict; ``partly`` is the weaker condition.

    >>> decide(holds=False, partly=True)
    'partly'
    """
    if holds:
        return "holds"
    return "partly" if partly else "does not hold"


def tracked(progress: OnProgress, cases: Sequence[C], what: str) -> Iterator[C]:
    """Yield cases, reporting each before it is measured, and the end.

    Args:
        what: names a case; formatted with its parts.
    """
    for done, case in enumerate(cases):
        progress(Progress(done, len(cases), what.format(*case)))
        yield case
    progress(Progress(len(cases), len(cases), "done"))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw the same numbers inside the ``with`` block, whatever was drawn before it, on the CPU."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def minimise(
    model: torch.nn.Module, loss: Callable[[float], torch.Tensor], settings: OptimSettings, *, num_steps: int
) -> None:
    """Train a model by a loss that is given the share of the steps done; rates fall to zero by a cosine."""
    optimisers = Optimisers(model, settings)
    for step in range(num_steps):
        done = step / num_steps
        optimisers.set_rate(rate_of(settings, done))
        loss(done).backward()
        optimisers.step()


def num_parameters(model: torch.nn.Module) -> int:
    """Count the learned parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def rows_of(rows: Iterable[Row], kind: type[R], **values: Any) -> list[R]:
    """Return the rows of one table, of them those with the given values."""
    return [
        row
        for row in rows
        if isinstance(row, kind) and all(getattr(row, name) == value for name, value in values.items())
    ]


def column(rows: Iterable[Row], name: str, **values: Any) -> list[Any]:
    """Return one field of the rows with the given values."""
    return [getattr(row, name) for row in rows_of(rows, Row, **values)]


def mean(rows: Iterable[Row], name: str, **values: Any) -> float:
    """Return the mean of a field over the rows with the given values."""
    return fmean(column(rows, name, **values))


COLOURS = MORE_COLOURS


def new_panels(num_panels: int, *, columns: int = 3) -> tuple[Figure, list[Axes]]:
    """Return a figure with that many panels, row by row, at most ``columns`` beside each other."""
    columns = min(columns, num_panels)
    rows = math.ceil(num_panels / columns)
    figure = white_figure(4.6 * columns, 3.4 * rows, "")
    panels = [figure.add_subplot(rows, columns, index + 1) for index in range(num_panels)]
    for axes in panels:
        frame(axes, "", "")
    return figure, panels


def label(
    axes: Axes, *, x: str, y: str, title: str = "", legend: bool = False, log: str = "", base: int = 10
) -> None:
    """Name the axes of a panel, the panel, and the curves in it.

    Args:
        log: axes with a logarithmic scale: x, y or xy.
        base: of that of x.
    """
    if "x" in log:
        axes.set_xscale("log", base=base)
    if "y" in log:
        axes.set_yscale("log")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=10)
    if legend:
        axes.legend(frameon=False, fontsize=8)


def draw_curve(axes: Axes, rows: Sequence[Row], x: str, y: str, **style: Any) -> None:
    """Plot the mean of a field over the rows of each x."""
    values = sorted(set(column(rows, x)))
    axes.plot(values, [mean(rows, y, **{x: value}) for value in values], **style)


def draw_curves(
    axes: Axes, rows: Sequence[Row], x: str, y: str, *, by: str, names: Mapping[Any, str], **style: Any
) -> None:
    """Plot a curve for each kind of row; arguments as for ``draw_dots``."""
    for (kind, name), colour in zip(names.items(), COLOURS, strict=False):
        draw_curve(axes, rows_of(rows, Row, **{by: kind}), x, y, color=colour, label=name, **style)


def draw_dots(
    axes: Axes, rows: Sequence[Row], x: tuple[str, ...], y: str, *, by: str, names: Mapping[Any, str]
) -> list[Any]:
    """Plot a field of each row, by groups of equal x, and in each by kind; return the groups.

    Args:
        by: field with the kind.
        names: of the kinds, for the legend, in their order.
    """
    group_of = attrgetter(*x)
    groups = sorted({group_of(row) for row in rows})
    for index, ((kind, name), colour) in enumerate(zip(names.items(), COLOURS, strict=False)):
        shift = 0.2 * (index - (len(names) - 1) / 2)
        shown = rows_of(rows, Row, **{by: kind})
        positions = [groups.index(group_of(row)) + shift for row in shown]
        axes.scatter(positions, column(shown, y), color=colour, label=name, s=22)
    axes.set_xticks(range(len(groups)), [str(group) for group in groups])
    return groups


def fit_exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the exponent of a power law fitted to points: the slope in log-log coordinates.

    >>> round(fit_exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return float(np.polyfit(list(map(math.log, x)), list(map(math.log, y)), 1)[0])


Cell = bool | int | float | str | None


class Table(Config):
    """Measured rows of one kind."""

    caption: str
    columns: dict[str, str]
    """Column name to description."""
    rows: tuple[tuple[Cell, ...], ...]
    """In the order of the columns; None stands for NaN and infinity."""


class ClaimResult(Config):
    """A claim with what was measured of it."""

    name: str
    statement: str
    source: str
    published: str
    criterion: str
    measured: str
    """The numbers that decided it."""
    verdict: Verdict
    settings: dict[str, Any]
    changed_from: dict[str, Any]
    """The defaults of changed settings; a verdict under other settings says less about the claim."""
    seed: int
    seconds: float
    cpu_s: float
    """CPU time of all threads."""
    environment: dict[str, Any]
    """Versions, CPU, threads, command line."""
    picture: str
    """File name, in the same folder."""
    tables: tuple[Table, ...]

    @property
    def decision(self) -> str:
        """The verdict, with the changed settings."""
        changed = ", ".join(map(self.write_setting, self.changed_from))
        return f"{self.verdict}, with {changed}" if changed else self.verdict

    def write_setting(self, name: str) -> str:
        """Format a setting as ``--set`` takes it, with its default if it was changed."""
        text = write_assignment(name, self.settings[name])
        return f"{text} (default {_write(self.changed_from[name])})" if name in self.changed_from else text


class LabResults(Config):
    """Contents of ``results.json``."""

    claims: tuple[ClaimResult, ...] = Field(default=())


def tabulate(rows: Sequence[Row]) -> tuple[Table, ...]:
    """Sort rows into one table per kind, in order of first appearance."""
    tables = []
    for kind in dict.fromkeys(type(row) for row in rows):
        fields = kind.model_fields.items()
        trees = [row.model_dump(mode="json") for row in rows_of(rows, kind)]
        tables.append(
            Table(
                caption=" ".join((kind.__doc__ or "").split()),
                columns={
                    name: " ".join((field.description or "").replace("``", "").split())
                    for name, field in fields
                },
                rows=tuple(tuple(_storable(tree[name]) for name, _ in fields) for tree in trees),
            )
        )
    return tuple(tables)


def write_assignment(name: str, value: Any) -> str:
    """Format a setting as ``--set`` takes it.

    >>> write_assignment("sizes", [3, 5]), write_assignment("images", None)
    ('sizes=[3, 5]', 'images=null')
    """
    return f"{name}={_write(value)}"


def format_cell(value: Cell) -> str:
    """Format a table value.

    >>> [format_cell(value) for value in (True, 2048, 0.123456, None, "pre")]
    ['yes', '2,048', '0.1235', '-', 'pre']
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else value


def _storable(value: Cell) -> Cell:
    """Replace NaN and infinity, which JSON cannot hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


STYLE = """section img{width:100%;border-radius:9px;background:#fff}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.35em 1.1em;margin:.4em 0 1em}
dt{font-weight:600;color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
.holds{color:var(--good)}.partly{color:var(--warn)}.hold{color:var(--bad)}.undecided{color:var(--soft)}"""


def write_lab_page(path: Path, results: LabResults) -> None:
    """Write the page, with the pictures that lie in its folder embedded."""
    title = "Claims, measured"
    header = ["claim", "source", "published", "measured", "verdict"]
    rows = [
        [f"{each.name}: {each.statement}", each.source, each.published, each.measured, each.decision]
        for each in results.claims
    ]
    words = get_args(Verdict)
    named = {word: [each.name for each in results.claims if each.verdict == word] for word in words}
    decided = [f"{word}: {len(names)} ({', '.join(names)})" for word, names in named.items() if names]
    parts = [f"<h1>{title}</h1>", conclusions(decided), section("All", table(header, rows))]
    parts += [_claim_section(each, path.parent / each.picture) for each in results.claims]
    write_page(path, title=title, body="\n".join(parts), style=STYLE)


def _claim_section(result: ClaimResult, picture: Path) -> str:
    change = escape(result.decision.removeprefix(result.verdict))
    facts = {name: escape(getattr(result, name)) for name in ("source", "published", "criterion", "measured")}
    facts["verdict"] = f"<b class={result.verdict.split()[-1]}>{result.verdict}</b>{change}"
    described = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts.items())
    image = ""
    if picture.exists():  # somebody may have taken it away
        source = f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}"
        image = f'<img src="{source}" alt="{escape(result.measured, quote=True)}">'
    tables = "".join(map(_rows, result.tables))
    environment = result.environment
    conditions = (
        f"Seed {result.seed}; {format_duration(max(result.seconds, 0.1))}, "
        f"{format_duration(max(result.cpu_s, 0.1))} of CPU time; "
        f"{environment.get('cpu', 'an unknown CPU')}, {environment.get('threads', '?')} threads. "
        + ", ".join(map(result.write_setting, result.settings))
    )
    content = f"<p>{escape(result.statement)}</p><dl>{described}</dl>{image}{tables}"
    return section(result.name, content, conditions)


def _rows(measured: Table) -> str:
    columns = {name.replace("_", " "): text for name, text in measured.columns.items()}
    rows = [[format_cell(value) for value in row] for row in measured.rows]
    numbers = frozenset(
        index
        for index in range(len(columns))
        if all(isinstance(row[index], int | float | None) for row in measured.rows)
    )
    meaning = table(["column", "meaning"], list(columns.items()))
    return (
        f"<details><summary>{escape(measured.caption)} {len(rows)} rows</summary>"
        f"{table(list(columns), rows, numbers)}<details><summary>What the columns "
        f"are</summary>{meaning}</details></details>"
    )


RESULTS_FILE, PAGE = "results.json", "lab.html"
DEFAULT_OUTPUT = Path("lab")
ALL = "all"


class ClaimBegan(NamedTuple):
    """The next claim is being measured."""

    name: str
    number: int
    """Counted from 1."""
    total: int


class ClaimEnded(NamedTuple):
    """A claim is measured and judged, and its plot is written."""

    result: ClaimResult
    picture: Path


LabEvent = ClaimBegan | Progress | ClaimEnded
OnLabEvent = Callable[[LabEvent], None]


@dataclass(frozen=True)
class LabRun:
    """Results of a lab run and their folder."""

    folder: Path
    """Holds the plots, ``results.json`` and ``lab.html``."""
    results: tuple[ClaimResult, ...]
    """Results of the requested claims, in that order."""

    @property
    def page(self) -> Path:
        return self.folder / PAGE


def run_claims(
    names: Sequence[str],
    *,
    changes: Mapping[str, Any] | None = None,
    output: str | Path = DEFAULT_OUTPUT,
    seed: int = 0,
    pictures: Sequence[str] = (),
    on_event: OnLabEvent = lambda event: None,
) -> LabRun:
    """Measure and judge claims, and write their plots, ``results.json`` and a page.

    The folder is updated after each claim; results of other claims in it are kept.

    Args:
        names: claims, or ``all``.
        changes: settings as ``NAME.FIELD`` and their values.
        output: a folder; NAME.svg is the folder NAME, with plots in that format as well.
        pictures: formats of each plot beside the PNG that the page shows: svg, pdf.

    Raises:
        ConfigError: a name, a setting or a format is unknown, or a value does not fit.
        CheckpointError: the folder cannot be written, or its ``results.json`` cannot be read.
    """
    claims = _choose(names, changes or {})
    suffixes = [f".{each.removeprefix('.')}" for each in pictures]
    for suffix in suffixes:
        check_picture_path(Path(f"NAME{suffix}"), others=())
    folder = Path(output)
    if is_picture(folder):
        folder, suffixes = folder.with_suffix(""), [*suffixes, folder.suffix]
    known = _read(folder / RESULTS_FILE)
    results = []
    for number, claim in enumerate(claims, start=1):
        on_event(ClaimBegan(claim.name, number, len(claims)))
        result, figure = measure(claim, seed=seed, progress=on_event)
        results.append(result)
        others = [claim for claim in known.claims if claim.name != result.name]
        known = LabResults(claims=tuple(sorted([*others, result], key=lambda claim: claim.name)))
        path = folder / result.picture
        for suffix in (path.suffix, *suffixes):
            atomic_write(path.with_suffix(suffix), to_picture(figure, suffix))
        atomic_write(folder / RESULTS_FILE, known.model_dump_json(indent=2) + "\n")
        write_lab_page(folder / PAGE, known)
        on_event(ClaimEnded(result, path))
    return LabRun(folder, tuple(results))


def measure(claim: Claim, *, seed: int, progress: OnProgress) -> tuple[ClaimResult, Figure]:
    """Measure and judge one claim; return the result and its plot."""
    began, used = time.perf_counter(), time.process_time()
    rows = claim.run(progress, seed=seed)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - used
    judgement = claim.judge(rows)
    settings, defaults = (each.model_dump(mode="json") for each in (claim, CLAIMS[claim.name]))
    result = ClaimResult(
        **{text: getattr(claim, text) for text in TEXTS},
        measured=judgement.measured,
        verdict=judgement.verdict,
        settings=settings,
        changed_from={name: value for name, value in defaults.items() if settings[name] != value},
        seed=seed,
        seconds=round(seconds, 2),
        cpu_s=round(cpu_s, 2),
        environment=describe_environment(),
        picture=f"{claim.name}.png",
        tables=tabulate(rows),
    )
    return result, claim.draw(rows)


def _choose(names: Sequence[str], changes: Mapping[str, Any]) -> list[Claim]:
    chosen = list(CLAIMS) if ALL in names else list(dict.fromkeys(names))
    claims = {name: CLAIMS[name] for name in chosen}
    fields: dict[str, dict[str, Any]] = {name: {} for name in chosen}
    for path, value in changes.items():
        name, _, field = path.partition(".")
        if name not in claims or not field:
            raise ConfigError(
                f"--set was given {path!r}",
                expected="the name of a claim that is run, a dot and one of its settings",
                remedy=did_you_mean(name, claims),
            )
        fields[name][field] = value
    return [_change(claim, fields[name]) for name, claim in claims.items()]


def _change(claim: Claim, changes: Mapping[str, Any]) -> Claim:
    """Return the claim with changed settings; remedies in errors are in the lab's words."""
    try:
        return claim.with_changes(changes)
    except ConfigError as error:
        defaults = claim.model_dump(mode="json")
        if not changes.keys() <= defaults.keys():
            raise  # the nearest name is named already
        known = ", ".join(write_assignment(name, defaults[name]) for name in changes)
        raise ConfigError(
            error.given,
            expected=error.expected,
            remedy=f"Correct these fields, which are {known} by default; {RESULTS_FILE} holds every setting "
            "that a claim was measured with",
        ) from None


def _read(path: Path) -> LabResults:
    try:
        return LabResults.from_tree(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return LabResults()
    except (OSError, ValueError) as error:  # a ConfigError is one, of a file with other fields
        raise CheckpointError(
            f"{path} cannot be read: {error}",
            expected="the results of an earlier call, of this version of vitrail",
            remedy="Choose another folder with --output, or remove that file",
        ) from None
