"""Training curves, read from ``metrics.jsonl``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

Curve = tuple[list[float], list[float]]


@dataclass(frozen=True)
class History:
    """Curves as steps and values; None without values."""

    loss: Curve | None = None
    rate: Curve | None = None
    """Learning rate as a share of its peak."""
    accuracy: Curve | None = None
    """On validation, as are all scores."""
    bleu: Curve | None = None
    """0..100."""
    bleu4: Curve | None = None
    """Of captions, 0..1."""
    nll: Curve | None = None
    """Log loss."""
    ap: Curve | None = None
    """Average precision over IoU thresholds from 0.50 to 0.95, 0..1."""
    ap50: Curve | None = None
    """Average precision at an IoU of 0.50."""
    mean_recall: Curve | None = None
    """Retrieval recall, 0..1: mean over both directions at 1, 5 and 10."""
    parts: Mapping[str, Curve] = field(default_factory=dict)
    """Parts of the training loss."""


def read_history(path: Path) -> History:
    """Read the curves; truncated lines of a killed process are skipped.

    Of a step that was logged twice, before and after a resume, the later line counts.
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
