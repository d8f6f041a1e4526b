"""The Visual Task Adaptation Benchmark: one model on 19 tasks of 1,000 images each, and the means."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from vitrail._version import __version__
from vitrail.config import Config
from vitrail.data.benchmark_reading import find_folder, places_of
from vitrail.data.benchmarks import BENCHMARKS, GROUP
from vitrail.data.benchmarks.contract import Benchmark
from vitrail.data.benchmarks.vtab import GROUPS
from vitrail.errors import DataError
from vitrail.evaluate import Report
from vitrail.pipeline.probing import OnProgress, ProbeProtocol, probe
from vitrail.pipeline.training import TrainedRun, train

VtabProtocol = Literal["linear", "knn", "fine-tune"]
NUM_TASKS = 19


class TaskScore(Config):
    """What a model reaches on one task."""

    name: str
    """As ``vitrail evaluate`` takes it."""
    title: str
    """As the paper calls it."""
    group: str
    """natural, specialised or structured."""
    accuracy: float | None
    """On the test images; None where the task is not on this machine."""
    signature: dict[str, str]
    """What was measured; empty where nothing was."""


class VtabScores(Config):
    """What a model reaches on all tasks."""

    signature: dict[str, str]
    """What two results must agree in to be compared."""
    tasks: tuple[TaskScore, ...]
    """In the order of the paper."""
    groups: dict[str, float | None]
    """Mean accuracy of the tasks of each group; None where one is missing."""
    mean: float | None
    """Mean accuracy of all 19 tasks; None where one is missing."""


def is_vtab(source: str) -> bool:
    """Tell whether a source stands for all tasks: ``vtab-1k`` or ``vtab-1k:FOLDER``."""
    return source.partition(":")[0].strip().lower() == GROUP


def score_vtab(
    run: str | Path,
    source: str = GROUP,
    *,
    protocol: VtabProtocol = "linear",
    budget_s: float | None = None,
    output: str | Path = "runs",
    on_task: Callable[[TaskScore], None] = lambda score: None,
    on_progress: OnProgress | None = None,
) -> VtabScores:
    """Score a model on every task of VTAB-1k that is on this machine.

    Paper: Zhai et al. 2020, "A large-scale study of representation learning with the visual task adaptation
    benchmark": 800 images to learn from, 200 to choose on, then the test of all 1,000; the score is the mean
    of the tasks' accuracies.
    Departs from the paper: fine-tuning learns from the 800 alone, with the choices of ``vitrail train``.

    Args:
        run: a run directory, the folder of a saved model or a published model.
        source: ``vtab-1k``, or ``vtab-1k:FOLDER`` with a folder for each task.
        protocol: ``linear`` or ``knn`` of frozen features, or ``fine-tune``.
        budget_s: of each fine-tuning.
        output: the folder that the run directories of fine-tuning are made in; finished ones are not
            repeated.
        on_task: told of each task that is done.
        on_progress: told how far a probe is.

    Raises:
        DataError: no task is there, or one cannot be used.
        CheckpointError: there is no usable model.
    """
    tasks = [benchmark for benchmark in BENCHMARKS.values() if benchmark.group]
    sources = _sources_of(tasks, source.partition(":")[2])
    scores = []
    for task in tasks:
        found = sources[task.name]
        report: Report | None = None
        if found is not None and protocol == "fine-tune":
            report = _fine_tune(run, task, found, budget_s, Path(output))
        elif found is not None:
            report = probe(run, found, protocol=_frozen(protocol), on_progress=on_progress)
        scores.append(_task_score(task, report))
        on_task(scores[-1])
    signature = {
        "benchmark": "VTAB-1k, mean top-1 accuracy of 19 tasks",
        "protocol": protocol,
        "model": Path(run).name,
        "tasks": f"{sum(score.accuracy is not None for score in scores)} of {NUM_TASKS}",
        "vitrail": __version__,
    }
    return VtabScores(
        signature=signature,
        tasks=tuple(scores),
        groups={
            group: _mean([score.accuracy for score in scores if score.group == group]) for group in GROUPS
        },
        mean=_mean([score.accuracy for score in scores]),
    )


def _sources_of(tasks: Sequence[Benchmark], folder: str) -> dict[str, str | None]:
    """Return how each task is named for opening, None where it is not there."""
    sources = {task.name: _source_of(task, folder) for task in tasks}
    if not any(sources.values()):
        places = [Path(folder)] if folder else places_of(tasks[0])
        raise DataError(
            f"no task of VTAB-1k is on this machine: {places[0] if places else 'VITRAIL_DATA is not set'}",
            expected=f"a folder for each task, such as {tasks[0].folders[0]}/, with {tasks[0].layout}",
            remedy=f"Download them from {tasks[0].download}, and give what is above them as {GROUP}:FOLDER",
        )
    return sources


def _source_of(task: Benchmark, folder: str) -> str | None:
    """Return how a task is named for opening, None where it is not there."""
    if not folder:
        return task.name if find_folder(task) is not None else None
    place = Path(folder).expanduser() / Path(task.folders[0]).name
    return f"{task.name}:{place}" if place.is_dir() else None


def _frozen(protocol: VtabProtocol) -> ProbeProtocol:
    assert protocol != "fine-tune", "the features are frozen"
    return protocol


def _fine_tune(run: str | Path, task: Benchmark, source: str, budget_s: float | None, output: Path) -> Report:
    name = f"{task.name}-from-{Path(run).name}"
    stored = output / name / "report.json"
    if not stored.is_file():
        trained = train(source, weights=run, budget_s=budget_s, output=output, name=name)
        assert isinstance(trained, TrainedRun), "not a dry run"
    return Report.from_tree(json.loads(stored.read_text(encoding="utf-8")))


def _task_score(task: Benchmark, report: Report | None) -> TaskScore:
    return TaskScore(
        name=task.name,
        title=task.title.removeprefix("VTAB-1k "),
        group=task.group,
        accuracy=None if report is None else report.scores["accuracy"],
        signature={} if report is None else report.signature,
    )


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
