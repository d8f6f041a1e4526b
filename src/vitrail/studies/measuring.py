"""Results of a finished run for a comparison: scores, size, cost, speed, memory, and the curve."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from vitrail.core.errors import CheckpointError
from vitrail.models import config_from_settings
from vitrail.models.cost import count_forward
from vitrail.studies.comparison import FURTHER, CurvePoint, Figures
from vitrail.tasks.contract import ComparisonMetric
from vitrail.tasks.registry import open_run
from vitrail.train.evaluate import Report


def measure_run(folder: Path, metric: ComparisonMetric) -> Figures:
    """Read the results of a finished run directory.

    Raises:
        CheckpointError: the run is not finished, or a file is damaged.
        DataError: the report is missing or damaged.
    """
    run, report = open_run(folder), Report.load(folder / "report.json")
    entries = run.metrics()
    logged = [entry for entry in entries if entry["kind"] == "train"]
    if not logged:
        raise CheckpointError(
            f"{folder / 'metrics.jsonl'} holds no training step",
            expected="the record of a finished run",
            remedy="Remove the run directory, then run the comparison again",
        )
    peaks = [entry["peak_memory_mib"] for entry in logged if entry.get("peak_memory_mib") is not None]
    with torch.device("meta"):  # nothing is allocated
        config = config_from_settings(run.experiment.model)
        model = config.build().eval()
        cost = count_forward(model, config.example_inputs(1), {})
    scores, name = report.scores, metric.score
    return Figures(
        score=scores[name],
        lower=scores.get(f"{name}_lower"),
        upper=scores.get(f"{name}_upper"),
        further={other: scores[other] for other in FURTHER if other in scores},
        samples="|".join(report.signature[key] for key in ("data", "split", "samples")),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        macs=sum(part.macs for part in cost.parts.values()),
        samples_per_s=statistics.median(entry["samples_per_s"] for entry in logged),
        peak_memory_mib=max(peaks, default=None),
        steps=logged[-1]["step"],
        training_s=logged[-1]["elapsed_s"],
        curve=_curve(entries, name),
    )


def _curve(entries: Sequence[Mapping[str, Any]], score: str) -> tuple[CurvePoint, ...]:
    """Return the validations; of a step that was validated twice, after a resume, the later one."""
    points = {
        entry["step"]: CurvePoint(
            step=entry["step"], elapsed_s=entry["elapsed_s"], score=entry["scores"][score]
        )
        for entry in entries
        if entry["kind"] == "validation" and entry["scores"].get(score) is not None
    }
    return tuple(points[step] for step in sorted(points))
