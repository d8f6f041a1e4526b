"""Loading of trained models from any source."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from vitrail.core.config import check_place
from vitrail.core.durable import find_folder
from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.engines.cpu import accelerate
from vitrail.engines.export.package import Package, is_package
from vitrail.models.checkpoint import MODEL_FILE, LoadedModel, load_model
from vitrail.models.contract import ImageModelConfig
from vitrail.models.merged import merge_tokens
from vitrail.models.weights.files import SUFFIXES
from vitrail.models.weights.published import is_published, load_published
from vitrail.train.interrupt import resume_command

CTRANSLATE2_FILE = "model.bin"  # the weights of an exported translator
MODEL_FOLDER, RUN_FILE = "model", "config.json"  # of a run directory

Source = str | Path | LoadedModel | Package
"""A run directory, the folder of a saved or exported model, a published model, or a loaded one."""


def load(source: str | Path, *, model: str | None = None) -> nn.Module:
    """Return a trained model, in evaluation mode on the CPU, accelerated.

    Args:
        source: a run directory, the folder of a saved model, or a published model such as
            ``timm:vit_base_patch16_224.augreg_in21k_ft_in1k``, ``hf:google/vit-base-patch16-224``,
            ``torchvision:swin_t`` or ``file:weights.pth``.
        model: our model's name, if the weights of a file fit several.

    Raises:
        CheckpointError: there is no usable model, or the network cannot be reached.
        ConfigError: we do not have the published architecture.
    """
    return load_any(source, model=model).model


def load_any(source: str | Path, *, model: str | None = None) -> LoadedModel:
    """Return a trained model with its preprocessing, class names and origin; see ``load``."""
    check_place(source)
    if is_published(str(source)):
        loaded = load_published(str(source), model=model)
    else:
        loaded = load_model(find_model_folder(Path(source)))
    accelerate(loaded.model)
    return loaded


@lru_cache(maxsize=1)
def load_once(weights: str, model: str | None) -> LoadedModel:
    """Load what a training starts from: choosing, settling and assembling read it."""
    return load_any(weights, model=model)


class Start(NamedTuple):
    """The initial weights of a training; at most one of the two is set."""

    whole: LoadedModel | None = None
    """A model of the task, whose vocabulary and preprocessing are used as well."""
    encoder: LoadedModel | None = None
    """An image model, for the part that reads images; its preprocessing is used as well."""


def load_start(weights: str | None, model: str | None, *, task: str) -> LoadedModel | None:
    """Return the initial weights of a training as ``load_start_or_encoder``, but only whole models."""
    return load_start_or_encoder(weights, model, task=task, takes_encoder=False).whole


def load_start_or_encoder(
    weights: str | None, model: str | None, *, task: str, takes_encoder: bool = True
) -> Start:
    """Return the initial weights of a training; an image model is enough for a part of it.

    Args:
        weights: as in the experiment's settings; None for random ones.
        model: name of our model, or of its image model, which a file of bare weights may need.

    Raises:
        CheckpointError: there is no usable model, or one for other inputs.
    """
    if weights is None:
        return Start()
    is_file = is_published(weights) and weights.startswith("file:")
    loaded = load_once(weights, model if is_file else None)
    own = str(loaded.preprocessing.get("task", "classification"))
    if own == task:
        return Start(whole=loaded)
    if takes_encoder and isinstance(getattr(loaded.model, "config", None), ImageModelConfig):
        return Start(encoder=loaded)
    or_image = ", or an image model where it reads images" if takes_encoder else ""
    raise CheckpointError(
        f"{weights} holds weights of {loaded.model_settings.get('name')}, a model for {own}",
        expected=f"a model for {task}{or_image}",
        remedy="Name another run, or leave --weights out to start from random weights",
    )


def open_source(source: Source) -> LoadedModel | Package:
    """Open a source of a predictor.

    Raises:
        CheckpointError: it holds no usable model.
        ConfigError: we do not have the published architecture.
    """
    if isinstance(source, LoadedModel):
        accelerate(source.model)
    if isinstance(source, LoadedModel | Package):
        return source
    check_place(source)
    return Package.read(source) if is_package(source) else load_any(source)


def merged_source(source: Source, num_merged: int) -> LoadedModel:
    """Open a model whose blocks merge tokens, so many on average; its weights are unchanged.

    Raises:
        CheckpointError: the source holds no usable model.
        ConfigError: the source is an exported model, it cannot merge tokens, or the number is negative.
    """
    loaded = open_source(source)
    if isinstance(loaded, Package):
        raise ConfigError(
            "exported models cannot merge tokens",
            expected="the run, or the folder of the saved model, that it was exported from",
            remedy="Name that one",
        )
    return loaded._replace(model=merge_tokens(loaded.model, num_merged))


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
            ConfigError: the source is an exported model.
            CheckpointError: the model has gone from the disk.
        """
        if self._model is None:
            opened = open_source(self.source)
            if isinstance(opened, Package):
                raise cannot_explain(opened.folder)
            self._model = opened.model.eval().to(self.device)
        return self._model


def cannot_explain(package: Path) -> ConfigError:
    """Return the error for explaining an exported model."""
    return ConfigError(
        f"{package} is an exported model, which cannot be explained",
        expected="the run, or the folder of the saved model, that it was exported from",
        remedy="Name that one for explanations",
    )


def find_model_folder(source: Path) -> Path:
    """Return the folder of a run's saved model, or the folder itself.

    Raises:
        CheckpointError: there is no such folder, it holds no model, or the run has not finished it yet.
    """
    if not source.is_dir():
        is_weights = source.suffix.lower() in SUFFIXES
        raise CheckpointError(
            f"{source} is not a folder" if source.exists() else f"there is no {source}",
            expected="a run directory, or the folder of a saved model",
            remedy=f"Name a file of weights as file:{source}"
            if is_weights
            else "Name a run directory written by 'vitrail train', such as runs/NAME",
        )
    if is_ctranslate2(source) or is_package(source):
        what, reader = "model that was exported", "predict"
        if is_ctranslate2(source):
            what, reader = "translator that was exported for CTranslate2", "translate"
        raise CheckpointError(
            f"{source} holds a {what}",
            expected="a run directory, or the folder of a saved model",
            remedy=f"Name the run that it was exported from; vitrail {reader} reads the export",
        )
    if find_folder(source / MODEL_FOLDER).is_dir():
        return source / MODEL_FOLDER
    if (source / RUN_FILE).is_file():
        raise CheckpointError(
            f"the run {source} is not finished, it has no model yet",
            expected=f"a run directory with the folder {MODEL_FOLDER}, which training writes at its end",
            remedy=f"Wait for its end, or resume it with: {resume_command(source)}",
        )
    if not (source / MODEL_FILE).is_file():
        raise CheckpointError(
            f"{source} holds no model",
            expected="a run directory, or the folder of a saved model",
            remedy="The model comes first, then data or files, as in: vitrail evaluate RUN DATA",
        )
    return source


def is_ctranslate2(source: object) -> bool:
    """Return whether a source is a CTranslate2 export."""
    if not isinstance(source, str | Path):
        return False
    folder = Path(source)
    return (folder / CTRANSLATE2_FILE).is_file() and not (folder / "model.xml").exists()  # OpenVINO's
