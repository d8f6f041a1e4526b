from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from vitrail.data.images import UPRIGHT
from vitrail.data.inspection import Inspection
from vitrail.tasks.detection.inspection import Frame, frame_of, to_upright, turn_boxes

BOX = np.array([[2, 3, 7, 5]], dtype=np.float32)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_turn_as_the_pixels_do(orientation: int) -> None:
    height, width = 11, 17
    pixels = np.zeros((height, width), dtype=np.uint8)
    pixels[3:5, 2:7] = 255
    image = Image.fromarray(pixels)
    upright = np.asarray(image.transpose(UPRIGHT[orientation]) if orientation > 1 else image)

    ((left, top, right, bottom),) = turn_boxes(BOX, orientation, (height, width)).astype(int).tolist()

    rows, columns = np.nonzero(upright)
    assert (left, top, right, bottom) == (
        columns.min(),
        rows.min(),
        columns.max() + 1,
        rows.max() + 1,
    )


@pytest.mark.parametrize(
    ("size", "orientation", "claimed", "kind"),
    [
        ((30, 50), 1, None, "upright"),
        ((30, 50), 1, (0, 0), "upright"),
        ((30, 50), 1, (30, 50), "upright"),
        ((30, 50), 1, (31, 50), "upright"),
        ((30, 50), 1, (60, 100), "scaled"),
        ((30, 50), 1, (15, 25), "scaled"),
        ((30, 50), 1, (50, 30), "unknown"),
        ((30, 50), 1, (30, 60), "unknown"),
        ((30, 50), 6, (30, 50), "upright"),
        ((30, 50), 6, (50, 30), "turned"),
        ((30, 50), 6, None, "unclear-turn"),
        ((30, 50), 3, (30, 50), "unclear-turn"),
        ((40, 40), 6, (40, 40), "unclear-turn"),
        ((40, 41), 6, (40, 41), "upright"),
        ((40, 41), 6, (41, 40), "turned"),
    ],
)
def test_the_claimed_size_tells_what_boxes_were_drawn_on(
    size: tuple[int, int], orientation: int, claimed: tuple[int, int] | None, kind: str
) -> None:
    seen = Inspection(height=size[0], width=size[1], orientation=orientation)

    assert frame_of(seen, claimed, BOX).kind == kind


def test_a_claim_that_the_boxes_do_not_keep_is_not_believed() -> None:
    seen = Inspection(height=100, width=200)
    boxes = np.array([[120, 10, 180, 90]], dtype=np.float32)

    assert frame_of(seen, (50, 100), boxes) == Frame("unknown", (100, 200))
    assert frame_of(seen, (200, 400), boxes) == Frame("scaled", (200, 400))


def test_scaled_boxes_are_brought_to_the_size_of_the_file() -> None:
    seen = Inspection(height=30, width=50)

    scaled = to_upright(BOX, Frame("scaled", (60, 150)), seen)

    np.testing.assert_allclose(scaled, [[2 / 3, 1.5, 7 / 3, 2.5]], rtol=1e-6)
