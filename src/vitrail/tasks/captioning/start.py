"""The initial weights of a captioner: a captioner, or an image model for its encoder."""

from __future__ import annotations

from typing import NamedTuple

from vitrail.core.errors import CheckpointError
from vitrail.engines.loading import load_any
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import ImageModelConfig


class CaptionStart(NamedTuple):
    """At most one of the two is set."""

    captioner: LoadedModel | None = None
    """A whole captioner, whose vocabulary is used as well."""
    encoder: LoadedModel | None = None
    """An image model, whose preprocessing is used as well."""


def load_caption_start(weights: str | None, encoder: str | None) -> CaptionStart:
    """Load the initial weights.

    Args:
        weights: as in the experiment's settings; None means random weights.
        encoder: name of the image model, which a file of bare weights may need.

    Raises:
        CheckpointError: there is no usable model, or one of other inputs.
    """
    if weights is None:
        return CaptionStart()
    loaded = load_any(weights, model=encoder if weights.startswith("file:") else None)
    kind = loaded.preprocessing.get("task", "classification")
    if kind == "captioning":
        return CaptionStart(captioner=loaded)
    if kind == "classification" and isinstance(getattr(loaded.model, "config", None), ImageModelConfig):
        return CaptionStart(encoder=loaded)
    raise CheckpointError(
        f"{weights} holds the model {loaded.model_settings.get('name')} for other inputs",
        expected="a captioner, or an image model for the encoder of one",
        remedy="Name a run on captioned or labelled images, or a published image model",
    )
