"""Int8 matrix products of an ONNX graph, calibrated on the user's images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vitrail.engines.export.contract import Inputs
from vitrail.engines.export.package import PortSpec
from vitrail.engines.export.tracing import quiet

# Int8 convolutions were slower than float32 where only some can be fused, and norms and softmaxes lose most;
# the products of tokens with weights are nearly all of a Transformer's work.
PRODUCTS = ("MatMul", "Gemm")
MOST_BYTES = 2**31 - 2**24  # of a protobuf


class CalibrationReader:
    """Feeds calibration batches to ONNX Runtime by input name.

    Args:
        names: of the graph's inputs.
    """

    def __init__(self, batches: Sequence[Inputs], names: Sequence[str]) -> None:
        self.batches, self.names = batches, names
        self._left: Iterator[Inputs] = iter(batches)

    def get_next(self) -> dict[str, Any] | None:
        batch = next(self._left, None)
        if batch is None:
            return None
        return {name: each.numpy() for name, each in zip(self.names, batch, strict=True)}

    def rewind(self) -> None:
        self._left = iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def quantise_products(
    model: Any, path: Path, ports: Sequence[PortSpec], calibration: Sequence[Inputs]
) -> None:
    """Write a graph with int8 weight products: activations 0 to 255, weights per column.

    Each product stands between quantise and dequantise steps (QDQ), which ONNX Runtime fuses. Products of two
    activations, as in attention, stay in float32.

    Args:
        ports: its inputs.
        calibration: batches whose minima and maxima become the ranges.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    del model.graph.value_info[:]  # shapes of torch's exporter contradict the inferred ones
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
