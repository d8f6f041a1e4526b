"""How translators decode: the settings, and beam search with the torch model."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, get_args

import torch
from jaxtyping import Int
from torch import Tensor

from vitrail.core.errors import ConfigError, check_name
from vitrail.data.text.rows import join_rows
from vitrail.models.contract import TranslationModel, TranslationModelConfig
from vitrail.models.decoding import USUAL_PATIENCE, Hypothesis, PenaltyForm, beam_search
from vitrail.tasks.predicting import check_positive

MOST_BEAMS = 1000  # memory grows with its square
MAX_LENGTH_RATIO, MAX_LENGTH_EXTRA = 2.0, 10  # output limit relative to the source, as in the task


class Search(NamedTuple):
    """Decoding settings."""

    beam_size: int = 5
    """Beam size; 1 decodes greedily."""
    length_penalty: float = 1.0
    """Exponent of the length penalty; 0 prefers short translations. Greedy ones change in score alone."""
    num_best: int = 1
    """Distinct translations to return, at most ``beam_size``; fewer if the beam holds fewer."""
    max_length: int | None = None
    """Maximum subwords of a translation, its end included; None allows twice the source length plus ten."""
    penalty_form: PenaltyForm = "power"
    """Form of the length penalty, as for ``penalty_of``."""

    def limits(self, source_lengths: Sequence[int]) -> list[int]:
        """Return the maximum length of each translation; all lengths include the end."""
        if self.max_length is not None:
            return [self.max_length] * len(source_lengths)
        return [int(MAX_LENGTH_RATIO * length) + MAX_LENGTH_EXTRA for length in source_lengths]

    def run(
        self,
        model: TranslationModel,
        source: Int[Tensor, "batch tokens"],
        source_lengths: Int[Tensor, " batch"],
        *,
        on_step: Callable[[list[Hypothesis]], None] | None = None,
    ) -> list[list[Hypothesis]]:
        """Return the best hypotheses for each padded sentence; lengths include the end.

        Args:
            on_step: as in ``beam_search``.
        """
        config = model.config
        max_lengths = torch.tensor(self.limits(source_lengths.tolist()), device=source.device)
        return beam_search(
            model,
            model.start(source, source_lengths),
            begin_id=config.begin_id,
            end_id=config.end_id,
            pad_id=config.pad_id,
            max_lengths=max_lengths.clamp(max=max_positions(config)),
            beam_size=self.beam_size,
            length_penalty=self.length_penalty,
            penalty_form=self.penalty_form,
            num_best=self.num_best,
            patience=USUAL_PATIENCE,
            on_step=on_step,
        )

    def check(self, batch_tokens: int, read_ahead: int) -> None:
        """Refuse numbers that are not positive, no numbers, and more translations than the beam keeps."""
        check_positive("the beam size", self.beam_size)
        check_positive("the number of translations", self.num_best)
        check_positive("the number of subwords of a batch", batch_tokens)
        check_positive("the number of lines read ahead", read_ahead)
        check_positive("the maximum length", 1 if self.max_length is None else self.max_length)
        check_name("form of the length penalty", self.penalty_form, get_args(PenaltyForm))
        if not isinstance(self.length_penalty, int | float) or not math.isfinite(self.length_penalty):
            raise ConfigError(
                f"the length penalty is {self.length_penalty!r}",
                expected="a finite number",
                remedy="Choose 1, or 0 for short translations",
            )
        if self.beam_size > MOST_BEAMS:
            raise ConfigError(
                f"the beam size is {self.beam_size:,}",
                expected=f"at most {MOST_BEAMS:,}",
                remedy="Choose 5; beyond 50, translations rarely get better",
            )
        if self.num_best > self.beam_size:
            raise ConfigError(
                f"{self.num_best} translations of each line were asked for with a beam of {self.beam_size}",
                expected="at most as many as the beam keeps",
                remedy=f"Give a beam of {self.num_best}, or ask for fewer",
            )


class TorchDecoder:
    """Decode with the torch model."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self.model, self.config, self.device = model, model.config, device

    def decode(self, rows: Sequence[Sequence[int]], search: Search) -> list[list[Hypothesis]]:
        """Return the best hypotheses for each row of source subwords, as one batch.

        Args:
            rows: non-empty, without the end.
        """
        with torch.inference_mode():
            return search.run(self.model, *self.to_batch(rows))

    def to_batch(
        self, rows: Sequence[Sequence[int]]
    ) -> tuple[Int[Tensor, "batch tokens"], Int[Tensor, " batch"]]:
        """Append the end and pad, on the model's device; the lengths include the end."""
        source, lengths = join_rows([[*row, self.config.end_id] for row in rows], pad_id=self.config.pad_id)
        return source.to(self.device), lengths.to(self.device)


def max_positions(config: TranslationModelConfig) -> int:
    """Return the maximum sequence length of a model with learned positions or a fixed-length mixer."""
    is_learned = getattr(config, "positions", "") == "learned"
    has_mixer = getattr(config, "mixer", "attention") != "attention"
    return int(config.max_length) if is_learned or has_mixer else sys.maxsize  # type: ignore[attr-defined]
