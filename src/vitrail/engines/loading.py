"""Loading of trained models from any source."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from vitrail.core.durable import settle_folder
from vitrail.core.errors import CheckpointError
from vitrail.engines.cpu import accelerate
from vitrail.models.checkpoint import LoadedModel, load_model
from vitrail.models.weights.published import is_published, load_published
from vitrail.train.interrupt import resume_command

CTRANSLATE2_FILE = "model.bin"  # the weights of an exported translator
MODEL_FOLDER, RUN_FILE = "model", "config.json"  # of a run directory


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
    """Return a trained model with its preprocessing, class names and origin.

    Args:
        source: as for ``load``.
        model: as for ``load``.

    Raises:
        CheckpointError: as ``load``.
        ConfigError: as ``load``.
    """
    if is_published(str(source)):
        loaded = load_published(str(source), model=model)
    else:
        loaded = load_model(find_model_folder(Path(source)))
    accelerate(loaded.model)
    return loaded


def load_start(weights: str | None, model: str | None) -> LoadedModel | None:
    """Return the initial weights of a training; None for random ones.

    Args:
        weights: as in the experiment's settings.
        model: our model's name, which a file of bare weights may need.

    Raises:
        CheckpointError: there is no usable model.
    """
    if weights is None:
        return None
    is_file = is_published(weights) and weights.startswith("file:")
    return load_any(weights, model=model if is_file else None)


def find_model_folder(source: Path) -> Path:
    """Return the folder of a run's saved model, or the folder itself.

    Raises:
        CheckpointError: there is no such folder, or the run has not finished its model yet.
    """
    if not source.is_dir():
        raise CheckpointError(
            f"{source} is not a folder",
            expected="a run directory, or the folder of a saved model",
            remedy="Name what 'vitrail train' said it wrote, such as runs/NAME",
        )
    if is_ctranslate2(source):
        raise CheckpointError(
            f"{source} holds a translator that was exported for CTranslate2",
            expected="a run directory, or the folder of a saved model",
            remedy="Name the run that it was made from; vitrail translate takes the export",
        )
    settle_folder(source / MODEL_FOLDER)
    if (source / MODEL_FOLDER).is_dir():
        return source / MODEL_FOLDER
    if (source / RUN_FILE).is_file():
        raise CheckpointError(
            f"the run {source} is not finished, it has no model yet",
            expected=f"a run directory with the folder {MODEL_FOLDER}, which training writes at its end",
            remedy=f"Wait for its end, or go on with: {resume_command(source)}",
        )
    return source


def is_ctranslate2(source: object) -> bool:
    """Return whether a source is a CTranslate2 export."""
    if not isinstance(source, str | Path):
        return False
    folder = Path(source)
    return (folder / CTRANSLATE2_FILE).is_file() and not (folder / "model.xml").exists()  # OpenVINO's
