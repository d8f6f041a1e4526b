"""How faithful explanations are: the curves of the perturbation test over many images, and what follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from vitrail.interpret.perturbation import Interval, area_under, compare_areas, mean_interval

RANDOM = "random"
"""The order that has nothing to do with the image."""
REFERENCES = (RANDOM, "attention")
"""What the other methods are held against, where it was measured."""


class MethodScore(NamedTuple):
    """The areas under the curves of one method."""

    method: str
    deletion: Interval
    """Low where covering what the method names first makes the probability of the class fall fast."""
    insertion: Interval
    """High where showing it first makes the probability rise fast."""
    deletion_against: dict[str, Interval]
    """Mean paired difference of the first to that of each reference; negative is better."""
    insertion_against: dict[str, Interval]
    """Likewise of the second; positive is better."""


@dataclass(frozen=True, kw_only=True)
class Faithfulness:
    """The curves of each method, each image a row."""

    deletion: dict[str, Float64[np.ndarray, "images steps"]]
    """Probability of the class with ever more cells covered."""
    insertion: dict[str, Float64[np.ndarray, "images steps"]]
    """Probability of the class with ever more cells shown."""
    shares: list[float]
    """Share of the cells at each step, from 0 to 1."""
    grid: tuple[int, int]
    """Rows and columns of the cells."""
    filling: str
    """What is seen where an image is covered."""

    @property
    def num_images(self) -> int:
        """Images that were measured."""
        return len(next(iter(self.deletion.values())))

    def scores(self) -> list[MethodScore]:
        """Return the areas of all methods, the lowest deletion first."""
        deletion, insertion = (
            {name: area_under(curves, self.shares) for name, curves in of_all.items()}
            for of_all in (self.deletion, self.insertion)
        )
        references = [name for name in REFERENCES if name in deletion]
        deletion_differences = {name: compare_areas(deletion, name) for name in references}
        insertion_differences = {name: compare_areas(insertion, name) for name in references}
        scores = [
            MethodScore(
                name,
                mean_interval(deletion[name]),
                mean_interval(insertion[name]),
                {other: found[name] for other, found in deletion_differences.items() if name in found},
                {other: found[name] for other, found in insertion_differences.items() if name in found},
            )
            for name in deletion
        ]
        return sorted(scores, key=lambda score: score.deletion.mean)

    def to_json(self) -> dict[str, Any]:
        """Return the scores and the mean curves as JSON values."""
        return {
            "images": self.num_images,
            "cells": list(self.grid),
            "filling": self.filling,
            "shares": self.shares,
            "methods": {
                score.method: {
                    "deletion": score.deletion._asdict(),
                    "insertion": score.insertion._asdict(),
                    "deletion_against": _as_dicts(score.deletion_against),
                    "insertion_against": _as_dicts(score.insertion_against),
                    "deletion_curve": self.deletion[score.method].mean(axis=0).tolist(),
                    "insertion_curve": self.insertion[score.method].mean(axis=0).tolist(),
                }
                for score in self.scores()
            },
        }


def _as_dicts(intervals: dict[str, Interval]) -> dict[str, dict[str, float]]:
    return {name: interval._asdict() for name, interval in intervals.items()}
