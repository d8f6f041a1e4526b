"""Augment one training image together with its boxes.

Every function draws from the generator it is given and from nothing else. One matrix moves pixels and boxes
alike.

What comes in from beyond an image shows the mean colour, zero after normalisation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float32, Int64, UInt8
from torch import Tensor

from vitrail.core.boxes import box_area, clip_boxes
from vitrail.data.augment import change_colour
from vitrail.data.box_preprocessing import BoxPreprocessing
from vitrail.tasks.detection.settings import BoxAugmentSettings

MIN_VISIBLE = 0.25  # of a box's area; with less of it in the image, the box is dropped
CROP_AREA = (0.4, 1.0)  # of the image; Carion et al. 2020 crop 384 of 600 pixels of a side, and more
CROP_ASPECT = (3 / 4, 4 / 3)  # beside the image's own; as for images without boxes
MOSAIC_MIDDLE = (0.3, 0.7)  # where four images meet, as a share of either side
MIN_SHRINK = 0.67  # a bilinear warp reads 2 x 2 pixels, so what shrinks more is resized first

Part = tuple[int, int, int, int]
"""Left, top, right and bottom of a crop, in whole pixels."""
Matrix = np.ndarray
"""A 3 x 3 matrix that maps points (x, y, 1); a pixel's left edge is its number."""


class BoxedImage(NamedTuple):
    """An image with its visible boxes."""

    image: UInt8[Tensor, "3 height width"]
    boxes_xyxy: Float32[Tensor, "n 4"]
    """Corners in pixels, inside the image."""
    labels: Int64[Tensor, " n"]
    visible: Float32[Tensor, " n"]
    """Share of each box's area that is still in the image."""


class _Draws(NamedTuple):
    """Uniform numbers in 0..1, always drawn together, so that no setting changes what another draws."""

    crops: float
    crop_area: float
    crop_aspect: float
    crop_x: float
    crop_y: float
    scale: float
    shift_x: float
    shift_y: float
    turn: float
    flip: float
    flip_vertical: float


def augment_image(
    boxed: BoxedImage,
    size: tuple[int, int],
    preprocessing: BoxPreprocessing,
    settings: BoxAugmentSettings,
    generator: torch.Generator,
) -> BoxedImage:
    """Apply all enabled augmentations of single images, and bring the image to the model's input size.

    Crop, resize, then scale, turn and shift about the centre, then change colours, then flip. Images are
    warped only where they are scaled, turned or shifted.

    Args:
        boxed: the image, at the input's size or larger.
        size: input height and width for the whole image; a crop gets those of an image of its shape.
        preprocessing: gives the input's size for a crop, and the mean colour.
        settings: what is switched on; mosaics are made beforehand, by ``mosaic``.
    """
    draws = _Draws(*torch.rand(len(_Draws._fields), generator=generator).tolist())
    height, width = boxed.image.shape[-2:]
    part = (0, 0, width, height)
    if draws.crops < settings.crop:
        part = _crop((height, width), draws)
        size = preprocessing.input_size((part[3] - part[1], part[2] - part[0]))
    normal = None
    if settings.scale or settings.shift or settings.rotation:
        matrix = _motion(size, settings, draws) @ _stretch(part, size)
        normal = _warp(boxed.image, matrix, size, preprocessing)
        boxed = _keep_visible(boxed, _move(boxed.boxes_xyxy, matrix), size)
    else:
        boxed = _cut(boxed, part, size)
    if settings.colour:
        normal = preprocessing.normalise(boxed.image[None]) if normal is None else normal
        normal = change_colour(normal, settings.colour, generator)
    if normal is not None:
        boxed = boxed._replace(image=preprocessing.denormalise(normal)[0])
    if settings.flip and draws.flip < 0.5:
        boxed = _flip(boxed, axis=0)
    if settings.flip_vertical and draws.flip_vertical < 0.5:
        boxed = _flip(boxed, axis=1)
    return boxed


def mosaic(images: Sequence[BoxedImage], generator: torch.Generator) -> BoxedImage:
    """Join four images around a random point, at the size of the first.

    Each fills its quarter: it is scaled by a random factor between the smallest that fills it and 1, and
    cropped at random.

    Paper: Bochkovskiy et al. 2020, YOLOv4, section 3.3; it does not say how images are scaled and cropped.
    """
    height, width = images[0].image.shape[-2:]
    draws = torch.rand(2 + 3 * len(images), generator=generator).tolist()
    middle_x, middle_y = (
        round(_between(MOSAIC_MIDDLE, draw) * side)
        for draw, side in zip(draws[:2], (width, height), strict=True)
    )
    rows, columns = ((0, middle_y), (middle_y, height)), ((0, middle_x), (middle_x, width))
    quarters = [(left, top, right, bottom) for top, bottom in rows for left, right in columns]
    joined = torch.empty_like(images[0].image)
    tiles = []
    for number, (boxed, quarter) in enumerate(zip(images, quarters, strict=True)):
        left, top, right, bottom = quarter
        if left == right or top == bottom:  # an image one pixel wide or high
            continue
        size = (bottom - top, right - left)
        first = 2 + 3 * number
        tile = _cut(boxed, _tile(boxed.image, size, draws[first : first + 3]), size)
        joined[:, top:bottom, left:right] = tile.image
        offset = tile.boxes_xyxy.new_tensor([left, top, left, top])
        tiles.append(tile._replace(boxes_xyxy=tile.boxes_xyxy + offset))
    boxes, labels, visible = (torch.cat(parts) for parts in zip(*(tile[1:] for tile in tiles), strict=True))
    return BoxedImage(joined, boxes, labels, visible)


def _crop(size: tuple[int, int], draws: _Draws) -> Part:
    height, width = size
    area = _between(CROP_AREA, draws.crop_area)
    low, high = (math.log(aspect) for aspect in CROP_ASPECT)
    aspect = math.exp(_between((low, high), draws.crop_aspect))
    columns = _between_one_and(width, math.sqrt(area * aspect) * width)
    rows = _between_one_and(height, math.sqrt(area / aspect) * height)
    return _part_of(size, (rows, columns), draws.crop_x, draws.crop_y)


def _tile(image: UInt8[Tensor, "3 height width"], size: tuple[int, int], draws: Sequence[float]) -> Part:
    """Return the part of an image that fills a quarter of the given size."""
    height, width = image.shape[-2:]
    smallest = max(size[0] / height, size[1] / width)
    scale = _between((smallest, max(smallest, 1.0)), draws[0])
    rows, columns = _between_one_and(height, size[0] / scale), _between_one_and(width, size[1] / scale)
    return _part_of((height, width), (rows, columns), draws[1], draws[2])


def _part_of(size: tuple[int, int], of_part: tuple[int, int], x: float, y: float) -> Part:
    left, top = round(x * (size[1] - of_part[1])), round(y * (size[0] - of_part[0]))
    return (left, top, left + of_part[1], top + of_part[0])


def _cut(boxed: BoxedImage, part: Part, size: tuple[int, int]) -> BoxedImage:
    left, top, right, bottom = part
    height, width = boxed.image.shape[-2:]
    if part == (0, 0, width, height) and size == (height, width):
        return boxed
    pixels = boxed.image[:, top:bottom, left:right]
    if pixels.shape[-2:] != size:
        pixels = F.interpolate(pixels[None], list(size), mode="bilinear", antialias=True)[0]
    moved = _move(boxed.boxes_xyxy, _stretch(part, size))
    return _keep_visible(boxed._replace(image=pixels), moved, size)


def _warp(
    image: UInt8[Tensor, "3 height width"],
    matrix: Matrix,
    size: tuple[int, int],
    preprocessing: BoxPreprocessing,
) -> Float32[Tensor, "1 3 rows columns"]:
    """Normalise an image and warp it by a matrix, padded with the mean colour."""
    height, width = image.shape[-2:]
    shrink = math.sqrt(abs(np.linalg.det(matrix[:2, :2])))
    if shrink < MIN_SHRINK:
        smaller = (max(round(height * shrink), 1), max(round(width * shrink), 1))
        image = F.interpolate(image[None], list(smaller), mode="bilinear", antialias=True)[0]
        matrix = matrix @ np.linalg.inv(_stretch((0, 0, width, height), smaller))
    # Where each pixel comes from, in coordinates from -1 to 1 between the edges of either image.
    before, after = (
        _shift(-1, -1) @ _stretch((0, 0, columns, rows), (2, 2)) for rows, columns in (image.shape[-2:], size)
    )
    back = before @ np.linalg.inv(after @ matrix)
    theta = torch.from_numpy(back[None, :2]).float()
    grid = F.affine_grid(theta, [1, 3, *size], align_corners=False)
    return F.grid_sample(preprocessing.normalise(image[None]), grid, align_corners=False)


def _flip(boxed: BoxedImage, *, axis: int) -> BoxedImage:
    """Flip left and right (axis 0) or top and bottom (axis 1)."""
    image, boxes = boxed.image.flip(-1 - axis), boxed.boxes_xyxy.clone()
    length = image.shape[-1 - axis]
    boxes[:, axis], boxes[:, axis + 2] = length - boxed.boxes_xyxy[:, axis + 2], length - boxes[:, axis]
    return boxed._replace(image=image, boxes_xyxy=boxes)


def _keep_visible(boxed: BoxedImage, moved_xyxy: Float32[Tensor, "n 4"], size: tuple[int, int]) -> BoxedImage:
    """Clip moved boxes to the image, and drop those of which too little is left."""
    clipped = clip_boxes(moved_xyxy, size)
    area = box_area(moved_xyxy)
    is_left = torch.where(area > 0, box_area(clipped) / area.clamp(min=torch.finfo(area.dtype).tiny), 0)
    visible = boxed.visible * is_left
    is_kept = visible >= MIN_VISIBLE
    return BoxedImage(boxed.image, clipped[is_kept], boxed.labels[is_kept], visible[is_kept])


def _move(boxes_xyxy: Float32[Tensor, "n 4"], matrix: Matrix) -> Float32[Tensor, "n 4"]:
    corners = boxes_xyxy.double()[:, [0, 1, 2, 1, 2, 3, 0, 3]].unflatten(1, (4, 2))
    placed = torch.from_numpy(matrix)
    moved = corners @ placed[:2, :2].mT + placed[:2, 2]
    return torch.cat((moved.amin(dim=1), moved.amax(dim=1)), dim=-1).float()


def _motion(size: tuple[int, int], settings: BoxAugmentSettings, draws: _Draws) -> Matrix:
    height, width = size
    scale = 1 + settings.scale * _between((-1, 1), draws.scale)
    angle = math.radians(settings.rotation * _between((-1, 1), draws.turn))
    along_x = settings.shift * width * _between((-1, 1), draws.shift_x)
    along_y = settings.shift * height * _between((-1, 1), draws.shift_y)
    cos, sin = scale * math.cos(angle), scale * math.sin(angle)
    turned = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]])
    return _shift(width / 2 + along_x, height / 2 + along_y) @ turned @ _shift(-width / 2, -height / 2)


def _stretch(part: Part, size: tuple[int, int]) -> Matrix:
    left, top, right, bottom = part
    along_x, along_y = size[1] / (right - left), size[0] / (bottom - top)
    return np.array([[along_x, 0, -left * along_x], [0, along_y, -top * along_y], [0, 0, 1]])


def _shift(x: float, y: float) -> Matrix:
    return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]])


def _between(bounds: tuple[float, float], draw: float) -> float:
    return bounds[0] + (bounds[1] - bounds[0]) * draw


def _between_one_and(most: int, length: float) -> int:
    return min(max(round(length), 1), most)
