"""Dividing labelled samples into two parts with the same mixture of classes."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64


def stratified_split(
    labels: Int64[np.ndarray, " n"], fraction: float, *, seed: int, max_held: int | None = None
) -> tuple[Int64[np.ndarray, " kept"], Int64[np.ndarray, " held"]]:
    """Hold out a share of every class.

    Each class gives its share of the total, rounded by largest remainders; a class of two or more samples
    gives at least one and keeps at least one, so with many classes the bound may be passed by as much.

    Args:
        labels: class index of each sample.
        fraction: share to hold out, 0..1.
        seed: seed of the choice; equal labels and seed give equal parts.
        max_held: upper bound on the number held out.

    Returns:
        kept: indices of the samples that stay, ascending.
        held: indices of the samples held out, ascending.
    """
    if max_held is not None:
        fraction = min(fraction, max_held / max(len(labels), 1))
    if fraction <= 0 or len(labels) == 0:
        return np.arange(len(labels)), np.arange(0)
    classes, counts = np.unique(labels, return_counts=True)
    wanted = counts * fraction
    quota = np.floor(wanted + 1e-9).astype(np.int64)
    missing = round(float(wanted.sum())) - int(quota.sum())
    # stable: among equal remainders the lower class index gives
    quota[np.argsort(quota - wanted, kind="stable")[: max(missing, 0)]] += 1
    quota = np.where(counts >= 2, np.clip(quota, 1, counts - 1), 0)
    rng = np.random.default_rng(seed)
    held = np.zeros(len(labels), dtype=bool)
    for label, number in zip(classes, quota, strict=True):
        members = np.flatnonzero(labels == label)
        held[rng.permutation(members)[:number]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)
