"""What can be served: one file for each kind of model, and the one way to open any."""

from __future__ import annotations

from pathlib import Path

from vitrail.core.errors import ConfigError
from vitrail.engines.opening import open_source
from vitrail.models.checkpoint import LoadedModel
from vitrail.tasks.captioning.served import ServedCaptioner
from vitrail.tasks.classification.served import ServedPredictor
from vitrail.tasks.contrastive.served import ServedCLIP
from vitrail.tasks.detection.served import ServedDetector
from vitrail.tasks.serving import EngineChoice, Given, Options, Servable, check_options, read_options
from vitrail.tasks.translation.served import ServedTranslator

__all__ = ["EngineChoice", "Given", "Options", "Servable", "check_options", "open_servable", "read_options"]


def open_servable(source: str | Path | LoadedModel, choice: EngineChoice) -> Servable:
    """Load a model of any kind.

    Args:
        source: a run directory, the folder of a saved model or of an exported one, a published model, or one
            that is loaded already.
        choice: what runs it.

    Raises:
        CheckpointError: there is no usable model.
        ConfigError: we do not have the published architecture, or the engine is missing or does not fit.
    """
    opened = open_source(source)
    kind = opened.preprocessing.get("task", "classification")
    # What was measured of a model, by which the fastest is chosen, lies where it was loaded from.
    from_where = source if choice.engine == "auto" else opened
    if kind == "detection":
        return ServedDetector(from_where, choice)
    if kind == "classification":
        return ServedPredictor(from_where, choice)
    words = {"captioning": "captioner", "contrastive": "CLIP", "translation": "translator"}
    if choice.engine is not None or choice.precision is not None:
        raise ConfigError(
            f"an engine or a precision was chosen for the {words[kind]} {source}",
            expected="models of images alone, where one is chosen",
            remedy=f"Serve the {words[kind]} without, in a server of its own",
        )
    assert isinstance(opened, LoadedModel), "models of words have no packages"
    if kind == "captioning":
        return ServedCaptioner(opened)
    return ServedCLIP(opened) if kind == "contrastive" else ServedTranslator(opened)
