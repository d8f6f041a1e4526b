"""The curves of a run, read from its ``metrics.jsonl``."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
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
    nll: Curve | None = None
    """Validation negative log likelihood."""


def read_history(path: Path) -> History:
    """Collect the curves; lines cut off by a killed process are passed over, as the run itself does.

    Of a step that was logged twice, because the run was resumed before it, the later line counts.
    """
    rows: dict[str, dict[float, float]] = {field.name: {} for field in fields(History)}
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
    curves = {name: _as_curve(curve) for name, curve in rows.items()}
    return History(**curves)


def _as_curve(points: dict[float, float]) -> Curve | None:
    steps = sorted(points)
    return (steps, [points[step] for step in steps]) if steps else None
