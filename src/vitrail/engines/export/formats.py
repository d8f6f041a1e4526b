"""The export formats: write a graph, quantise it, run it with its engine on the CPU."""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch

from vitrail.core.errors import ConfigError, import_optional
from vitrail.engines.contract import Inputs, Outputs
from vitrail.engines.export.package import MODEL_FILES, PortSpec, Precision
from vitrail.engines.export.tracing import Traced, quiet

Runner = Callable[[Inputs], Outputs]
"""Runs an exported model with its format's plain engine."""

OPSET = 20  # of which ONNX Runtime has had every operation since 1.17
MOST_BYTES_IN_ONE_FILE = 2**31 - 2**24  # the limit of a protobuf, less the graph itself
WRITERS = ("onnx", "onnxscript")
# Int8 convolutions were slower than float32 where only some can be fused, and norms and softmaxes lose most;
# the products of tokens with weights are nearly all of a Transformer's work.
QUANTISED_BY_ONNX = ("MatMul", "Gemm")
PAD_AXES_INPUT = 3  # index of the axes among the inputs of ONNX's Pad
OPENVINO_HINTS = {"float32": "f32", "bfloat16": "bf16", "int8": "f32"}
"""The default precision; without a hint, the plugin uses bfloat16 if it can."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
OPERATION = re.compile(  # as written by torch's exporter, ONNX Runtime and OpenVINO
    r"(?:No ONNX function found for <OpOverload\(op='|Could not find an implementation for |"
    r"No Op registered for |No conversion rule found for operations: |op_type: ?)([\w.:]+)"
)
MOST_QUOTED = 300  # characters of an engine's message


@runtime_checkable
class ExportFormat(Protocol):
    """A format of exported models."""

    name: str
    """As in the command line and ``Package.format``."""
    precisions: ClassVar[tuple[Precision, ...]]
    """Supported precisions."""
    traces_narrow: bool
    """Whether bfloat16 is part of the graph, rather than left to the engine."""

    def check(self, precision: Precision, *, writes: bool = True) -> None:
        """Check that the format can be run here and, by default, written, which needs more packages.

        Raises:
            ConfigError: a package is not installed, or neither format nor machine has the precision.
        """

    def write(
        self, traced: Traced, folder: Path, *, precision: Precision, calibration: Sequence[Inputs]
    ) -> None:
        """Write the files of a model into a folder.

        Raises:
            ConfigError: the engine has no such operation, which is named.
        """

    def open(self, folder: Path, precision: Precision, *, trust: bool = False) -> Runner:
        """Return a function that runs the files of a folder on the CPU, with torch's number of threads.

        Args:
            trust: whether code in the files may run; only torch's can hold any.

        Raises:
            ConfigError: the engine does not support the model (an operation is named if known); or reading
                the files may run code, and they are not trusted.
        """


class OnnxFormat:
    """Graphs in ONNX, run by ONNX Runtime."""

    name = "onnx"
    precisions: ClassVar[tuple[Precision, ...]] = ("float32", "int8")
    traces_narrow = False

    def check(self, precision: Precision, *, writes: bool = True) -> None:
        check_precision(self, precision)  # ONNX Runtime's MatMul and Conv have no bfloat16 on CPUs
        check_installed(["onnxruntime"], extra="export", use="run by")
        if writes:
            check_installed(WRITERS, extra="export", use="written with")

    def write(
        self, traced: Traced, folder: Path, *, precision: Precision, calibration: Sequence[Inputs]
    ) -> None:
        """Write the graph; in int8 with quantised matrix products (QDQ)."""
        model, path = to_onnx(traced), folder / MODEL_FILES["onnx"][0]
        if precision == "int8":
            _quantise_onnx(model, path, name_inputs(calibration, traced.inputs))
        else:
            save_onnx(model, path)

    def open(self, folder: Path, precision: Precision, *, trust: bool = False) -> Runner:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors
        path = str(folder / MODEL_FILES["onnx"][0])
        try:
            # Falling back would try the same again, and print.
            session = onnxruntime.InferenceSession(
                path, options, providers=["CPUExecutionProvider"], enable_fallback=0
            )
        except Exception as error:  # its errors have no base class
            raise unsupported("ONNX Runtime", error) from error
        names = [port.name for port in session.get_inputs()]

        def run(inputs: Inputs) -> Outputs:
            try:
                given = {name: each.numpy() for name, each in zip(names, inputs, strict=True)}
                return tuple(torch.from_numpy(each) for each in session.run(None, given))
            except Exception as error:
                raise unsupported("ONNX Runtime", error) from error

        return run


class OpenVinoFormat:
    """OpenVINO's intermediate representation (``.xml`` and ``.bin``), run by its CPU plugin."""

    name = "openvino"
    precisions: ClassVar[tuple[Precision, ...]] = ("float32", "bfloat16", "int8")
    traces_narrow = False

    def check(self, precision: Precision, *, writes: bool = True) -> None:
        check_installed(["openvino"], extra="openvino", use="run by")
        if precision == "bfloat16" and "BF16" not in _openvino_capabilities():
            raise ConfigError(
                "this CPU has no bfloat16, so that its result cannot be measured here",
                expected="a CPU with AVX-512 BF16 or AMX",
                remedy="Export in float32 or int8, or on a machine that has it",
            )
        if writes:
            check_installed(WRITERS, extra="export", use="written with")
        if writes and precision == "int8":
            check_installed(["nncf"], extra="openvino", use="written in int8 with")

    def write(
        self, traced: Traced, folder: Path, *, precision: Precision, calibration: Sequence[Inputs]
    ) -> None:
        """Write the graph, converted via ONNX, in int8 with quantised products and convolutions."""
        import openvino

        with tempfile.TemporaryDirectory(dir=folder) as converted:
            path = Path(converted) / MODEL_FILES["onnx"][0]
            save_onnx(to_onnx(traced), path)
            try:
                with quiet():
                    model = openvino.convert_model(path)
            except RuntimeError as error:
                raise unsupported("OpenVINO", error) from error
        for ports, specs in ((model.inputs, traced.inputs), (model.outputs, traced.outputs)):
            for port, spec in zip(ports, specs, strict=True):
                port.get_tensor().set_names({spec.name})
        if precision == "int8":  # weights and activations, where nncf finds it cheap
            import nncf

            batches = name_inputs(calibration, traced.inputs)
            with quiet(), redirect_stdout(io.StringIO()):  # nncf draws a progress bar for each of its steps
                model = nncf.quantize(
                    model,
                    nncf.Dataset(batches),
                    model_type=nncf.ModelType.TRANSFORMER,  # keeps softmax, norms and sums in float32
                    preset=nncf.QuantizationPreset.MIXED,  # activations of GELU are mostly positive
                    subset_size=len(batches),
                )
        openvino.save_model(model, folder / MODEL_FILES["openvino"][0], compress_to_fp16=False)

    def open(self, folder: Path, precision: Precision, *, trust: bool = False) -> Runner:
        import openvino
        from openvino.frontend import FrontEndManager

        options = {
            "INFERENCE_PRECISION_HINT": OPENVINO_HINTS[precision],
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "PERFORMANCE_HINT": "LATENCY",
        }
        try:
            # By its path alone, a file in any format of any framework would be read.
            reader = FrontEndManager().load_by_framework("ir")
            model = reader.convert(reader.load(str(folder / MODEL_FILES["openvino"][0])))
            compiled = openvino.Core().compile_model(model, "CPU", options)
        except (RuntimeError, ValueError) as error:  # whose text may not be UTF-8
            raise unsupported("OpenVINO", error) from error

        def run(inputs: Inputs) -> Outputs:
            try:
                found = compiled([each.numpy() for each in inputs])
                return tuple(torch.tensor(found[port]) for port in compiled.outputs)
            except (RuntimeError, TypeError, ValueError) as error:
                raise unsupported("OpenVINO", error) from error

        return run


class TorchFormat:
    """torch.export programs (``.pt2``), which torch runs and compiles without the model's code."""

    name = "torch"
    precisions: ClassVar[tuple[Precision, ...]] = ("float32", "bfloat16")
    traces_narrow = True

    def check(self, precision: Precision, *, writes: bool = True) -> None:
        check_precision(self, precision)

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
            raise ConfigError(
                f"reading {path} can run code of whoever wrote it",
                expected="your word that you trust its origin, or an export that holds no code",
                remedy="Give --trust (trust=True in Python) if you do; otherwise export the model with "
                "--format onnx or openvino",
            )
        with quiet():
            module = torch.export.load(path).module()  # unpickles sample inputs, evaluates guards

        def run(inputs: Inputs) -> Outputs:
            with torch.inference_mode():
                found = module(*inputs)
            return tuple(found) if isinstance(found, list | tuple) else (found,)

        return run


FORMATS: dict[str, ExportFormat] = {
    each.name: each for each in (OnnxFormat(), OpenVinoFormat(), TorchFormat())
}
"""Every format by its name."""


def check_precision(form: ExportFormat, precision: Precision) -> None:
    """Raise ``ConfigError`` unless a format has a precision."""
    if precision not in form.precisions:
        others = [name for name, other in FORMATS.items() if precision in other.precisions]
        raise ConfigError(
            f"the format {form.name} has no {precision}",
            expected=f"{' or '.join(form.precisions)}",
            remedy=f"Choose --format {' or '.join(others)} for {precision}",
        )


def check_installed(packages: Sequence[str], *, extra: str, use: str) -> None:
    """Check that optional packages are installed.

    Args:
        extra: ours that installs them.
        use: for the message, such as "written with".

    Raises:
        ConfigError: one is not installed; the extra that brings them is named.
    """
    for name in packages:
        import_optional(name, f"this format is {use} {', '.join(packages)} and needs", name, extra)


def unsupported(engine: str, error: BaseException) -> ConfigError:
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
        f"{engine} does not support {what}: {said[:MOST_QUOTED]}",
        expected="whole files, and operations that the engine supports",
        remedy="Export it again, or in another format, such as --format torch",
    )


def name_inputs(batches: Sequence[Inputs], ports: Sequence[PortSpec]) -> list[dict[str, Any]]:
    """Return batches as arrays by the names of the graph's inputs."""
    names = [port.name for port in ports]
    return [{name: each.numpy() for name, each in zip(names, batch, strict=True)} for batch in batches]


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
        raise unsupported("ONNX", error) from error
    _name_padded_axes(model.graph)
    for values, ports in ((model.graph.input, traced.inputs), (model.graph.output, traced.outputs)):
        for value, port in zip(values, ports, strict=True):
            for axis, dimension in zip(port.axes, value.type.tensor_type.shape.dim, strict=True):
                if isinstance(axis, str):
                    dimension.dim_param = axis
                else:
                    dimension.dim_value = axis
    del model.graph.value_info[:]  # inner shapes, unneeded and contradicted by later changes
    return model


def save_onnx(model: Any, path: Path) -> None:
    """Write an ``onnx.ModelProto``, with separate weights if it exceeds one file."""
    import onnx

    is_large = model.ByteSize() > MOST_BYTES_IN_ONE_FILE
    onnx.save_model(
        model, str(path), save_as_external_data=is_large, location=path.name + ".data" if is_large else None
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
        for index, values in ((1, np.concatenate((before[axes], after[axes]))), (PAD_AXES_INPUT, axes)):
            name = f"{node.output[0]}_{'pads' if index == 1 else 'axes'}"
            graph.initializer.append(numpy_helper.from_array(values, name))
            node.input.extend([""] * (index + 1 - len(node.input)))
            node.input[index] = name


def _quantise_onnx(model: Any, path: Path, calibration: Sequence[dict[str, Any]]) -> None:
    """Write a graph with int8 weight products: activations 0 to 255, weights per column.

    Each product stands between quantise and dequantise steps (QDQ), which ONNX Runtime fuses. Products of two
    activations, as in attention, stay in float32.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    with quiet():
        quantize_static(
            model,
            str(path),
            SimpleNamespace(get_next=partial(next, iter(calibration), None)),  # a CalibrationDataReader
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(QUANTISED_BY_ONNX),
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            use_external_data_format=model.ByteSize() > MOST_BYTES_IN_ONE_FILE,
            extra_options={"MatMulConstBOnly": True},
        )


def _openvino_capabilities() -> list[str]:
    import openvino

    return list(openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
