"""VTAB-1k, the Visual Task Adaptation Benchmark: one model on 19 tasks of 1,000 images each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from vitrail import __version__
from vitrail.core.config import Config
from vitrail.core.duration import format_duration
from vitrail.core.errors import DataError, VitrailError
from vitrail.core.files import expand
from vitrail.data.feature_cache import digest_of
from vitrail.engines.loading import load_any
from vitrail.studies.probing import (
    NUM_NEIGHBOURS,
    TEMPERATURE,
    OnProgress,
    Preparing,
    mean_of_all,
    probe,
)
from vitrail.tasks.captioning.samples import digest_of_weights
from vitrail.tasks.classification.benchmark_reading import find_folder, folders_of
from vitrail.tasks.classification.benchmarks import BENCHMARKS, GROUP, GROUPS, Benchmark
from vitrail.tasks.classification.opening import open_dataset
from vitrail.tasks.preparing import DEFAULT_BUDGET_S
from vitrail.tasks.training import REPORT_PAGE, TrainedRun, train
from vitrail.train.evaluate import Report
from vitrail.train.run import find_run

VtabProtocol = Literal["linear", "knn", "fine-tune"]
NUM_TASKS = 19
KEY_DIGITS = 8  # of the digest of weights, data and budget, in the name of a run directory
RESIZED = {"published": "published", "model": "in training"}

Measure = Callable[[str], Report]
"""Scores the model on a task, named as for opening."""


class TaskScore(Config):
    """Score of a model on one task."""

    name: str
    """As ``vitrail evaluate`` takes it."""
    title: str
    """The paper's name."""
    group: str
    """natural, specialised or structured."""
    accuracy: float | None
    """Test accuracy; None where the data is not on this machine, or the task failed."""
    signature: dict[str, str]
    """Empty without a score."""
    error: str = ""
    """Why the task failed."""


class VtabScores(Config):
    """Scores of a model on all tasks."""

    signature: dict[str, str]
    """Results compare only where these agree."""
    tasks: tuple[TaskScore, ...]
    """In the paper's order."""
    groups: dict[str, float | None]
    """Mean accuracy of each group of tasks; None where one is missing."""
    mean: float | None
    """Mean accuracy of all 19 tasks; None where one is missing."""


def is_vtab(source: str) -> bool:
    """Return whether a source stands for all tasks: ``vtab-1k`` or ``vtab-1k:FOLDER``."""
    return source.partition(":")[0].strip().lower() == GROUP


def score_vtab(
    run: str | Path,
    source: str = GROUP,
    *,
    protocol: VtabProtocol = "linear",
    preparation: Preparing = "published",
    num_neighbours: int = NUM_NEIGHBOURS,
    temperature: float = TEMPERATURE,
    budget_s: float | None = None,
    output: str | Path = "runs",
    on_task: Callable[[TaskScore], None] = lambda score: None,
    on_progress: OnProgress = lambda *_: None,
) -> VtabScores:
    """Score a model on every VTAB-1k task on this machine; failed tasks are reported.

    Paper: Zhai et al. 2020, "A large-scale study of representation learning with the visual task adaptation
    benchmark": 800 images for training, 200 for validation, then the test of all 1,000; the score is the mean
    of the tasks' accuracies.
    Departs from the paper: fine-tuning uses the 800 alone, with the defaults of ``vitrail train``.

    Args:
        run: a run directory, the folder of a saved model or a published model.
        source: ``vtab-1k``, or ``vtab-1k:FOLDER`` with a folder for each task.
        protocol: ``linear`` or ``knn`` on frozen features, or ``fine-tune``.
        preparation: as for ``probe``; fine-tuning preprocesses as ``vitrail train`` does.
        num_neighbours, temperature: as for ``probe``.
        budget_s: of each fine-tuning (default: ten minutes).
        output: parent of the fine-tuning run directories; with the same weights, data and budget, finished
            runs are reused and stopped ones resumed.
        on_task: called with the score of each task.
        on_progress: as for ``probe``.

    Raises:
        DataError: no task is there; or none could be scored, which may raise a task's error.
        CheckpointError: there is no usable model.
    """
    tasks = [benchmark for benchmark in BENCHMARKS.values() if benchmark.group]
    sources = _sources_of(tasks, source.partition(":")[2])
    if protocol == "fine-tune":
        budget_s = DEFAULT_BUDGET_S if budget_s is None else budget_s
        loaded = load_any(run)  # whose weights and settings a training takes over
        settings = json.dumps([loaded.model_settings, loaded.preprocessing], sort_keys=True)
        weights = digest_of(digest_of_weights(loaded.model), settings)
        measure = partial(_fine_tune, run, weights, budget_s, Path(output))
        signed = {"method": f"fine-tune, {format_duration(budget_s)} each"}
    else:
        measure = partial(
            probe,
            run,
            protocol=protocol,
            preparation=preparation,
            num_neighbours=num_neighbours,
            temperature=temperature,
            on_progress=on_progress,
        )
        how = f"weighted {num_neighbours}-nn, temperature {temperature:g}" if protocol == "knn" else protocol
        signed = {"method": how, "resized": f"as {RESIZED[preparation]}"}
    scores = _score_all(tasks, sources, measure, on_task)
    accuracies = [score.accuracy for score in scores]
    signature = {
        "benchmark": "VTAB-1k, mean top-1 accuracy of 19 tasks",
        **signed,
        "model": Path(run).name,
        "tasks": f"{sum(accuracy is not None for accuracy in accuracies)} of {NUM_TASKS}",
        "vitrail": __version__,
    }
    by_group = {group: [each.accuracy for each in scores if each.group == group] for group in GROUPS}
    groups = {group: mean_of_all(of_group) for group, of_group in by_group.items()}
    return VtabScores(signature=signature, tasks=tuple(scores), groups=groups, mean=mean_of_all(accuracies))


def _score_all(
    tasks: Sequence[Benchmark],
    sources: dict[str, str | None],
    measure: Measure,
    on_task: Callable[[TaskScore], None],
) -> list[TaskScore]:
    """Score all available tasks; raise the first error if every one failed."""
    scores: list[TaskScore] = []
    errors = []
    for task in tasks:
        found, report, reason = sources[task.name], None, ""
        try:
            report = None if found is None else measure(found)
        except VitrailError as error:
            errors.append(error)
            reason = str(error)
        scores.append(
            TaskScore(
                name=task.name,
                title=task.title.removeprefix("VTAB-1k "),
                group=task.group,
                accuracy=None if report is None else report.scores["accuracy"],
                signature={} if report is None else report.signature,
                error=reason,
            )
        )
        on_task(scores[-1])
    if errors and all(score.accuracy is None for score in scores):
        raise errors[0]
    return scores


def _sources_of(tasks: Sequence[Benchmark], folder: str) -> dict[str, str | None]:
    """Return how each task is named for opening, None where it is not there."""
    sources = {task.name: _source_of(task, folder) for task in tasks}
    if not any(sources.values()):
        folders = [Path(folder)] if folder else folders_of(tasks[0])
        raise DataError(
            f"no task of VTAB-1k is on this machine: {folders[0] if folders else 'VITRAIL_DATA is not set'}",
            expected=f"a folder for each task, such as {tasks[0].folders[0]}/, with {tasks[0].layout}",
            remedy=f"Download them from {tasks[0].download}, and give what is above them as {GROUP}:FOLDER",
        )
    return sources


def _source_of(task: Benchmark, folder: str) -> str | None:
    if not folder:
        return task.name if find_folder(task) is not None else None
    data = expand(folder) / Path(task.folders[0]).name
    return f"{task.name}:{data}" if data.is_dir() else None


def _fine_tune(run: str | Path, weights: str, budget_s: float, output: Path, source: str) -> Report:
    """Return the report of a task, from a finished, a resumed or a new run; ``weights`` is their digest."""
    key = digest_of(weights, open_dataset(source).fingerprint, f"{budget_s:g}")
    name = f"{source.partition(':')[0]}-from-{Path(run).name}-{key[:KEY_DIGITS]}"
    folder = find_run(output, name)
    if folder is None:
        trained = train(source, weights=run, budget_s=budget_s, output=output, name=name)
    elif not (folder / REPORT_PAGE).is_file():
        trained = train(resume=folder)
    else:
        return Report.load(folder / "report.json")
    assert isinstance(trained, TrainedRun), "not a dry run"
    return Report.load(trained.folder / "report.json")
