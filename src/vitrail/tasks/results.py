"""The results in a run directory: model, scores, report."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from vitrail.models.checkpoint import load_model, save_model
from vitrail.report.sections import RunRecord
from vitrail.tasks.contract import Parts
from vitrail.tasks.registry import task_of
from vitrail.train.evaluate import Report
from vitrail.train.run import Run
from vitrail.train.settings import TrainSettings

REPORT_PAGE = "report.html"


class Outcome(NamedTuple):
    """The outcome of a training."""

    model: nn.Module
    report: Report
    """Scores on the test split."""
    elapsed_s: float
    """Training time over all sessions."""


def write_results(run: Run, parts: Parts, outcome: Outcome) -> None:
    """Write ``model/``, ``report.json`` and ``report.html``, each atomically.

    Raises:
        CheckpointError: the disk is full or not writable; the run can be resumed.
    """
    save_model(
        run.model_folder,
        outcome.model,
        model_settings=run.experiment.model,
        preprocessing=parts.preprocessing.model_dump(mode="json"),
        class_names=list(outcome.report.class_names),
        about={
            "run": run.path.name,
            "task": run.experiment.task.model_dump(mode="json"),
            "scores": outcome.report.scores,
            "signature": outcome.report.signature_line,
            "training_s": round(outcome.elapsed_s, 1),
            "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        },
        files=parts.files,
    )
    outcome.report.save(run.path / "report.json")
    loaded = load_model(run.model_folder)
    record = _record_of(run, outcome.report)
    task_of(run.experiment).write_page(run.path / REPORT_PAGE, loaded, parts, record)


def repeat_command(run: Run) -> str:
    """Return the command line that repeats the training from the stored settings."""
    source = shlex.quote(run.experiment.data.source)
    return f"vitrail train {source} --config {shlex.quote(str(run.path / 'config.json'))}"


def _record_of(run: Run, report: Report) -> RunRecord:
    settings = run.experiment
    choices = _read_json(run.path / "choices.json", [])
    return RunRecord(
        title=f"{settings.model['name']} on {Path(settings.data.source).name}",
        report=report,
        command=repeat_command(run),
        choices=[_as_it_went(settings.train, **choice) for choice in choices],
        verdict_lines=_read_json(run.path / "verdict.json", {"lines": []})["lines"],
        metrics_path=run.path / "metrics.jsonl",
        environment=_read_json(run.path / "environment.json", {}),
        experiment=settings.model_dump(mode="json"),
    )


def _as_it_went(train: TrainSettings, setting: str, value: str, reason: str) -> tuple[str, str, str]:
    """Return a row of the choices, with the number of steps actually trained."""
    if setting == "train.steps" and train.replans:
        value, reason = str(train.replans[-1].steps), f"{value} planned at first: {reason}"
    return setting, value, reason


def _read_json(path: Path, default: Any) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else default
