"""The requested engine, or with ``auto`` the fastest one whose outputs agree."""

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
    """Start the engine of a model.

    Args:
        source: of the model; its benchmark results are stored beside it.
        engine: as ``build_engine``, or ``auto``.
        precision: as ``build_engine``; restricts ``auto``.
        batch_size: determines the fastest engine.
        trust: as ``build_engine``; never applies to packages stored with benchmark results.

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
    """Return the fastest benchmarked engine that starts, if any."""
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
            # Packages of other engines are kept; torch's own engines are built from the model.
            kept = None if cell.package is None else _read_own(folder / cell.package, choices.weights)
            return build_engine(kept or opened, engine=cell.engine, precision=cell.precision, device="cpu")
        except VitrailError as error:
            logger.warning("%s in %s does not start: %s", cell.engine, cell.precision, error)
    return None


def _read_own(folder: Path, weights: str) -> Package:
    """Read a package, if it belongs to the benchmarked model.

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
    """Return the agreeing engines at the nearest measured batch size, fastest first.

    Args:
        batch_size: the largest measured one up to it counts, else the smallest.
        precision: restricts the choice.
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
