"""Boxes: formats and overlaps; the only file that converts formats.

Three formats: corners (left, top, right, bottom: xyxy), a corner with width and height (xywh, as COCO stores
them), and the centre with width and height (cxcywh, as models answer). Numbers are pixels or shares of an
image; a pixel's left edge is its number, so that a box over a whole image is (0, 0, width, height).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def cxcywh_to_xyxy(boxes: Float[Tensor, "*boxes 4"]) -> Float[Tensor, "*boxes 4"]:
    """Convert centre and size to corners.

    >>> cxcywh_to_xyxy(torch.tensor([3.0, 5.0, 2.0, 4.0]))
    tensor([2., 3., 4., 7.])
    """
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat((centre - half, centre + half), dim=-1)


def xyxy_to_cxcywh(boxes: Float[Tensor, "*boxes 4"]) -> Float[Tensor, "*boxes 4"]:
    """Convert corners to centre and size."""
    first, last = boxes[..., :2], boxes[..., 2:]
    return torch.cat(((first + last) / 2, last - first), dim=-1)
