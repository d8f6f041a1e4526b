"""Models of one sentence or image that write tokens given beforehand, for evaluators and searches."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class ScriptState:
    """The tokens that each row writes; the rows of a sample are neighbours."""

    rows: Tensor
    num_written: int = 0
    rows_per_sample: int = 1

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    def expand(self, count: int) -> ScriptState:
        rows = self.rows.repeat_interleave(count, dim=0)
        return ScriptState(rows, self.num_written, self.rows_per_sample * count)

    def select(self, rows: Tensor) -> ScriptState:
        return ScriptState(self.rows[rows], self.num_written, self.rows_per_sample)

    def keep(self, samples: Tensor) -> ScriptState:
        rows = self.rows.unflatten(0, (-1, self.rows_per_sample))[samples].flatten(0, 1)
        return ScriptState(rows, self.num_written, self.rows_per_sample)

    def step(self, vocabulary_size: int, logit: Tensor | float) -> tuple[Tensor, ScriptState]:
        """Return ``logit`` for each row's next token and 0 for the others, and the next state."""
        logits = logit * F.one_hot(self.rows[:, self.num_written], vocabulary_size)
        return logits, ScriptState(self.rows, self.num_written + 1, self.rows_per_sample)
