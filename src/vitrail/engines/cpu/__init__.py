"""Layers that compute the same as those of ``nn`` in less time on a CPU, and how a model gets them."""

from __future__ import annotations

from vitrail.engines.cpu.accelerating import accelerate
from vitrail.engines.cpu.convolution import settle_norms

__all__ = ["accelerate", "settle_norms"]
