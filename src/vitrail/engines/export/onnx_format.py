"""Graphs in ONNX, run by ONNX Runtime."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from vitrail.core.errors import ConfigError
from vitrail.engines.export.contract import ExportFormat, Inputs, Outputs, Runner
from vitrail.engines.export.package import MODEL_FILES, PortSpec, Precision
from vitrail.engines.export.tracing import Traced, quiet

OPSET = 20  # of which ONNX Runtime has had every operation since 1.17
MOST_BYTES_IN_ONE_FILE = 2**31 - 2**24  # the limit of a protobuf, less the graph itself
WEIGHTS_FILE = MODEL_FILES["onnx"][0] + ".data"
WRITERS, ENGINE = ("onnx", "onnxscript"), "onnxruntime"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
OPERATION = re.compile(  # as written by torch's exporter, ONNX Runtime and OpenVINO
    r"(?:No ONNX function found for <OpOverload\(op='|Could not find an implementation for |"
    r"No Op registered for |No conversion rule found for operations: |op_type: ?)([\w.:]+)"
)
PAD_AXES_INPUT = 3  # index of the axes among the inputs of ONNX's Pad
MOST_QUOTED = 300  # characters of an engine's message


class OnnxFormat:
    """The format ``onnx``."""

    name = "onnx"
    precisions: ClassVar[tuple[Precision, ...]] = ("float32", "int8")
    traces_narrow = False

    def check(self, precision: Precision) -> None:
        self.check_engine(precision)
        check_installed(WRITERS, extra="export", use="written with")

    def check_engine(self, precision: Precision) -> None:
        if precision not in self.precisions:
            raise ConfigError(
                f"ONNX Runtime has no {precision} on processors: its MatMul and Conv take none",
                expected=f"{' or '.join(self.precisions)}",
                remedy="Choose --format openvino or torch for bfloat16",
            )
        check_installed([ENGINE], extra="export", use="run by")

    def write(
        self, traced: Traced, folder: Path, *, precision: Precision, calibration: Sequence[Inputs]
    ) -> None:
        """Write the graph; in int8 with quantised matrix products (QDQ)."""
        model = to_onnx(traced)
        if precision == "int8":
            from vitrail.engines.export.onnx_int8 import quantise_products

            quantise_products(model, folder / MODEL_FILES["onnx"][0], traced.inputs, calibration)
        else:
            save_onnx(model, folder / MODEL_FILES["onnx"][0])

    def open(self, folder: Path, precision: Precision, *, trust: bool = False) -> Runner:
        return open_onnx(folder / MODEL_FILES["onnx"][0])


FORMAT: ExportFormat = OnnxFormat()


def check_installed(packages: Sequence[str], *, extra: str, use: str) -> None:
    """Check that optional packages are installed.

    Args:
        extra: ours that installs them.
        use: for the message, such as "written with".

    Raises:
        ConfigError: one is not installed; the extra that brings them is named.
    """
    for name in packages:
        try:
            importlib.import_module(name)
        except ImportError:
            raise ConfigError(
                f"the package {name} is not installed",
                expected=f"it, for this format is {use} {', '.join(packages)}",
                remedy=f"Install it with: pip install 'vitrail[{extra}]'",
            ) from None


def to_onnx(traced: Traced) -> Any:
    """Return a graph as an ``onnx.ModelProto``, its ports named as in the package.

    Raises:
        ConfigError: ONNX has no operation for one of the graph's, which is named.
    """
    from torch.onnx.errors import OnnxExporterError

    try:
        with quiet():
            written = torch.onnx.export(
                traced.program,
                dynamo=True,
                input_names=[port.name for port in traced.inputs],
                output_names=[port.name for port in traced.outputs],
                opset_version=OPSET,
                verbose=False,
            )
            assert written is not None, "what is exported by dynamo is returned"
            model = written.model_proto
    except OnnxExporterError as error:
        raise cannot_take("ONNX", error) from error
    _name_padded_axes(model.graph)
    _name_axes(model.graph.input, traced.inputs)
    _name_axes(model.graph.output, traced.outputs)
    del model.graph.value_info[:]  # inner shapes, unneeded and contradicted by later changes
    return model


def save_onnx(model: Any, path: Path) -> None:
    """Write an ``onnx.ModelProto``, with separate weights if it exceeds one file."""
    import onnx

    is_large = model.ByteSize() > MOST_BYTES_IN_ONE_FILE
    onnx.save_model(
        model,
        str(path),
        save_as_external_data=is_large,
        location=path.name + ".data" if is_large else None,
    )


def open_onnx(path: Path) -> Runner:
    """Return an ONNX Runtime session as a function, with torch's number of threads.

    Raises:
        ConfigError: ONNX Runtime cannot take the model.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors
    try:
        session = onnxruntime.InferenceSession(
            str(path), sess_options=options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # its errors have no base class
        raise cannot_take("ONNX Runtime", error) from error
    names = [port.name for port in session.get_inputs()]

    def run(inputs: Inputs) -> Outputs:
        given = {name: each.numpy() for name, each in zip(names, inputs, strict=True)}
        return tuple(torch.from_numpy(each) for each in session.run(None, given))

    return run


def cannot_take(engine: str, error: BaseException) -> ConfigError:
    """Return the error for an unsupported operation, in the engine's words if need be."""
    texts = []
    cause: BaseException | None = error
    while cause is not None:  # the innermost is the most specific
        texts.append(COLOURS.sub("", str(cause)))
        cause = cause.__cause__
    found = next((match for text in reversed(texts) if (match := OPERATION.search(text))), None)
    what = "the model" if found is None else f"the operation {found.group(1).rstrip('.:')}"
    said = next(line.strip() for line in [*texts[-1].splitlines(), type(error).__name__] if line.strip())
    return ConfigError(
        f"{engine} cannot take {what}: {said[:MOST_QUOTED]}",
        expected="a model whose operations the engine knows",
        remedy="Export it in another format, such as --format torch",
    )


def _name_padded_axes(graph: Any) -> None:
    """Name the axes of paddings before a pooling, which does not change the result.

    ONNX Runtime (1.31) fuses a padding without named axes into the following pooling, whose own padding never
    is the maximum: zeros beside an image of negative values are lost, and logits of BiT were wrong by 0.03.
    """
    import numpy as np
    from onnx import numpy_helper

    constants = {each.name: each for each in graph.initializer}
    constants |= {node.output[0]: node.attribute[0].t for node in graph.node if node.op_type == "Constant"}
    pooled = {node.input[0] for node in graph.node if node.op_type in ("MaxPool", "AveragePool")}
    for node in graph.node:
        if node.op_type != "Pad" or node.output[0] not in pooled or len(node.input) > PAD_AXES_INPUT:
            continue
        if node.input[1] not in constants:  # not constant, thus never fused
            continue
        pads = numpy_helper.to_array(constants[node.input[1]])
        before, after = np.split(pads, 2)
        axes = np.flatnonzero(before | after).astype(np.int64)
        for place, values in ((1, np.concatenate((before[axes], after[axes]))), (PAD_AXES_INPUT, axes)):
            name = f"{node.output[0]}_{'pads' if place == 1 else 'axes'}"
            graph.initializer.append(numpy_helper.from_array(values, name))
            node.input.extend([""] * (place + 1 - len(node.input)))
            node.input[place] = name


def _name_axes(values: Any, ports: Sequence[PortSpec]) -> None:
    """Name the free axes of inputs or outputs, and set the lengths of the others."""
    for value, port in zip(values, ports, strict=True):
        for axis, dimension in zip(port.axes, value.type.tensor_type.shape.dim, strict=True):
            if isinstance(axis, str):
                dimension.dim_param = axis
            else:
                dimension.dim_value = axis
