"""What an engine process builds."""

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
    """Build an engine on the CPU.

    Args:
        package: folder of the exported model; None if the engine takes the model itself.
        calibration: files of batches for int8 calibration.
    """
    source = load_model(Path(model)) if package is None else Package.read(package)
    batches = [read_inputs(Path(file)) for file in calibration or ()]
    return build_engine(source, engine=engine, precision=precision, device="cpu", calibration=batches)


def build_product(shape: list[int], *, precision: Precision) -> MatrixProduct:
    """Build the matrix product that measures a machine's ceiling."""
    return MatrixProduct(ProductShape(*shape), precision)
