"""Matrix products of an ONNX graph in int8, with ranges from the user's own images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vitrail.engines.export.contract import Inputs
from vitrail.engines.export.package import PortSpec
from vitrail.engines.export.tracing import quiet

# Convolutions in whole numbers were slower than in float32 where only some of them can be fused, and norms
# and softmaxes lose most; the products of tokens with weights are nearly all of a Transformer's work.
PRODUCTS = ("MatMul", "Gemm")
MOST_BYTES = 2**31 - 2**24  # of a protobuf


class CalibrationReader:
    """Hand batches to ONNX Runtime, by the names of a graph's inputs.

    Args:
        batches: the inputs.
        names: of the inputs.
    """

    def __init__(self, batches: Sequence[Inputs], names: Sequence[str]) -> None:
        self.batches, self.names = batches, names
        self._left: Iterator[Inputs] = iter(batches)

    def get_next(self) -> dict[str, Any] | None:
        """Return the next batch; None at the end."""
        batch = next(self._left, None)
        if batch is None:
            return None
        return {name: each.numpy() for name, each in zip(self.names, batch, strict=True)}

    def rewind(self) -> None:
        """Begin again."""
        self._left = iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def quantise_products(
    model: Any, path: Path, ports: Sequence[PortSpec], calibration: Sequence[Inputs]
) -> None:
    """Write a graph whose products with weights are in int8: activations from 0 to 255, weights by column.

    Each stands between a step that makes whole numbers and one that undoes it (QDQ), which ONNX Runtime fuses
    with it. Products of two activations, as in attention, stay in float32.

    Args:
        model: an ``onnx.ModelProto``; shapes that it claims of values inside are not needed.
        path: of the file.
        ports: its inputs.
        calibration: batches whose smallest and largest values become the ranges.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    del model.graph.value_info[:]  # those of torch's exporter contradict the shapes that are inferred
    with quiet():
        quantize_static(
            model,
            str(path),
            CalibrationReader(calibration, [port.name for port in ports]),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(PRODUCTS),
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            use_external_data_format=model.ByteSize() > MOST_BYTES,
            extra_options={"MatMulConstBOnly": True},
        )
