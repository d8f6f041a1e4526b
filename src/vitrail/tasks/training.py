"""The pipeline: from a request to a trained, evaluated and explained model in a run directory."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from vitrail.core.errors import ConfigError
from vitrail.data.findings import Verdict
from vitrail.engines.cpu import accelerate
from vitrail.engines.loading import load, load_once
from vitrail.models.checkpoint import LoadedModel, load_model
from vitrail.report.sections import RunRecord
from vitrail.tasks.contract import Diagnosis, Parts
from vitrail.tasks.diagnosing import diagnose
from vitrail.tasks.notebook import is_notebook, notebook_progress
from vitrail.tasks.preparing import Budget, Checked, Checking, Prepared, fit_steps, open_checked, prepare
from vitrail.tasks.registry import open_run, task_of
from vitrail.tasks.request import DEFAULT_OUTPUT, Request, check_arguments
from vitrail.train.budget import Deadline, Plan
from vitrail.train.checkpoints import newest_step
from vitrail.train.evaluate import Report, run_evaluator
from vitrail.train.evaluate import evaluate as score
from vitrail.train.events import Event, ignore
from vitrail.train.interrupt import resumable
from vitrail.train.loop import fit
from vitrail.train.objective import Settling
from vitrail.train.processes import Processes, join_processes
from vitrail.train.run import Choice, Run
from vitrail.train.schedule import rate_of

REPORT_PAGE, REPORT_FILE = "report.html", "report.json"
UNKNOWN = Diagnosis("")
LOW_RATE = 0.1  # of the peak, at which further steps change little
FILES_FOLDER = "files"  # of a run directory: preprocessing files such as vocabularies


class Began(NamedTuple):
    """The run directory exists; training follows."""

    folder: Path
    """The run directory."""


class Finished(NamedTuple):
    """The training is done; evaluation and report follow."""


PipelineEvent = Event | Checking | Checked | Prepared | Began | Finished
OnPipelineEvent = Callable[[PipelineEvent], None]


@dataclass(frozen=True)
class TrainedRun:
    """A finished run."""

    folder: Path
    scores: Mapping[str, float]
    """Headline scores on the test split."""
    report_path: Path
    """The HTML report."""
    headline: str = "accuracy"
    """Name of the headline score: accuracy of a classifier, BLEU of a translator, a benchmark's published
    metric.
    """
    diagnosis: Diagnosis = UNKNOWN
    """What the run came to, what is the matter with it, and what to do."""

    former_scores: Mapping[str, float] = field(default_factory=dict)
    """Scores before a finished run went on."""

    @property
    def score(self) -> float:
        """The headline score."""
        return self.scores[self.headline]

    @property
    def accuracy(self) -> float:
        """Test accuracy of a classifier."""
        return self.scores["accuracy"]

    @cached_property
    def model(self) -> nn.Module:
        """The trained model, as from ``vitrail.load``."""
        return load(self.folder)

    def predictor(self, **options: Any) -> Any:
        """Return what uses the model: a ``Predictor``, ``Detector``, ``Translator`` and so on, by its task.

        Args:
            options: of that class, such as ``batch_size``.
        """
        return task_of(open_run(self.folder).experiment).predictor(self.folder, **options)


def train(
    source: str | Path | None = None,
    *,
    model: str | None = None,
    weights: str | Path | None = None,
    budget_s: float | None = None,
    recipe: str | None = None,
    config: str | Path | None = None,
    changes: Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    output: str | Path = DEFAULT_OUTPUT,
    name: str | None = None,
    seed: int | None = None,
    dry_run: bool = False,
    spent_s: float = 0.0,
    on_event: OnPipelineEvent | None = None,
    **misnamed: Any,
) -> TrainedRun | Prepared:
    """Train, evaluate and explain a model, and write its run directory; the task follows from the data.

    Args:
        source: a folder, a file, a built-in name or a Hugging Face data set; not needed to resume.
        model: a model's name, instead of the automatic choice.
        weights: what to start from, as for ``vitrail.load``; its model and preprocessing are taken over.
        budget_s: wall-clock seconds for everything, ten minutes by default; with ``resume``, for more steps.
        recipe: name of a recipe; its settings go before the automatic choices.
        config: the ``config.json`` of an earlier run, to repeat it.
        changes: dotted settings and their values, such as ``{"train.batch_size": 64}``; they go before all.
        resume: the directory of a run, to go on with as planned, or for a budget; its settings stay.
        output: the folder in which the run directory is made.
        name: the run directory's name, by default made of date, data and model.
        seed: seed of weights, order, augmentation and dropout.
        dry_run: stop when everything is chosen, and return the choices.
        spent_s: seconds of the budget that are over already, as those in which a command started.
        on_event: called with each event, in the first process only; by default a bar in a notebook.

    Raises:
        DataError: the data cannot be used.
        ConfigError: a name or a value is wrong, or options exclude each other.
        CheckpointError: a run or checkpoint cannot be read or written.

    Example:
        >>> vitrail.train("mnist5k", budget_s=60).accuracy > 0.9  # doctest: +SKIP
        True
    """
    asked = locals()  # the fields of a request, which says what does not fit together
    check_arguments(misnamed)
    request = Request.from_tree({name: asked[name] for name in Request.model_fields})
    with join_processes() as processes, ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())  # a busy machine may get fewer
        shown = on_event or (notebook_progress() if is_notebook() else ignore)
        tell = shown if processes.is_first else ignore
        if request.resume is not None:
            return _resume(request, processes, tell, stack)
        prepared = prepare(request, processes, tell)
        tell(prepared)
        return prepared if request.dry_run else _start(prepared, request, processes, tell, stack)


def _start(
    prepared: Prepared, request: Request, processes: Processes, tell: OnPipelineEvent, stack: ExitStack
) -> TrainedRun:

    def create() -> Run:
        run = Run.create(
            Path(request.output),
            prepared.experiment,
            prepared.choices,
            name=request.name,
            verdict={**prepared.verdict.to_json(), "lines": prepared.verdict.summary()},
            files={f"{FILES_FOLDER}/{name}": content for name, content in prepared.parts.files.items()},
        )
        stack.enter_context(run.locked())
        return run

    run = processes.from_first(create)
    return _run_to_the_end(run, prepared.parts, processes, tell, deadline=prepared.deadline)


def _resume(request: Request, processes: Processes, tell: OnPipelineEvent, stack: ExitStack) -> TrainedRun:
    request.check_resumed()

    def lock() -> None:
        stack.enter_context(open_run(str(request.resume)).locked())

    processes.from_first(lock)
    run = open_run(str(request.resume))
    run.record()  # damage is found now, not after the training
    stored = run.experiment.data.source
    if request.source is not None and str(request.source) != stored:
        raise ConfigError(
            f"the run {run.path} was trained on {stored}, not on {request.source}",
            expected="the same data",
            remedy="Leave the data out, or start a new run",
        )
    budget = Budget(request.budget_s, started=time.monotonic() - request.spent_s)
    task = task_of(run.experiment)
    dataset, verdict = open_checked(task, run.experiment.data, processes)
    files = {path.name: path.read_bytes() for path in (run.path / FILES_FOLDER).glob("*")}
    parts = task.assemble(run.experiment, dataset, files)
    if request.budget_s is None:
        return _run_to_the_end(run, parts, processes, tell, deadline=None)
    results = run.path / REPORT_FILE
    former = Report.load(results).scores if results.exists() else {}
    prepared = _plan_more(run, parts, verdict, budget, processes)
    tell(prepared)
    trained = _run_to_the_end(run, parts, processes, tell, deadline=prepared.deadline)
    return replace(trained, former_scores=former)


def _plan_more(run: Run, parts: Parts, verdict: Verdict, budget: Budget, processes: Processes) -> Prepared:
    """Plan as many further steps for a run as the budget allows, and record them with their reason."""
    steps, _, times, deadline = fit_steps(run.experiment, parts, budget, processes)
    step = processes.from_first(lambda: newest_step(run.checkpoints))
    plan = Plan(run, processes, deadline)
    plan.extend(step, steps)
    experiment, progress = run.experiment, plan.progress(step)
    rate = rate_of(experiment.optim, progress)
    reason = f"{steps} more steps fit into {budget}; the learning rate goes on at {rate:.0%} of its peak"
    if plan.restarts(step):
        reason += f", as after {step} of {step + steps} steps of one training"
    if rate < LOW_RATE:
        minutes = math.ceil((budget.seconds + (step - steps) * times.step_s) / 60)
        reason += f": too low to learn much; --budget {minutes}m is enough for twice as many steps in all"
    choice = Choice("train.steps", f"{step} + {steps}", reason)
    if processes.is_first:
        run.write_choices([*run.record().choices, choice])
    return Prepared(task_of(experiment), parts, verdict, experiment, (choice,), deadline)


def _run_to_the_end(
    run: Run, parts: Parts, processes: Processes, tell: OnPipelineEvent, *, deadline: Deadline | None
) -> TrainedRun:
    """Train from the newest checkpoint, if any, then evaluate and write the results."""
    tell(Began(run.path))
    load_once.cache_clear()  # the model has its own copy of the weights
    accelerate(parts.model)
    with resumable(run.path):
        result = fit(
            parts.objective,
            parts.model,
            parts.train,
            parts.validation,
            run=run,
            processes=processes,
            on_event=tell,
            deadline=deadline,
        )
        tell(Finished())
        settings, task = run.experiment.train, task_of(run.experiment)
        objective = parts.final_objective
        if isinstance(objective, Settling) and parts.validation is not None:
            evaluator = objective.evaluator()
            run_evaluator(
                evaluator,
                objective,
                result.model,
                parts.validation,
                batch_size=task.evaluation_batch,
                num_workers=settings.num_workers,
            )
            objective = objective.settled(evaluator)
        report = score(
            objective,
            result.model,
            parts.test,
            batch_size=task.evaluation_batch,
            num_workers=settings.num_workers,
            class_names=parts.class_names,
            signature=task.sign(parts.dataset, "test", parts.preprocessing),
        )
        report = task.as_published(report, parts.dataset, "test")
        diagnosis = processes.from_first(
            lambda: write_results(run, parts, result.model, report, result.elapsed_s)
        )
    headline = task.headline_of(parts.dataset)
    return TrainedRun(run.path, report.scores, run.path / REPORT_PAGE, headline, diagnosis)


def write_results(run: Run, parts: Parts, model: nn.Module, report: Report, elapsed_s: float) -> Diagnosis:
    """Write ``model/``, ``report.json`` and ``report.html``, each atomically, and return the diagnosis.

    Raises:
        CheckpointError: the disk is full or not writable; the run can be resumed.
    """
    LoadedModel(
        model,
        model_settings=run.experiment.model.model_dump(mode="json"),
        preprocessing=parts.preprocessing.model_dump(mode="json"),
        class_names=list(report.class_names),
        about={
            "run": run.path.name,
            "task": run.experiment.task.model_dump(mode="json"),
            "scores": report.scores,
            "signature": report.signature_line,
            "training_s": round(elapsed_s, 1),
            "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        },
        files=parts.files,
    ).save(run.model_folder)
    report.save(run.path / REPORT_FILE)
    loaded, diagnosis = load_model(run.model_folder), diagnose(run, parts, report)
    record = _record_of(run, report, diagnosis)
    task_of(run.experiment).write_page(run.path / REPORT_PAGE, loaded, parts, record)
    return diagnosis


def _record_of(run: Run, report: Report, diagnosis: Diagnosis) -> RunRecord:
    settings, source, record = run.experiment, shlex.quote(run.experiment.data.source), run.record()
    choices = list(record.choices)
    for index, (setting, value, reason) in enumerate(choices):
        if setting == "train.steps" and settings.train.replans:  # as many as were trained
            steps, planned = settings.train.replans[-1].steps, f"{value} planned at first: {reason}"
            choices[index] = Choice(setting, str(steps), planned)
    return RunRecord(
        title=f"{settings.model.name} on {Path(settings.data.source).name}",
        report=report,
        conclusions=[diagnosis.result, *diagnosis.problems, diagnosis.remedy or "Nothing stands out."],
        command=f"vitrail train {source} --config {shlex.quote(str(run.path / 'config.json'))}",
        choices=choices,
        verdict_lines=record.verdict_lines,
        metrics_path=run.metrics_path,
        environment=record.environment,
        experiment=settings.model_dump(mode="json"),
    )
