"""From the labels that a source writes, text or numbers, to class names and class indices."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence

import numpy as np

UPRIGHT_NAMES = frozenset(string.digits + string.ascii_letters)


def order_class_names(names: Iterable[str]) -> tuple[str, ...]:
    """Sort names, as numbers where all of them are whole numbers, as text else."""
    distinct = set(names)
    if all(name.isascii() and name.removeprefix("-").isdigit() for name in distinct):
        return tuple(sorted(distinct, key=lambda name: (int(name), name)))
    return tuple(sorted(distinct))


def encode_labels(texts: Sequence[str], class_names: Sequence[str]) -> np.ndarray:
    """Return the class index of each label, int64; every label must be among the names."""
    index_of = {name: index for index, name in enumerate(class_names)}
    return np.array([index_of[text] for text in texts], dtype=np.int64)


def are_characters(class_names: Sequence[str]) -> bool:
    """Tell whether the classes are single digits or letters, which must not be mirrored."""
    return bool(class_names) and all(name in UPRIGHT_NAMES for name in class_names)
