"""The common corruptions of images: 15 kinds at five severities, by which robustness is measured.

Paper: Hendrycks and Dietterich 2019, "Benchmarking neural network robustness to common corruptions and
perturbations". A file of this folder defines ``CORRUPTIONS``; adding the file registers them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from vitrail.core.registry import Registry
from vitrail.data.corruptions.contract import Corruption


def _collect(module: ModuleType) -> Mapping[str, Corruption]:
    found: Mapping[str, Corruption] = getattr(module, "CORRUPTIONS", {})
    return found


CORRUPTIONS: Registry[Corruption] = Registry("corruption", "vitrail.data.corruptions", _collect)
