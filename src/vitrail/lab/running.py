"""Run claims one after the other, and keep what came out: pictures, one table, one page."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.core.durable import atomic_write
from vitrail.core.errors import CheckpointError, ConfigError, did_you_mean
from vitrail.lab import CLAIMS
from vitrail.lab.contract import Claim, OnProgress, Progress
from vitrail.lab.figures import to_png
from vitrail.lab.page import write_lab_page
from vitrail.lab.results import ClaimResult, LabResults, tabulate, write_assignment
from vitrail.train.run import describe_environment

RESULTS_FILE, PAGE = "results.json", "lab.html"
DEFAULT_OUTPUT = Path("lab")
ALL = "all"


class ClaimBegan(NamedTuple):
    """The next claim is being measured."""

    name: str
    """Which one."""
    number: int
    """Its place, counted from 1."""
    total: int
    """How many there are."""


class ClaimEnded(NamedTuple):
    """A claim is measured and judged, and its picture is written."""

    result: ClaimResult
    """What came out."""
    picture: Path
    """The picture."""


LabEvent = ClaimBegan | Progress | ClaimEnded
OnLabEvent = Callable[[LabEvent], None]


@dataclass(frozen=True)
class LabRun:
    """What was measured, and where it is."""

    folder: Path
    """Holds the pictures, ``results.json`` and ``lab.html``."""
    results: tuple[ClaimResult, ...]
    """Of the claims that were asked for, in that order."""

    @property
    def page(self) -> Path:
        """The page to open in a browser."""
        return self.folder / PAGE


def ignore(event: LabEvent) -> None:
    """Do nothing with an event."""


def run_claims(
    names: Sequence[str],
    *,
    changes: Mapping[str, Any] | None = None,
    output: str | Path = DEFAULT_OUTPUT,
    seed: int = 0,
    on_event: OnLabEvent = ignore,
) -> LabRun:
    """Measure claims, judge them, and write a picture of each, ``results.json`` and a page.

    The folder is renewed after each claim. What it holds of other claims stays.

    Args:
        names: of claims, or ``all`` for every one.
        changes: ``NAME.FIELD`` and the value of a setting of that claim.
        output: the folder; it is made where there is none.
        seed: of everything random.
        on_event: is told what happens.

    Raises:
        ConfigError: a name or a setting is unknown, or a value does not fit.
        CheckpointError: the folder cannot be written, or its ``results.json`` cannot be read.
    """
    claims = _choose(names, changes or {})
    folder = Path(output)
    known = _read(folder / RESULTS_FILE)
    results = []
    for place, claim in enumerate(claims):
        on_event(ClaimBegan(claim.name, place + 1, len(claims)))
        result, picture = measure(claim, seed=seed, progress=on_event)
        results.append(result)
        known = known.with_result(result)
        path = folder / result.picture
        atomic_write(path, picture)
        atomic_write(folder / RESULTS_FILE, known.model_dump_json(indent=2) + "\n")
        write_lab_page(folder / PAGE, known)
        on_event(ClaimEnded(result, path))
    return LabRun(folder, tuple(results))


def measure(claim: Claim[Any], *, seed: int, progress: OnProgress) -> tuple[ClaimResult, bytes]:
    """Measure and judge one claim, and return what came out with its picture, a PNG file.

    Args:
        claim: with its settings.
        seed: of everything random.
        progress: is told how far it is.
    """
    began, used = time.perf_counter(), time.process_time()
    rows = claim.run(progress, seed=seed)
    seconds, processor_s = time.perf_counter() - began, time.process_time() - used
    judgement = claim.judge(rows)
    settings, defaults = (each.model_dump(mode="json") for each in (claim, CLAIMS[claim.name]))
    result = ClaimResult(
        name=claim.name,
        statement=claim.statement,
        source=claim.source,
        published=claim.published,
        criterion=claim.criterion,
        measured=judgement.measured,
        verdict=judgement.verdict,
        settings=settings,
        changed_from={name: value for name, value in defaults.items() if settings[name] != value},
        seed=seed,
        seconds=round(seconds, 2),
        processor_s=round(processor_s, 2),
        environment=describe_environment(),
        picture=f"{claim.name}.png",
        tables=tabulate(rows),
    )
    return result, to_png(claim.draw(rows))


def _choose(names: Sequence[str], changes: Mapping[str, Any]) -> list[Claim[Any]]:
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


def _change(claim: Claim[Any], changes: Mapping[str, Any]) -> Claim[Any]:
    """Return the claim with other settings; what is remedied is said in the lab's words."""
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
