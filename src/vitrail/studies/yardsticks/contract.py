"""What a comparison must be told of a kind of data; everything else is the same for all kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64
from torch import Tensor

from vitrail.models.contract import ModelConfig


@runtime_checkable
class Yardstick(Protocol):
    """How models of one kind of data are measured against each other."""

    kind: str
    """The kind of data."""
    score: str
    """What they are ranked by, as reports name it; a word of ``studies.comparison.SCORES``."""
    model: type[ModelConfig]
    """What settings of such models are."""
    least_resamples: int
    """How often test samples are drawn at least; more, where many pairs are tested."""

    def shared_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings that runs of different mixers must share to be compared, beside those asked for."""
        ...

    def example(self, config: Any) -> tuple[Tensor, ...]:
        """Return one input of a model, whose values do not matter; its operations are counted."""
        ...

    def read(self, folder: Path) -> Any:
        """Return what came out for each test sample of a finished run.

        Raises:
            VitrailError: a file is missing or damaged.
        """
        ...

    def resample(self, runs: Sequence[Any], num_resamples: int) -> Float64[np.ndarray, " {num_resamples}"]:
        """Return the mean score of runs on each resample of the test samples, the same ones at every call.

        Args:
            runs: what ``read`` returned of each.
            num_resamples: how often samples are drawn.
        """
        ...

    def exact_p(self, first: Any, second: Any) -> float | None:
        """Return the p of an exact test of two runs on the same test samples; None where there is none.

        Args:
            first: what ``read`` returned of one run.
            second: what it returned of the other.
        """
        ...
