"""Models compiled by torch.compile."""

from __future__ import annotations

from vitrail.engines.contract import EngineKind
from vitrail.engines.torch_engine import TorchKind

KIND: EngineKind = TorchKind("compiled", ("float32", "bfloat16"))
