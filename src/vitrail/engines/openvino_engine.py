"""Models run by OpenVINO, on the CPU."""

from __future__ import annotations

from vitrail.engines.contract import EngineKind
from vitrail.engines.package_engine import ConvertingKind

KIND: EngineKind = ConvertingKind("openvino", "openvino")
