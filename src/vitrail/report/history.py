"""The curves of a run, read from its ``metrics.jsonl``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

Curve = tuple[list[float], list[float]]


@dataclass(frozen=True)
class History:
    """Curves as steps and values; a curve without values is None."""

    loss: Curve | None = None
    """Mean training loss."""
    rate: Curve | None = None
    """Learning rate as a share of its peak."""
    accuracy: Curve | None = None
    """Validation accuracy."""
    bleu: Curve | None = None
    """Validation BLEU, 0..100."""
    bleu4: Curve | None = None
    """Validation BLEU-4 of captions, 0..1."""
    nll: Curve | None = None
    """Validation negative log likelihood."""
    ap: Curve | None = None
    """Validation average precision, 0..1, over IoU thresholds from 0.50 to 0.95."""
    ap50: Curve | None = None
    """Validation average precision at an IoU of 0.50."""
    mean_recall: Curve | None = None
    """Validation recall of retrieval, 0..1, the mean over both ways and the first 1, 5 and 10."""
    parts: Mapping[str, Curve] = field(default_factory=dict)
    """Parts of the training loss, by name."""


def read_history(path: Path) -> History:
    """Collect the curves; lines cut off by a killed process are passed over, as the run itself does.

    Of a step that was logged twice, because the run was resumed before it, the later line counts.
    """
    rows: dict[str, dict[float, float]] = {each.name: {} for each in fields(History) if each.name != "parts"}
    parts: dict[str, dict[float, float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if not isinstance(entry, dict) or "step" not in entry:
            continue
        values = {**entry, **entry.get("scores", {})}
        for name, curve in rows.items():
            if isinstance(values.get(name), int | float):
                curve[float(entry["step"])] = float(values[name])
        for name, value in entry.get("parts", {}).items():
            parts.setdefault(name, {})[float(entry["step"])] = float(value)
    curves = {name: _as_curve(curve) for name, curve in rows.items()}
    return History(**curves, parts={name: _sorted(points) for name, points in parts.items()})


def _as_curve(points: dict[float, float]) -> Curve | None:
    return _sorted(points) if points else None


def _sorted(points: dict[float, float]) -> Curve:
    steps = sorted(points)
    return steps, [points[step] for step in steps]
