"""The engine that was asked for, or with ``auto`` the fastest that was measured and computes the same."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import torch

from vitrail.core.errors import CheckpointError, ConfigError, VitrailError
from vitrail.engines.building import AUTOMATIC, build_engine
from vitrail.engines.choice import EngineChoices, Measured, choices_folder, read_choices
from vitrail.engines.contract import Engine, Inputs
from vitrail.engines.export.package import Package
from vitrail.engines.opening import Source
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.merged import MergedIsotropic

logger = logging.getLogger(__name__)


def start_engine(
    source: Source,
    opened: LoadedModel | Package,
    *,
    engine: str | None,
    precision: str | None,
    device: str | torch.device | None,
    batch_size: int,
    calibration: Sequence[Inputs],
    trust: bool = False,
) -> Engine:
    """Return what runs a model.

    Args:
        source: where the model is from; what was measured of it lies beside it.
        opened: the model.
        engine: as ``build_engine``, or ``auto``.
        precision: as ``build_engine``; with ``auto``, the only one that is chosen among, if any.
        device: as ``build_engine``.
        batch_size: images of one forward pass, which decides what is fastest.
        calibration: as ``build_engine``.
        trust: as ``build_engine``; never of the packages that lie beside what was measured.

    Raises:
        ConfigError: as ``build_engine``.
        DataError: as ``build_engine``.
    """
    if engine != AUTOMATIC:
        return build_engine(
            opened, engine=engine, precision=precision, device=device, calibration=calibration, trust=trust
        )
    if isinstance(opened, Package):
        raise ConfigError(
            f"the fastest engine was asked for {opened.folder}, which is for one engine alone",
            expected="a run or the folder of a saved model, of which several were measured",
            remedy="Leave the engine out, or name the run",
        )
    automatic_device = "cuda" if torch.cuda.is_available() else "cpu"
    if torch.device(automatic_device if device is None else device).type == "cpu":
        chosen = _start_fastest(source, opened, precision, batch_size)
        if chosen is not None:
            return chosen
    return build_engine(opened, precision=precision, device=device, calibration=calibration)


def _start_fastest(
    source: Source, opened: LoadedModel, precision: str | None, batch_size: int
) -> Engine | None:
    """Return the fastest engine that was measured and starts; None where there is none."""
    if isinstance(opened.model, MergedIsotropic):
        logger.warning("engines are measured of models that merge no tokens; torch runs this one, which does")
        return None
    folder = choices_folder(source, opened)
    choices = None if folder is None else read_choices(folder, opened)
    if folder is None or choices is None:
        logger.warning(
            "no engine was measured on this machine for this model; torch runs it. See vitrail bench"
        )
        return None
    for cell in rank(choices, batch_size, precision):
        try:
            # What was written for another engine is kept; torch's own are made of the model.
            kept = None if cell.package is None else _read_own(folder / cell.package, choices.weights)
            return build_engine(kept or opened, engine=cell.engine, precision=cell.precision, device="cpu")
        except VitrailError as error:
            logger.warning("%s in %s does not start: %s", cell.engine, cell.precision, error)
    return None


def _read_own(folder: Path, weights: str) -> Package:
    """Return a package, if it is of the model that was measured.

    Raises:
        CheckpointError: it is of another one, or no usable package.
    """
    package = Package.read(folder)
    if package.weights != weights:
        raise CheckpointError(
            f"{folder} is the export of another model",
            expected="an export of the model that was measured",
            remedy="Measure it again with vitrail bench",
        )
    return package


def rank(choices: EngineChoices, batch_size: int, precision: str | None = None) -> list[Measured]:
    """Return what was measured at the nearest batch and computes the same, the fastest first.

    Args:
        choices: what was measured.
        batch_size: images of one forward pass; of the batches that were measured, the largest up to it
            counts, or the smallest of all.
        precision: the only one that may be chosen; None allows all.
    """
    usable = [
        cell
        for cell in choices.measured
        if cell.agrees and cell.is_kept and precision in (None, cell.precision)
    ]
    batches = sorted({cell.batch for cell in usable})
    if not batches:
        return []
    nearest = max((batch for batch in batches if batch <= batch_size), default=batches[0])
    of_batch = [cell for cell in usable if cell.batch == nearest]
    return sorted(of_batch, key=lambda cell: cell.images_per_s, reverse=True)
