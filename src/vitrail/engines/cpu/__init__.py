"""CPU replacements for layers of ``nn`` with equal outputs and less latency, and how to swap them in."""

from __future__ import annotations

from vitrail.engines.cpu.accelerating import accelerate
from vitrail.engines.cpu.convolution import settle_norms

__all__ = ["accelerate", "settle_norms"]
