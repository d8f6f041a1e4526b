"""Decoding settings of translators, independent of the engine."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from vitrail.core.errors import ConfigError
from vitrail.models.contract import TranslationModelConfig
from vitrail.models.decoding import USUAL_PATIENCE, Hypothesis, beam_search
from vitrail.tasks.translation.settings import TranslationSettings

MAX_LENGTH_RATIO, MAX_LENGTH_EXTRA = 2.0, 10  # output limit relative to the source, as in the task


class Search(NamedTuple):
    """Decoding settings."""

    beam_size: int = 5
    """Beam size; 1 decodes greedily."""
    length_penalty: float = 1.0
    """Exponent of the length that a log-probability is divided by; 0 prefers short translations."""
    num_best: int = 1
    """Translations to return, at most ``beam_size``."""
    max_length: int | None = None
    """Maximum subwords of a translation; None allows twice the source length plus ten."""


@runtime_checkable
class Finder(Protocol):
    """An engine that translates rows of subwords."""

    def find(self, rows: Sequence[Sequence[int]], search: Search) -> list[list[Hypothesis]]:
        """Return the best hypotheses for each row of source subwords, as one batch.

        Args:
            rows: non-empty, without the end.
        """


class ModelFinder:
    """Decode with the torch model."""

    def __init__(self, model: Any, config: TranslationModelConfig, device: torch.device) -> None:
        self.model, self.config, self.device = model, config, device

    def find(self, rows: Sequence[Sequence[int]], search: Search) -> list[list[Hypothesis]]:
        """Return the best hypotheses for each row."""
        source, lengths = self.to_batch(rows)
        # The length includes the end.
        max_lengths = torch.tensor(longest_translations(rows, search), device=self.device) + 1
        with torch.inference_mode():
            return beam_search(
                self.model,
                self.model.start(source, lengths),
                begin_id=self.config.begin_id,
                end_id=self.config.end_id,
                pad_id=self.config.pad_id,
                max_lengths=max_lengths.clamp(max=most_places(self.config)),
                beam_size=search.beam_size,
                length_penalty=search.length_penalty,
                num_best=search.num_best,
                patience=USUAL_PATIENCE,
            )

    def to_batch(
        self, rows: Sequence[Sequence[int]]
    ) -> tuple[Int[Tensor, "batch tokens"], Int[Tensor, " batch"]]:
        """Append the end and pad, on the model's device.

        Returns:
            lengths: including the end.
        """
        lengths = torch.tensor([len(row) + 1 for row in rows])
        source = torch.full((len(rows), int(lengths.max())), self.config.pad_id)
        for place, row in enumerate(rows):
            source[place, : len(row) + 1] = torch.tensor([*row, self.config.end_id])
        return source.to(self.device), lengths.to(self.device)


def longest_translations(rows: Sequence[Sequence[int]], search: Search) -> list[int]:
    """Return the maximum subwords of each row's translation, without the end."""
    if search.max_length is not None:
        return [search.max_length] * len(rows)
    return [int(MAX_LENGTH_RATIO * (len(row) + 1)) + MAX_LENGTH_EXTRA - 1 for row in rows]


def usual_search(about: Mapping[str, Any]) -> Search:
    """Return the default decoding settings: as the run was scored."""
    settings = TranslationSettings.from_tree(about.get("task", {}))
    return Search(settings.beam_size, settings.length_penalty)


def most_places(config: TranslationModelConfig) -> int:
    """Return the maximum sequence length of a model with learned positions or a fixed-length mixer."""
    has_places = getattr(config, "positions", "") == "learned"
    has_mixer = getattr(config, "mixer", "attention") != "attention"
    return int(config.max_length) if has_places or has_mixer else sys.maxsize  # type: ignore[attr-defined]


def check_search(search: Search, batch_tokens: int, read_ahead: int) -> None:
    """Check decoding settings.

    Raises:
        ConfigError: a number is not positive, or more translations are wanted than the beam keeps.
    """
    least = {
        "the beam size": search.beam_size,
        "the number of translations": search.num_best,
        "the number of subwords of a batch": batch_tokens,
        "the number of lines read ahead": read_ahead,
        "the greatest length": 1 if search.max_length is None else search.max_length,
    }
    for name, number in least.items():
        if number < 1:
            raise ConfigError(f"{name} is {number}", expected="1 or more", remedy="Choose a positive number")
    if search.num_best > search.beam_size:
        raise ConfigError(
            f"{search.num_best} translations of each line were asked for with a beam of {search.beam_size}",
            expected="at most as many as the beam keeps",
            remedy=f"Give a beam of {search.num_best}, or ask for fewer",
        )
