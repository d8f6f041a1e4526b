"""torch.export programs (``.pt2``), which torch runs and compiles without the model's code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch

from vitrail.core.errors import ConfigError
from vitrail.engines.export.contract import ExportFormat, Inputs, Outputs, Runner
from vitrail.engines.export.package import MODEL_FILES, Precision
from vitrail.engines.export.tracing import Traced, quiet


class TorchFormat:
    """The format ``torch``."""

    name = "torch"
    precisions: ClassVar[tuple[Precision, ...]] = ("float32", "bfloat16")
    traces_narrow = True

    def check(self, precision: Precision) -> None:
        if precision not in self.precisions:
            raise ConfigError(
                f"the format torch has no {precision}",
                expected=f"{' or '.join(self.precisions)}",
                remedy="Choose --format openvino or onnx for int8",
            )

    def check_engine(self, precision: Precision) -> None:
        self.check(precision)

    def write(
        self, traced: Traced, folder: Path, *, precision: Precision, calibration: Sequence[Inputs]
    ) -> None:
        """Write the program in the precision that it was traced with."""
        with quiet():
            torch.export.save(traced.program, folder / MODEL_FILES["torch"][0])

    def open(self, folder: Path, precision: Precision, *, trust: bool = False) -> Runner:
        """Load the program, if it is trusted to run its author's code."""
        path = folder / MODEL_FILES["torch"][0]
        if not trust:
            raise _not_trusted(path)
        with quiet():
            module = torch.export.load(path).module()  # unpickles sample inputs, evaluates guards

        def run(inputs: Inputs) -> Outputs:
            with torch.inference_mode():
                found = module(*inputs)
            return tuple(found) if isinstance(found, list | tuple) else (found,)

        return run


FORMAT: ExportFormat = TorchFormat()


def _not_trusted(path: Path) -> ConfigError:
    return ConfigError(
        f"reading {path} can run code of whoever wrote it",
        expected="your word that you trust its origin, or an export that holds no code",
        remedy="Give --trust (trust=True in Python) if you do; otherwise export the model with --format onnx "
        "or openvino",
    )
