"""Train several mixers or models with the same budget each, one after the other, and compare them.

Each is trained by a command of its own, ``vitrail train``: its peak memory is its own, it cannot disturb
the next one, and what it leaves is an ordinary run directory.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from vitrail.cost import count_forward
from vitrail.durable import atomic_write
from vitrail.errors import CheckpointError, ConfigError, VitrailError
from vitrail.evaluate import Report
from vitrail.models import MODELS, build_from_settings
from vitrail.nn.mixers import MIXERS
from vitrail.pipeline.command import CommandError, run_to_the_end
from vitrail.pipeline.kinds import KINDS
from vitrail.pipeline.planning import DEFAULT_BUDGET_S
from vitrail.pipeline.preparing import check_settings
from vitrail.pipeline.request import DEFAULT_OUTPUT
from vitrail.pipeline.results import REPORT_PAGE
from vitrail.report.comparison import ComparedRun, Comparison, Figures, write_comparison
from vitrail.train.run import Run

COMPARISON_FILE, COMPARISON_PAGE = "comparison.json", "comparison.html"


class RunBegan(NamedTuple):
    """The next mixer or model is being trained."""

    name: str
    """Which one."""
    number: int
    """Its place, counted from 1."""
    total: int
    """How many there are."""


class RunWent(NamedTuple):
    """A training told how far it is."""

    line: str
    """What it wrote."""


class RunEnded(NamedTuple):
    """A training is finished, has failed, or was finished before."""

    run: ComparedRun
    """What it came to."""


ComparisonEvent = RunBegan | RunWent | RunEnded
OnComparisonEvent = Callable[[ComparisonEvent], None]


@dataclass(frozen=True)
class Compared:
    """A comparison and where it is."""

    folder: Path
    """Holds ``comparison.json``, ``comparison.html`` and the run directories."""
    comparison: Comparison
    """The figures."""

    @property
    def page(self) -> Path:
        """The page to open in a browser."""
        return self.folder / COMPARISON_PAGE


def ignore(event: ComparisonEvent) -> None:
    """Do nothing with an event."""


def compare(
    source: str | Path,
    *,
    mixers: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    budget_s: float | None = None,
    changes: Mapping[str, Any] | None = None,
    output: str | Path = DEFAULT_OUTPUT,
    name: str | None = None,
    seed: int | None = None,
    on_event: OnComparisonEvent = ignore,
) -> Compared:
    """Train token mixers or models with the same budget each, and write a page that compares them.

    What is finished in a comparison of that name is kept, what was stopped goes on, and what failed is
    tried again. A training that fails is noted, and the others go on.

    Args:
        source: any data that ``train`` takes.
        mixers: names of token mixers, ``["all"]`` for every one; all by default.
        models: names of models, instead of mixers.
        budget_s: wall-clock seconds for each, ten minutes by default.
        changes: dotted settings and their values that all share.
        output: the folder in which the comparison's folder is made.
        name: the folder's name, by default made of date and data.
        seed: seed of all runs.
        on_event: is told what happens.

    Raises:
        ConfigError: a name is unknown, mixers and models are both given, or the comparison of that name has
            other settings.
        CheckpointError: a file cannot be read or written.
    """
    _refuse_several_processes()
    kind, names = _contestants(mixers, models)
    asked = Comparison(
        kind=kind,
        data=str(source),
        budget_s=DEFAULT_BUDGET_S if budget_s is None else budget_s,
        seed=seed,
        changes=dict(changes or {}),
    )
    _check_asked(asked)
    folder = Path(output) / (name or _default_name(asked.data))
    comparison = _with_contestants(_open(folder, asked), names)
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder, comparison)
    for place, contestant in enumerate(names):
        former = next(run for run in comparison.runs if run.name == contestant)
        if former.figures is None:
            on_event(RunBegan(contestant, place + 1, len(names)))
            former = _train(folder, comparison, contestant, on_event)
            comparison = _with_run(comparison, former)
            _write(folder, comparison)
        on_event(RunEnded(former))
    return Compared(folder, comparison)


def measure_run(folder: Path) -> Figures:
    """Read from a finished run directory what a comparison shows.

    Raises:
        CheckpointError: the run is not finished, or a file is damaged.
    """
    run = Run.open(folder)
    scores = Report.load(folder / "report.json").scores
    logged = [entry for entry in run.metrics() if entry["kind"] == "train"]
    if not logged:
        raise CheckpointError(
            f"{folder / 'metrics.jsonl'} holds no training step",
            expected="the record of a finished run",
            remedy="Remove the run directory, then run the comparison again",
        )
    peaks = [entry["peak_memory_mib"] for entry in logged if entry.get("peak_memory_mib") is not None]
    settings = run.experiment.model
    with torch.device("meta"):  # nothing is allocated
        model = build_from_settings(settings).eval()
        image = torch.empty(1, settings["num_channels"], *settings["image_size"])
    cost = count_forward(model, image, {})
    return Figures(
        accuracy=scores["accuracy"],
        accuracy_lower=scores["accuracy_lower"],
        accuracy_upper=scores["accuracy_upper"],
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        macs=sum(part.macs for part in cost.parts.values()),
        samples_per_s=statistics.median(entry["samples_per_s"] for entry in logged),
        peak_memory_mib=max(peaks, default=None),
        steps=logged[-1]["step"],
        training_s=logged[-1]["elapsed_s"],
    )


def _train(folder: Path, comparison: Comparison, name: str, on_event: OnComparisonEvent) -> ComparedRun:
    """Train one contestant, or go on with it, and return its figures or why there are none."""
    former = _find_run(folder, name)
    if former is None or not (former / REPORT_PAGE).exists():
        command = _command(folder, comparison, name, former)
        try:
            run_to_the_end(command, folder / f"{name}.log", lambda line: on_event(RunWent(line)))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"stopped while {name} was trained; what is done is kept. Go on with the same command and "
                f"--output {shlex.quote(str(folder.parent))} --name {shlex.quote(folder.name)}"
            ) from None
        except CommandError as failure:
            return ComparedRun(name=name, error=str(failure))
    found = _find_run(folder, name)
    assert found is not None, "a training that succeeded without a run directory"
    try:
        return ComparedRun(name=name, folder=found.name, figures=measure_run(found))
    except VitrailError as error:
        return ComparedRun(name=name, folder=found.name, error=str(error))


def _command(folder: Path, comparison: Comparison, name: str, former: Path | None) -> list[str]:
    """Return the command line that trains a contestant; one that was stopped is resumed."""
    vitrail = [sys.executable, "-m", "vitrail", "train"]
    if former is not None:
        return [*vitrail, "--resume", str(former)]
    field = "model.mixer" if comparison.kind == "mixer" else "model.name"
    changes = {**comparison.changes, field: name}
    assignments = [
        part for path, value in changes.items() for part in ("--set", f"{path}={json.dumps(value)}")
    ]
    seed = [] if comparison.seed is None else ["--seed", str(comparison.seed)]
    budget = ["--budget", f"{comparison.budget_s:.3f}s"]
    return [*vitrail, comparison.data, *budget, *seed, "--output", str(folder), "--name", name, *assignments]


def _find_run(folder: Path, name: str) -> Path | None:
    """Return the newest run directory of a contestant; one that was never filled has got a follower."""
    numbers = {
        int(match[1] or 1): path
        for path in folder.glob(f"{name}*")
        if (match := re.fullmatch(rf"{re.escape(name)}(?:-(\d+))?", path.name))
        and (path / "config.json").exists()
    }
    return numbers[max(numbers)] if numbers else None


def _contestants(
    mixers: Sequence[str] | None, models: Sequence[str] | None
) -> tuple[Literal["mixer", "model"], list[str]]:
    """Return what differs, and the names without repetition."""
    if mixers and models:
        raise ConfigError(
            "mixers and models are both to be compared",
            expected="one or the other",
            remedy="Compare mixers of one model with --set model.name=NAME, or models with --models alone",
        )
    if models:
        for name in models:
            MODELS[name]
        return "model", list(dict.fromkeys(models))
    names = list(mixers or ["all"])
    if names == ["all"]:
        names = sorted(MIXERS, key=lambda name: (name != "attention", name))
    for name in names:
        MIXERS[name]
    return "mixer", list(dict.fromkeys(names))


def _check_asked(asked: Comparison) -> None:
    """Find wrong settings before the first training; those of the model depend on the data."""
    differing = "model.mixer" if asked.kind == "mixer" else "model.name"
    if differing in asked.changes:
        raise ConfigError(
            f"{differing} is set, and it is what the runs differ in",
            expected=f"other settings, which all {asked.kind}s share",
            remedy=f"Leave out {differing}",
        )
    model = asked.changes.get("model.name")
    if model is not None and "mixer" not in type(MODELS[model]).model_fields:
        raise ConfigError(
            f"the model {model} has a mixer of its own",
            expected="a model whose mixer can be chosen, such as vit_nano",
            remedy="Choose another model.name, or compare models with --models",
        )
    check_settings(asked.changes, KINDS["images"])


def _refuse_several_processes() -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "a comparison was started in several processes",
            expected="one process; it trains one mixer or model after the other",
            remedy="Start vitrail compare without torchrun",
        )


def _open(folder: Path, asked: Comparison) -> Comparison:
    """Return the comparison that the folder holds, or a new one."""
    path = folder / COMPARISON_FILE
    if not path.exists():
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(
                f"{folder} exists and holds no comparison",
                expected="a new name, or that of a comparison to go on with",
                remedy="Choose another --name",
            )
        return asked
    try:
        stored = Comparison.from_tree(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}",
            expected="the file that vitrail compare wrote",
            remedy="Choose another --name, or remove this folder",
        ) from None
    wanted, found = (value.model_dump(mode="json", exclude={"runs"}) for value in (asked, stored))
    differing = [f"{key} {found[key]!r}, not {wanted[key]!r}" for key in wanted if found[key] != wanted[key]]
    if differing:
        raise ConfigError(
            f"the comparison {folder} was made with {'; '.join(differing)}",
            expected="the same data, budget, seed and settings for all runs of a comparison",
            remedy="Give the same options, or choose another --name",
        )
    return stored


def _with_contestants(comparison: Comparison, names: Sequence[str]) -> Comparison:
    known = {run.name for run in comparison.runs}
    added = tuple(ComparedRun(name=name) for name in names if name not in known)
    return comparison.model_copy(update={"runs": comparison.runs + added})


def _with_run(comparison: Comparison, run: ComparedRun) -> Comparison:
    runs = tuple(run if former.name == run.name else former for former in comparison.runs)
    return comparison.model_copy(update={"runs": runs})


def _write(folder: Path, comparison: Comparison) -> None:
    text = json.dumps(comparison.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"
    atomic_write(folder / COMPARISON_FILE, text)
    write_comparison(folder / COMPARISON_PAGE, comparison)


def _default_name(data: str) -> str:
    word = re.sub(r"[^a-z0-9_]+", "-", Path(data.rstrip("/")).name.lower()).strip("-")
    return "-".join(filter(None, [datetime.now().strftime("%Y%m%d-%H%M%S"), word, "comparison"]))
