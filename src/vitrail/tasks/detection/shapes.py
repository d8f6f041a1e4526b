"""The built-in data set ``shapes``: drawn circles, squares and triangles, each with its bounding box.

Small enough to teach with: plain DETR learns it in minutes on a CPU (recipe ``shapes``).
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int64, UInt8

from vitrail.data.splits import SplitName
from vitrail.tasks.detection.dataset import BoxSplit, RawBoxes

NAMES = frozenset({"shapes", "builtin:shapes"})
CORNERS = {"circle": 0, "square": 4, "triangle": 3}
COUNTS: dict[SplitName, int] = {"train": 4000, "validation": 200, "test": 500}
SIDE_PX = 96
MOST_SHAPES = 4
RADII_PX = (10.0, 22.0)
MAX_COVERED = 0.2  # of a box, by another one
ATTEMPTS = 20  # at a free position for one shape
NOISE = 10.0  # standard deviation, of 255


def is_shapes(source: str) -> bool:
    """Tell whether a source names the built-in shapes; a path of that name comes first."""
    return source.strip().lower() in NAMES and not Path(source).exists()


def draw_shapes() -> RawBoxes:
    """Draw every split; the same pictures at every call."""
    return RawBoxes(
        class_names=tuple(CORNERS),
        class_ids=tuple(range(1, len(CORNERS) + 1)),
        splits={name: _draw_split(name, seed) for seed, name in enumerate(COUNTS)},
    )


def _draw_split(name: SplitName, seed: int) -> BoxSplit:
    random = np.random.default_rng(seed)
    count = COUNTS[name]
    images, boxes, labels = zip(*(_draw_scene(random) for _ in range(count)), strict=True)
    names, sizes = [f"{name}#{index}" for index in range(count)], np.full((count, 2), SIDE_PX)
    return BoxSplit(np.stack(images), boxes, labels, names, sizes=sizes)


def _draw_scene(
    random: np.random.Generator,
) -> tuple[UInt8[np.ndarray, "height width 3"], Float64[np.ndarray, "boxes 4"], Int64[np.ndarray, " boxes"]]:
    """Draw bright shapes of any colour on dark noise, where there is room for them."""
    image = NOISE * random.standard_normal((SIDE_PX, SIDE_PX, 3), dtype=np.float32)
    image += random.uniform(0, 100, 3).astype(np.float32)
    boxes: list[Float64[np.ndarray, " 4"]] = []
    labels: list[int] = []
    for _ in range(random.integers(1, MOST_SHAPES, endpoint=True)):
        for _ in range(ATTEMPTS):
            label, radius = int(random.integers(len(CORNERS))), random.uniform(*RADII_PX)
            centre, angle = random.uniform(radius, SIDE_PX - radius, 2), random.uniform(0, 2 * math.pi)
            num_corners = list(CORNERS.values())[label]
            box = _box_around(centre, radius, num_corners, angle)
            if not any(_covers(box, other) for other in boxes):
                low, high = np.floor(centre - radius).astype(int), np.ceil(centre + radius).astype(int)
                part = image[low[1] : high[1], low[0] : high[0]]
                x, y = (
                    np.arange(*ends) + 0.5 - middle for *ends, middle in zip(low, high, centre, strict=True)
                )
                coverage = _coverage(x, y, radius, num_corners, angle)[..., None]
                part += coverage * (random.uniform(120, 255, 3) - part)
                boxes.append(box)
                labels.append(label)
                break
    pixels = np.clip(np.rint(image), 0, 255).astype(np.uint8)
    return pixels, np.array(boxes).reshape(-1, 4), np.array(labels, dtype=np.int64)


def _box_around(
    centre: Float64[np.ndarray, " 2"], radius: float, num_corners: int, angle: float
) -> Float64[np.ndarray, " 4"]:
    """Return left, top, right and bottom of a regular polygon within a circle, or of the circle itself."""
    if not num_corners:
        return np.concatenate((centre - radius, centre + radius))
    angles = angle + 2 * math.pi * np.arange(num_corners) / num_corners
    corners = centre + radius * np.stack((np.cos(angles), np.sin(angles)), axis=-1)
    return np.concatenate((corners.min(axis=0), corners.max(axis=0)))


def _coverage(
    x: Float64[np.ndarray, " width"],
    y: Float64[np.ndarray, " height"],
    radius: float,
    num_corners: int,
    angle: float,
) -> Float64[np.ndarray, "height width"]:
    """Return how much of each pixel a shape covers, by the distance of the pixel's middle to its edge.

    Args:
        x, y: the middles of columns and rows, from the middle of the shape.
    """
    if not num_corners:
        outside = np.hypot(x, y[:, None]) - radius
    else:
        normals = angle + math.pi * (2 * np.arange(num_corners) + 1) / num_corners
        along = [np.cos(normal) * x + np.sin(normal) * y[:, None] for normal in normals]
        outside = np.maximum.reduce(along) - radius * math.cos(math.pi / num_corners)
    return np.clip(0.5 - outside, 0, 1)


def _covers(one: Float64[np.ndarray, " 4"], other: Float64[np.ndarray, " 4"]) -> bool:
    """Tell whether two boxes share too much of either."""
    sides = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    smaller = min(np.prod(box[2:] - box[:2]) for box in (one, other))
    return bool(np.prod(sides.clip(min=0)) > MAX_COVERED * smaller)
