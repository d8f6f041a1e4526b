"""Bounding boxes: formats and overlaps; the only file that converts formats.

Three formats: corners (left, top, right, bottom: xyxy), a corner with width and height (xywh, as in COCO),
and the centre with width and height (cxcywh, as models predict). Numbers are pixels or fractions of the
image; the left edge of pixel i is at i, so that a box over a whole image is (0, 0, width, height).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

Boxes = Float[Tensor, "*boxes 4"]
PairedBoxes = Float[Tensor, "*#boxes 4"]
FirstBoxes, OtherBoxes = Float[Tensor, "*batch n 4"], Float[Tensor, "*batch m 4"]
Pairs = Float[Tensor, "*batch n m"]


def cxcywh_to_xyxy(boxes: Boxes) -> Boxes:
    """Convert centre and size to corners.

    >>> cxcywh_to_xyxy(torch.tensor([3.0, 5.0, 2.0, 4.0]))
    tensor([2., 3., 4., 7.])
    """
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat((centre - half, centre + half), dim=-1)


def xyxy_to_cxcywh(boxes: Boxes) -> Boxes:
    """Convert corners to centre and size."""
    first, last = boxes[..., :2], boxes[..., 2:]
    return torch.cat(((first + last) / 2, last - first), dim=-1)


def xywh_to_xyxy(boxes: Boxes) -> Boxes:
    """Convert the first corner and size to corners."""
    return torch.cat((boxes[..., :2], boxes[..., :2] + boxes[..., 2:]), dim=-1)


def xyxy_to_xywh(boxes: Boxes) -> Boxes:
    """Convert corners to the first corner and size.

    >>> xyxy_to_xywh(torch.tensor([2.0, 3.0, 4.0, 7.0]))
    tensor([2., 3., 2., 4.])
    """
    return torch.cat((boxes[..., :2], boxes[..., 2:] - boxes[..., :2]), dim=-1)


def clip_boxes(boxes_xyxy: Boxes, size: tuple[float, float]) -> Boxes:
    """Clip boxes to an image of some height and width; a box outside of it gets zero area.
    >>> clip_boxes(torch.tensor([-2.0, 3.0, 4.0, 9.0]), (7, 5))
    tensor([0., 3., 4., 7.])
    """
    height, width = size
    upper = boxes_xyxy.new_tensor([width, height, width, height])
    return boxes_xyxy.clamp(min=torch.zeros_like(upper), max=upper)


def box_area(boxes_xyxy: Boxes) -> Float[Tensor, "*boxes"]:
    """Return the areas; 0 if corners are swapped."""
    width, height = (boxes_xyxy[..., 2:] - boxes_xyxy[..., :2]).clamp(min=0).unbind(-1)
    return width * height


def box_iou(boxes_xyxy: FirstBoxes, others_xyxy: OtherBoxes) -> Pairs:
    """Return the IoU of all pairs of two sets of boxes; 0 where neither has an area."""
    return paired_iou(*_all_pairs(boxes_xyxy, others_xyxy))


def covered_share(boxes_xyxy: FirstBoxes, others_xyxy: OtherBoxes) -> Pairs:
    """Return the fraction of each box inside each of the others.

    >>> covered_share(torch.tensor([[0.0, 0.0, 2.0, 2.0]]), torch.tensor([[1.0, 0.0, 9.0, 9.0]]))
    tensor([[0.5000]])
    """
    intersection, _ = _intersection_and_union(*_all_pairs(boxes_xyxy, others_xyxy))
    return _share(intersection, box_area(boxes_xyxy)[..., :, None].expand_as(intersection))


def generalised_box_iou(boxes_xyxy: FirstBoxes, others_xyxy: OtherBoxes) -> Pairs:
    """Return the generalised IoU of all pairs of two sets of boxes; see ``paired_generalised_iou``."""
    return paired_generalised_iou(*_all_pairs(boxes_xyxy, others_xyxy))


def paired_iou(boxes_xyxy: PairedBoxes, others_xyxy: PairedBoxes) -> Float[Tensor, "*boxes"]:
    """Return the IoU of corresponding boxes; 0 where neither has an area.

    >>> paired_iou(torch.tensor([0.0, 0.0, 2.0, 2.0]), torch.tensor([1.0, 0.0, 3.0, 2.0]))
    tensor(0.3333)
    """
    intersection, union = _intersection_and_union(boxes_xyxy, others_xyxy)
    return _share(intersection, union)


def paired_generalised_iou(boxes_xyxy: PairedBoxes, others_xyxy: PairedBoxes) -> Float[Tensor, "*boxes"]:
    """Return the generalised IoU of corresponding boxes, from -1 to 1.

    It lowers the IoU by the empty share of the smallest enclosing box, which grows with the distance of
    disjoint boxes. Where the enclosing box has no area it is 0.

    Paper: Rezatofighi et al. 2019, Generalized Intersection over Union, algorithm 1.
    """
    intersection, union = _intersection_and_union(boxes_xyxy, others_xyxy)
    first = torch.minimum(boxes_xyxy[..., :2], others_xyxy[..., :2])
    last = torch.maximum(boxes_xyxy[..., 2:], others_xyxy[..., 2:])
    hull = box_area(torch.cat((first, last), dim=-1))
    return _share(intersection, union) - _share(hull - union, hull)


def _all_pairs(boxes: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    return boxes[..., :, None, :], others[..., None, :, :]


def _intersection_and_union(boxes: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    first = torch.maximum(boxes[..., :2], others[..., :2])
    last = torch.minimum(boxes[..., 2:], others[..., 2:])
    intersection = box_area(torch.cat((first, last), dim=-1))
    return intersection, box_area(boxes) + box_area(others) - intersection


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """Divide; 0 where the whole is 0, with a finite gradient there, too."""
    is_something = whole > 0
    return torch.where(is_something, part / torch.where(is_something, whole, 1), 0)
