"""Accuracy where an image may have several correct classes, or none (ImageNet-ReaL)."""

from __future__ import annotations

from collections.abc import Sequence, Set

from vitrail.core.errors import DataError


def reassess(predicted: Sequence[int], labels: Sequence[Set[int]]) -> list[bool]:
    """Return whether each predicted class is among the labels of its image; images without labels are left
    out.

    Paper: Beyer et al. 2020, "Are we done with ImageNet?", section 3.

    Args:
        predicted: one class per image.
        labels: all classes in the image.

    Raises:
        DataError: no image has a label.

    >>> reassess([3, 5, 7], [{1, 3}, set(), {5}])
    [True, False]
    """
    judged = [given in right for given, right in zip(predicted, labels, strict=True) if right]
    if not judged:
        raise DataError(
            f"none of {len(labels)} images has a label of ReaL",
            expected="validation images of which some have one",
            remedy="Score all validation images",
        )
    return judged
