"""Opening of a predictor's source, and of the torch model behind it for explanations."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from vitrail.core.errors import ConfigError
from vitrail.engines.cpu import accelerate
from vitrail.engines.export.package import Package, is_package
from vitrail.engines.loading import load_any
from vitrail.models.checkpoint import LoadedModel

Source = str | Path | LoadedModel | Package
"""A run directory, the folder of a saved or exported model, a published model, or a loaded one."""


def open_source(source: Source) -> LoadedModel | Package:
    """Open a source.

    Raises:
        CheckpointError: it holds no usable model.
        ConfigError: we do not have the published architecture.
    """
    if isinstance(source, LoadedModel):
        accelerate(source.model)
    if isinstance(source, LoadedModel | Package):
        return source
    return Package.read(source) if is_package(source) else load_any(source)


class ModelInTorch:
    """The torch model of a source, needed for explanations whatever engine predicts.

    Read from disk again on first use: engines have their own copy of the weights, and most users never
    explain.
    """

    def __init__(self, source: Source, device: torch.device) -> None:
        self.source, self.device = source, device
        self._model = source.model.eval().to(device) if isinstance(source, LoadedModel) else None

    def get(self) -> nn.Module:
        """Return the model, in evaluation mode.

        Raises:
            ConfigError: the source is an exported model, which shows nothing of its inside.
            CheckpointError: the model has gone from the disk.
        """
        if self._model is None:
            opened = open_source(self.source)
            if isinstance(opened, Package):
                raise shows_nothing(opened.folder)
            self._model = opened.model.eval().to(self.device)
        return self._model


def shows_nothing(package: Path) -> ConfigError:
    """Return the error for explaining an exported model."""
    return ConfigError(
        f"{package} is an exported model, which shows nothing of its inside",
        expected="the run, or the folder of the saved model, that it was exported from",
        remedy="Name that for explanations",
    )
