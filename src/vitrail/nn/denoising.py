"""Queries made of the true boxes, spoiled: a detector that must mend them learns without any matching.

Papers: Li et al. 2022 (DN-DETR); Zhang et al. 2023 (DINO) for boxes that are spoiled too far to be mended.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.core.boxes import cxcywh_to_xyxy, xyxy_to_cxcywh
from vitrail.nn.box_queries import BoxQueries


class SpoiledBoxes(NamedTuple):
    """Boxes with noise, as many in each image."""

    labels: Int[Tensor, "batch slots"]
    """Class that each is said to be of, some of them wrong."""
    boxes: Float[Tensor, "batch slots 4"]
    """cxcywh, shares of the image."""
    assigned: Int[Tensor, "batch slots"]
    """Which box of the image each is to be mended to; -1 for none."""
    groups: Int[Tensor, "batch slots"]
    """Number of its group; a group has each box of the image at most once to be mended, and once not."""


def spoil_boxes(
    labels: Int[Tensor, "batch boxes"],
    boxes: Float[Tensor, "batch boxes 4"],
    counts: Int[Tensor, " batch"],
    *,
    num_slots: int,
    num_classes: int,
    label_noise: float,
    box_noise: float,
) -> SpoiledBoxes:
    """Return spoiled copies of the boxes of each image, half of them to be mended, half too far off.

    The boxes take turns in a random order, so that all slots are filled, those of an image with few boxes by
    several groups; of an image with too many, some are left out. An image without boxes has random ones,
    which are to be nothing. Draws from the default generator of the boxes' device.

    Each corner's coordinates move by up to ``box_noise`` times half of the box's width or height; those of a
    box too far off by one to two times as much.

    Args:
        labels: class of each box; anything where there is none.
        boxes: cxcywh as shares of the image; anything where there is none.
        counts: boxes of each image, which come first.
        num_slots: boxes to return for each image, even.
        num_classes: number of classes.
        label_noise: probability that a label is drawn anew.
        box_noise: how far corners move, as told above.

    Paper: Zhang et al. 2023 (DINO), section 3.3. Departs from the paper: slots are filled image by image, so
    that there is no padding.
    """
    assert num_slots % 2 == 0, f"{num_slots} slots cannot be halved"
    if boxes.shape[1] == 0:
        labels, boxes = F.pad(labels, (0, 1)), F.pad(boxes, (0, 0, 0, 1))
    batch, half = boxes.shape[0], num_slots // 2
    index, group = _take_turns(counts, half, boxes.shape[1])
    has_boxes = (counts > 0)[:, None]
    true_boxes = boxes.float().gather(1, index[..., None].expand(-1, -1, 4))
    true_labels = labels.gather(1, index)
    # What to spoil in an image without boxes: centres and sizes anywhere.
    anywhere = torch.rand_like(true_boxes) * true_boxes.new_tensor((1.0, 1.0, 0.5, 0.5))
    true_boxes = torch.where(has_boxes[..., None], true_boxes, anywhere)
    drawn = torch.randint(num_classes, (batch, num_slots), device=boxes.device)
    keeps = torch.rand(batch, num_slots, device=boxes.device) >= label_noise
    keeps &= has_boxes
    spoiled = torch.cat(
        (_move_corners(true_boxes, box_noise, least=0.0), _move_corners(true_boxes, box_noise, least=1.0)),
        dim=1,
    )
    mended = torch.where(has_boxes, index, -1)
    return SpoiledBoxes(
        torch.where(keeps, torch.cat((true_labels, true_labels), dim=1), drawn),
        spoiled,
        torch.cat((mended, torch.full_like(index, -1)), dim=1),
        torch.cat((group, group), dim=1),
    )


def denoising_mask(
    groups: Int[Tensor, "batch slots"], num_queries: int
) -> Bool[Tensor, "batch 1 tokens tokens"]:
    """Let queries see queries, and slots see queries and the slots of their group; no query sees a slot.

    Args:
        groups: number of each slot's group.
        num_queries: queries before the slots.
    """
    same = groups[:, :, None] == groups[:, None]  # b slots slots
    see_slots = F.pad(same, (0, 0, num_queries, 0))  # nothing above: no query sees a slot
    see_queries = see_slots.new_ones(*see_slots.shape[:2], num_queries)
    return torch.cat((see_queries, see_slots), dim=2)[:, None]


def who_sees_whom(
    queries: BoxQueries, spoiled: SpoiledBoxes | None
) -> Bool[Tensor, "batch 1 #tokens tokens"] | None:
    """Return the mask of self-attention: nobody sees queries that nothing stands behind; None for no mask.

    Args:
        queries: stand before the spoiled boxes.
        spoiled: see the queries and those of their own group.
    """
    is_real = None if queries.is_real is None else queries.is_real[:, None, None]  # b 1 1 queries
    if spoiled is None:
        return is_real
    mask = denoising_mask(spoiled.groups, queries.content.shape[1])
    return mask if is_real is None else mask & F.pad(is_real, (0, spoiled.groups.shape[1]), value=True)


def _take_turns(counts: Tensor, num_turns: int, num_boxes: int) -> tuple[Tensor, Tensor]:
    """Return which box has each turn, in a random order that repeats, and how often it had one before."""
    keys = torch.rand(counts.shape[0], num_boxes, device=counts.device)
    is_box = torch.arange(num_boxes, device=counts.device) < counts[:, None]
    order = keys.masked_fill(~is_box, 2.0).argsort(dim=1)  # its boxes first
    turns = torch.arange(num_turns, device=counts.device)
    length = counts.clamp(min=1)[:, None]
    return order.gather(1, turns % length), turns.div(length, rounding_mode="floor")


def _move_corners(boxes: Tensor, noise: float, *, least: float) -> Tensor:
    corners = cxcywh_to_xyxy(boxes)
    signs = torch.randint(2, corners.shape, device=corners.device) * 2 - 1
    reach = boxes[..., 2:].repeat(1, 1, 2) * (noise / 2)
    moved = (corners + signs * (torch.rand_like(corners) + least) * reach).clamp(0, 1)
    first, last = moved[..., :2], moved[..., 2:]
    return xyxy_to_cxcywh(torch.cat((torch.minimum(first, last), torch.maximum(first, last)), dim=-1))
