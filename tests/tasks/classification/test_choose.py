"""Choices follow the images, and say why."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.tasks.classification.choose import choose_resize


@pytest.mark.parametrize(
    ("shapes", "resize", "reason"),
    [
        ([1.0] * 20, "crop", ""),
        ([1.05] * 10 + [1.0] * 10, "crop", "a centred crop cuts off 2% of a typical image"),
        ([0.75] * 12 + [4 / 3] * 8, "letterbox", "would cut off 25% of a typical image, and squashing"),
    ],
)
def test_images_of_another_shape_keep_head_and_feet(shapes: list[float], resize: str, reason: str) -> None:
    chosen, why = choose_resize(np.array(shapes), (128, 128))
    assert chosen == resize
    assert reason in why
    assert bool(reason) == bool(why)
