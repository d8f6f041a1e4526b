"""An engine's turn in a round: how long it lasts, and what the machine's ceiling is meanwhile."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence

from vitrail.deploy.engines.ceiling import ProductShape
from vitrail.deploy.engines.remote import RemoteCell

ROUND_S = 0.3  # that an engine's turn is filled with
MOST_PASSES = 20  # of a turn
NUM_PRODUCTS = 6  # of a turn, by all kernels alike; the fastest counts
LIBRARIES = ("torch", "onnxruntime", "openvino")


def find_versions(libraries: Sequence[str] = LIBRARIES) -> dict[str, str]:
    """Return the versions of those libraries that are installed."""
    found = {}
    for name in libraries:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def passes_for(seconds: float) -> int:
    """Return how many passes fill an engine's turn, from the time that one takes."""
    return min(max(round(ROUND_S / seconds), 1), MOST_PASSES)


def rate_of(product: RemoteCell, shape: ProductShape) -> float:
    """Return the GFLOP/s of a product by its fastest kernel and pass of a turn."""
    return shape.flops / min(product.time("product", NUM_PRODUCTS)) / 1e9
