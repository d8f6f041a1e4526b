"""The training itself and what follows: the saved model, the final score, the report."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.checkpoint import atomic_write, load_model, save_model
from vitrail.data import ImageDataset
from vitrail.errors import CheckpointError, ConfigError
from vitrail.evaluate import Report
from vitrail.evaluate import evaluate as score
from vitrail.experiment import Experiment
from vitrail.pipeline.assembling import Parts, assemble
from vitrail.pipeline.evaluating import signature_of
from vitrail.pipeline.explaining import report_pictures
from vitrail.pipeline.preparing import Prepared, open_checked, prepare
from vitrail.report.run_report import ReportInputs, write_report
from vitrail.train.budget import Deadline
from vitrail.train.events import Event
from vitrail.train.loop import fit
from vitrail.train.processes import Processes, join_processes
from vitrail.train.run import Run

EVALUATION_BATCH = 256


@dataclass(frozen=True)
class Finished:
    """The training is over; evaluation and report follow."""

    folder: Path
    """The run directory."""


@dataclass(frozen=True)
class Began:
    """The run directory exists; training follows."""

    folder: Path
    """The run directory."""


PipelineEvent = Event | Prepared | Began | Finished
OnPipelineEvent = Callable[[PipelineEvent], None]


@dataclass(frozen=True)
class TrainedRun:
    """A finished run."""

    folder: Path
    """The run directory."""
    scores: Mapping[str, float]
    """Every headline score on the test split."""
    report_path: Path
    """The page to open in a browser."""

    @property
    def accuracy(self) -> float:
        """Share of the test images that were classified correctly."""
        return self.scores["accuracy"]


def train(
    source: str | Path | None = None,
    *,
    model: str | None = None,
    budget_s: float | None = None,
    recipe: str | None = None,
    config: str | Path | None = None,
    changes: Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    output: str | Path = "runs",
    name: str | None = None,
    seed: int | None = None,
    dry_run: bool = False,
    on_event: OnPipelineEvent = lambda event: None,
) -> TrainedRun | Prepared:
    """Train, evaluate and explain a classifier, and write its run directory.

    Args:
        source: a folder, a file, a built-in name or a Hugging Face data set; not needed to resume.
        model: a model's name, instead of the automatic choice.
        budget_s: wall-clock seconds for everything, ten minutes by default.
        recipe: name of a recipe.
        config: the ``config.json`` of an earlier run, whose settings are used instead of automatic choices.
        changes: dotted settings and their values, such as ``{"train.batch_size": 64}``.
        resume: the directory of a run that was stopped; its settings are taken from there.
        output: the folder in which the run directory is made.
        name: the run directory's name, by default made of date, data and model.
        seed: seed of weights, order, augmentation and dropout.
        dry_run: stop when everything is chosen, and return the choices.
        on_event: is told what happens.

    Returns:
        The finished run; with ``dry_run``, what would have been done.

    Raises:
        DataError: the data cannot be used.
        ConfigError: a name or a value is wrong.
        CheckpointError: a run or checkpoint cannot be read or written.

    Example:
        >>> run = vitrail.train("mnist5k", budget_s=60)
        >>> run.accuracy > 0.9
        True
    """
    with join_processes() as processes:
        if resume is not None:
            return _resume(Path(resume), source, model, budget_s, recipe, changes, processes, on_event)
        if source is None:
            raise ConfigError(
                "no data was named",
                expected="a folder, a file or a name",
                remedy="Name the data, or a run to resume",
            )
        prepared = prepare(
            str(source),
            model=model,
            budget_s=budget_s,
            recipe=recipe,
            config=None if config is None else Path(config),
            changes=changes,
            seed=seed,
            processes=processes,
        )
        if processes.is_first:
            on_event(prepared)
        if dry_run:
            return prepared
        choices = [choice._asdict() for choice in prepared.choices]
        run = _create_run(Path(output), name, prepared.experiment, choices, processes)
        if processes.is_first:
            lines = prepared.verdict.summary()
            atomic_write(run.path / "verdict.json", json.dumps(prepared.verdict.to_json() | {"lines": lines}))
        deadline = None if prepared.ends_at is None else Deadline(prepared.ends_at)
        return _run_to_the_end(run, prepared.dataset, processes, on_event, deadline=deadline, resume=False)


def _resume(
    folder: Path,
    source: str | Path | None,
    model: str | None,
    budget_s: float | None,
    recipe: str | None,
    changes: Mapping[str, Any] | None,
    processes: Processes,
    on_event: OnPipelineEvent,
) -> TrainedRun:
    given = {"model": model, "budget": budget_s, "recipe": recipe, "set": changes}
    extra = [f"--{option}" for option, value in given.items() if value]
    if extra:
        raise ConfigError(
            f"{', '.join(extra)} was given together with --resume",
            expected="a resumed run to keep its settings, so that it ends as if it had never stopped",
            remedy="Leave the option out, or start a new run",
        )
    run = Run.open(folder)
    stored = run.experiment.data
    if source is not None and str(source) != stored.source:
        raise ConfigError(
            f"the run {folder} was trained on {stored.source}, not on {source}",
            expected="the same data",
            remedy="Leave the data out, or start a new run",
        )
    splits = stored.model_dump(mode="json", exclude={"source"})
    dataset, _ = open_checked(stored.source, splits)
    return _run_to_the_end(run, dataset, processes, on_event, deadline=None, resume=True)


def _create_run(
    output: Path, name: str | None, experiment: Experiment, choices: Any, processes: Processes
) -> Run:
    def create() -> Path | CheckpointError:
        try:
            return Run.create(output, experiment, choices, name=name).path
        except CheckpointError as error:
            return error

    created = processes.from_first(create)
    if isinstance(created, CheckpointError):
        raise created
    return Run.open(created)


def _run_to_the_end(
    run: Run,
    dataset: ImageDataset,
    processes: Processes,
    on_event: OnPipelineEvent,
    *,
    deadline: Deadline | None,
    resume: bool,
) -> TrainedRun:
    tell = on_event if processes.is_first else lambda event: None
    tell(Began(run.path))
    parts = assemble(run.experiment, dataset)
    result = fit(
        parts.task,
        parts.model,
        parts.train,
        parts.validation,
        run=run,
        processes=processes,
        on_event=tell,
        resume=resume,
        deadline=deadline,
    )
    tell(Finished(run.path))
    train_settings = run.experiment.train
    report = score(
        parts.task,
        result.model,
        parts.test,
        batch_size=EVALUATION_BATCH,
        device=processes.device,
        precision=train_settings.precision,
        num_workers=train_settings.num_workers,
        class_names=dataset.class_names,
        signature=signature_of(dataset, "test", parts.task.preprocessing),
    )
    if processes.is_first:
        _write_results(run, dataset, parts, result.model, report, result.elapsed_s)
    processes.wait()
    return TrainedRun(run.path, report.scores, run.path / "report.html")


def _write_results(
    run: Run, dataset: ImageDataset, parts: Parts, model: Any, report: Report, elapsed_s: float
) -> None:
    report.save(run.path / "report.json")
    save_model(
        run.model_folder,
        model,
        model_settings=run.experiment.model,
        preprocessing=parts.task.preprocessing.model_dump(mode="json"),
        class_names=list(dataset.class_names),
        about={
            "run": run.path.name,
            "scores": report.scores,
            "signature": report.signature_line,
            "training_s": round(elapsed_s, 1),
            "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        },
    )
    errors, examples = report_pictures(load_model(run.model_folder), parts.test, dataset.test.names, report)
    settings = run.experiment
    inputs = ReportInputs(
        title=f"{settings.model['name']} on {Path(settings.data.source).name}",
        report=report,
        command=repeat_command(run),
        choices=_read_choices(run.path / "choices.json"),
        verdict_lines=_read_json(run.path / "verdict.json", {"lines": []})["lines"],
        metrics_path=run.path / "metrics.jsonl",
        errors=errors,
        examples=examples,
        environment=_read_json(run.path / "environment.json", {}),
        experiment=settings.model_dump(mode="json"),
    )
    write_report(run.path / "report.html", inputs)


def repeat_command(run: Run) -> str:
    """Return the command line that trains the same model again, from the settings that were stored."""
    source = shlex.quote(run.experiment.data.source)
    return f"vitrail train {source} --config {shlex.quote(str(run.path / 'config.json'))}"


def _read_choices(path: Path) -> list[tuple[str, str, str]]:
    return [(choice["setting"], choice["value"], choice["reason"]) for choice in _read_json(path, [])]


def _read_json(path: Path, default: Any) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else default
