"""One way to get a trained model, whatever it is stored as."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from vitrail.checkpoint import LoadedModel, load_model
from vitrail.deploy.predictor import find_model_folder


def load(source: str | Path) -> nn.Module:
    """Return a trained model, in evaluation mode on the processor.

    Args:
        source: a run directory or the folder of a saved model.

    Raises:
        CheckpointError: there is no usable model.
    """
    return load_any(source).model


def load_any(source: str | Path) -> LoadedModel:
    """Return a trained model with its preprocessing, class names and origin.

    Raises:
        CheckpointError: there is no usable model.
    """
    return load_model(find_model_folder(Path(source)))
