"""A source of a model that merges tokens while it runs."""

from __future__ import annotations

from pathlib import Path

from vitrail.core.errors import ConfigError
from vitrail.engines.loading import load_any
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.merged import merge_tokens


def merged_source(source: object, num_merged: int, *, schedule: str = "constant") -> LoadedModel:
    """Open a model so that each of its blocks merges that many tokens; its weights are as they were.

    Args:
        source: a run directory, the folder of a saved model, a published model, or one that is open.
        num_merged: tokens that vanish in each block, on average.
        schedule: ``constant`` or ``decreasing``, as for ``vitrail.models.merged.merge_tokens``.

    Raises:
        CheckpointError: the source holds no usable model.
        ConfigError: the source is an exported model, it cannot merge tokens, or the number is negative.
    """
    if not isinstance(source, str | Path | LoadedModel):
        raise ConfigError(
            "tokens of an exported model were to be merged",
            expected="the run, or the folder of the saved model, that it was exported from",
            remedy="Name that one",
        )
    loaded = source if isinstance(source, LoadedModel) else load_any(source)
    return loaded._replace(model=merge_tokens(loaded.model, num_merged, schedule=schedule))
