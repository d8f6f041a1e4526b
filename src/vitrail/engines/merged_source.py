"""Loading of a model with token merging."""

from __future__ import annotations

from pathlib import Path

from vitrail.core.errors import ConfigError
from vitrail.engines.loading import load_any
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.merged import merge_tokens


def merged_source(source: object, num_merged: int, *, schedule: str = "constant") -> LoadedModel:
    """Open a model whose blocks merge tokens; its weights are unchanged.

    Args:
        num_merged: tokens merged per block, on average.
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
