"""Errors under the common corruptions, in relation to those of another model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from vitrail.core.config import Config

NUM_SEVERITIES = 5


class ReferenceErrors(NamedTuple):
    """The errors that a model's are divided by."""

    name: str
    """Of the other model."""
    clean: float
    """Its share of wrong answers without corruption."""
    corrupted: Mapping[str, float]
    """Its mean share over the severities, by corruption."""


ALEXNET = ReferenceErrors(
    # On ImageNet, of torchvision's weights: the constants that papers share since Hendrycks and Dietterich.
    "AlexNet",
    0.4348,
    {
        "gaussian_noise": 0.886428,
        "shot_noise": 0.894468,
        "impulse_noise": 0.922640,
        "defocus_blur": 0.819880,
        "glass_blur": 0.826268,
        "motion_blur": 0.785948,
        "zoom_blur": 0.798360,
        "snow": 0.866816,
        "frost": 0.826572,
        "fog": 0.819324,
        "brightness": 0.564592,
        "contrast": 0.853204,
        "elastic_transform": 0.646056,
        "pixelate": 0.717840,
        "jpeg_compression": 0.606500,
    },
)


class CorruptionErrors(Config):
    """What one corruption costs a model."""

    name: str
    """Of the corruption."""
    group: str
    """noise, blur, weather or digital."""
    errors: dict[int, float]
    """Share of wrong answers by severity."""
    mean: float
    """Over the severities."""
    relative: float
    """Mean less the error without corruption."""
    corruption_error: float | None = None
    """CE: the mean, divided by that of the reference; None without a reference."""
    relative_corruption_error: float | None = None
    """Relative CE: what the corruption adds, divided by what it adds to the reference's error; None without a
    reference, or where the corruption adds nothing to it."""


class Robustness(Config):
    """What the corruptions cost a model."""

    signature: dict[str, str]
    """What two results must agree in to be compared."""
    clean: float
    """Share of wrong answers without corruption."""
    corruptions: tuple[CorruptionErrors, ...]
    """One for each."""
    mean_error: float
    """Mean over corruptions of the mean over severities, not normalised."""
    reference: str | None = None
    """Name of the model that errors are divided by."""
    mean_corruption_error: float | None = None
    """mCE: mean of the CEs; 1 is as robust as the reference, less is better."""
    relative_mean_corruption_error: float | None = None
    """Relative mCE: mean of the relative CEs."""


def summarise(
    clean: float,
    errors: Mapping[str, Mapping[int, float]],
    groups: Mapping[str, str],
    *,
    reference: ReferenceErrors | None,
    signature: dict[str, str],
) -> Robustness:
    """Join the shares of wrong answers into corruption errors.

    ``CE_c = sum_s E_sc / sum_s R_sc`` and ``relative CE_c = sum_s (E_sc - E) / sum_s (R_sc - R)``, with the
    errors E of the model and R of the reference at each severity s, and without corruption.

    Paper: Hendrycks and Dietterich 2019, section 4.2.

    Args:
        clean: share without corruption.
        errors: shares by corruption and severity.
        groups: of the corruptions, by name.
        reference: its errors are means over the same severities.
        signature: what was measured.
    """
    rows = []
    for name, by_severity in errors.items():
        mean = sum(by_severity.values()) / len(by_severity)
        ratio = added = None
        if reference is not None:
            divisor, increase = reference.corrupted[name], reference.corrupted[name] - reference.clean
            ratio = mean / divisor if divisor > 0 else None
            added = (mean - clean) / increase if increase > 0 else None
        rows.append(
            CorruptionErrors(
                name=name,
                group=groups[name],
                errors=dict(by_severity),
                mean=mean,
                relative=mean - clean,
                corruption_error=ratio,
                relative_corruption_error=added,
            )
        )
    return Robustness(
        signature=signature,
        clean=clean,
        corruptions=tuple(rows),
        mean_error=sum(row.mean for row in rows) / len(rows),
        reference=None if reference is None else reference.name,
        mean_corruption_error=_mean([row.corruption_error for row in rows]),
        relative_mean_corruption_error=_mean([row.relative_corruption_error for row in rows]),
    )


def as_reference(name: str, measured: Robustness) -> ReferenceErrors:
    """Return what another model was measured at, to divide by."""
    return ReferenceErrors(name, measured.clean, {row.name: row.mean for row in measured.corruptions})


def _mean(values: list[float | None]) -> float | None:
    """Return the mean, None where any value is missing."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None
