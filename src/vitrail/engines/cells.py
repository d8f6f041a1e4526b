"""What a process that runs one engine is asked to build."""

from __future__ import annotations

from pathlib import Path

from vitrail.engines.building import build_engine
from vitrail.engines.ceiling import MatrixProduct, ProductShape
from vitrail.engines.cell_process import read_inputs
from vitrail.engines.contract import Engine
from vitrail.engines.export.package import Package, Precision
from vitrail.models.checkpoint import load_model


def build_cell(
    model: str,
    *,
    engine: str,
    precision: str,
    package: str | None = None,
    calibration: list[str] | None = None,
) -> Engine:
    """Return an engine, on the processor.

    Args:
        model: folder of the saved model.
        engine: its name.
        precision: of the matrix products.
        package: folder of the exported model; None for engines that take the model itself.
        calibration: files of batches that the ranges of int8 are taken from.
    """
    source = load_model(Path(model)) if package is None else Package.read(package)
    batches = [read_inputs(Path(file)) for file in calibration or ()]
    return build_engine(source, engine=engine, precision=precision, device="cpu", calibration=batches)


def build_product(shape: list[int], *, precision: Precision) -> MatrixProduct:
    """Return the matrix product that a machine's ceiling is measured with."""
    return MatrixProduct(ProductShape(*shape), precision)
