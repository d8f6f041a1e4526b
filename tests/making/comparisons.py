"""Results of a comparison, made up."""

from __future__ import annotations

from vitrail.studies.comparison import ComparedRun, CurvePoint, Figures


def make_run(name: str, seed: int = 3, **changes: object) -> ComparedRun:
    """Return a finished run with these figures changed."""
    figures = Figures(
        score=0.875,
        lower=0.8,
        upper=0.93,
        samples="photos@1a|test|40",
        parameters=1_234_567,
        macs=45_600_000,
        samples_per_s=1234.4,
        peak_memory_mib=512.3,
        steps=200,
        training_s=3.5,
        curve=(
            CurvePoint(step=100, elapsed_s=2.0, score=0.5),
            CurvePoint(step=200, elapsed_s=4.0, score=0.8),
        ),
    )
    return ComparedRun(
        name=name, seed=seed, folder=f"{name}-seed{seed}", figures=figures.with_changes(changes)
    )
