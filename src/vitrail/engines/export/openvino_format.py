"""OpenVINO's intermediate representation (``.xml`` and ``.bin``), run by its CPU plugin."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, ClassVar

import torch

from vitrail.core.errors import ConfigError
from vitrail.engines.export.contract import ExportFormat, Inputs, Outputs, Runner
from vitrail.engines.export.onnx_format import WRITERS, cannot_take, check_installed, save_onnx, to_onnx
from vitrail.engines.export.package import MODEL_FILES, Precision
from vitrail.engines.export.tracing import Traced, quiet

PRECISION_HINTS = {"float32": "f32", "bfloat16": "bf16", "int8": "f32"}
"""The default precision; without a hint, the plugin uses bfloat16 if it can."""


class OpenVinoFormat:
    """The format ``openvino``."""

    name = "openvino"
    precisions: ClassVar[tuple[Precision, ...]] = ("float32", "bfloat16", "int8")
    traces_narrow = False

    def check(self, precision: Precision) -> None:
        self.check_engine(precision)
        check_installed(WRITERS, extra="export", use="written with")
        if precision == "int8":
            check_installed(["nncf"], extra="openvino", use="written in int8 with")

    def check_engine(self, precision: Precision) -> None:
        check_installed(["openvino"], extra="openvino", use="run by")
        if precision == "bfloat16" and "BF16" not in _capabilities():
            raise ConfigError(
                "this processor has no bfloat16, so that its result cannot be measured here",
                expected="a processor with AVX-512 BF16 or AMX",
                remedy="Export in float32 or int8, or on a machine that has it",
            )

    def write(
        self, traced: Traced, folder: Path, *, precision: Precision, calibration: Sequence[Inputs]
    ) -> None:
        """Write the graph, in int8 with quantised products and convolutions."""
        import openvino

        model = _convert(traced, folder)
        if precision == "int8":
            model = _quantise(model, traced, calibration)
        openvino.save_model(model, folder / MODEL_FILES["openvino"][0], compress_to_fp16=False)

    def open(self, folder: Path, precision: Precision, *, trust: bool = False) -> Runner:
        import openvino

        options = {
            "INFERENCE_PRECISION_HINT": PRECISION_HINTS[precision],
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "PERFORMANCE_HINT": "LATENCY",
        }
        try:
            compiled = openvino.Core().compile_model(str(folder / MODEL_FILES["openvino"][0]), "CPU", options)
        except RuntimeError as error:
            raise cannot_take("OpenVINO", error) from error

        def run(inputs: Inputs) -> Outputs:
            found = compiled([each.numpy() for each in inputs])
            return tuple(torch.tensor(found[port]) for port in compiled.outputs)

        return run


FORMAT: ExportFormat = OpenVinoFormat()


def _capabilities() -> list[str]:
    import openvino

    return list(openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))


def _convert(traced: Traced, folder: Path) -> Any:
    """Convert the graph to OpenVINO via ONNX, with named ports."""
    import openvino

    with tempfile.TemporaryDirectory(dir=folder) as converted:
        path = Path(converted) / MODEL_FILES["onnx"][0]
        save_onnx(to_onnx(traced), path)
        try:
            with quiet():
                model = openvino.convert_model(path)
        except RuntimeError as error:
            raise cannot_take("OpenVINO", error) from error
    for ports, specs in ((model.inputs, traced.inputs), (model.outputs, traced.outputs)):
        for port, spec in zip(ports, specs, strict=True):
            port.get_tensor().set_names({spec.name})
    return model


def _quantise(model: Any, traced: Traced, calibration: Sequence[Inputs]) -> Any:
    """Quantise weights and activations to int8 where nncf finds it cheap."""
    import nncf

    names = [port.name for port in traced.inputs]
    batches = [{name: each.numpy() for name, each in zip(names, batch, strict=True)} for batch in calibration]
    with quiet(), redirect_stdout(io.StringIO()):  # nncf draws a progress bar for each of its steps
        return nncf.quantize(
            model,
            nncf.Dataset(batches),
            model_type=nncf.ModelType.TRANSFORMER,  # keeps softmax, norms and sums in float32
            preset=nncf.QuantizationPreset.MIXED,  # activations of GELU are mostly positive
            subset_size=len(batches),
        )
