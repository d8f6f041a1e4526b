"""Queries with a bounding box each: proposals, iterative refinement, and denoising queries.

Boxes are cxcywh as fractions of the image, in float32. A box is refined by adding to the logits of its four
numbers, so the result stays between 0 and 1 (Zhu et al. 2021, appendix A.4). Denoising queries are noised
ground-truth boxes to be reconstructed, with no matching needed (Li et al. 2022, DN-DETR; Zhang et al. 2023,
DINO).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.core.boxes import cxcywh_to_xyxy, xyxy_to_cxcywh
from vitrail.core.tensors import vector_of, without_autocast
from vitrail.nn.blocks import MLP
from vitrail.nn.deformable import FeatureLevels, patch_centres, patch_sizes
from vitrail.nn.linear import Linear

LOGIT_MARGIN = 1e-3  # coordinates are clamped this far from 0 and 1; Zhang et al. 2023 (DINO), published code
PRIOR = 0.01  # initial score of every class; Lin et al. 2017 (focal loss), section 4.1
EMPTY_LOGIT = -20.0  # of an empty query; a score of 2e-9
ANCHOR_STRIDES = 4.0  # side of an anchor in strides; as Zhao et al. 2024 (RT-DETR): 32 pixels at stride 8
MAX_FREQUENCY = 32.0  # periods over the image of the fastest sine of a coordinate


class BoxQueries(NamedTuple):
    """Initial queries of a box decoder."""

    content: Float[Tensor, "batch queries dim"]
    """Content embedding."""
    box_logits: Float[Tensor, "batch queries 4"]
    """Logits of the initial boxes."""
    is_real: Bool[Tensor, "batch queries"] | None
    """False for empty queries; None where there are none."""


class Proposals(NamedTuple):
    """Class scores and boxes predicted at feature-map positions, highest score first."""

    queries: BoxQueries
    """The positions' features and boxes."""
    logits: Float[Tensor, "batch queries classes"]


def first_queries(queries: BoxQueries, count: int) -> BoxQueries:
    """Return the first ``count`` queries of each image."""
    is_real = None if queries.is_real is None else queries.is_real[:, :count]
    return BoxQueries(queries.content[:, :count], queries.box_logits[:, :count], is_real)


def silence_missing(
    logits: Float[Tensor, "batch slots classes"], queries: BoxQueries
) -> Float[Tensor, "batch slots classes"]:
    """Set the logits of empty queries so that they predict no class; other slots may follow the queries."""
    if queries.is_real is None:
        return logits
    is_real = F.pad(queries.is_real, (0, logits.shape[1] - queries.is_real.shape[1]), value=True)
    return logits.masked_fill(~is_real[..., None], EMPTY_LOGIT)


def box_logits(boxes: Float[Tensor, "*boxes 4"]) -> Float[Tensor, "*boxes 4"]:
    """Return the logits of boxes, in float32; ``sigmoid`` is the inverse.

    Example:
        >>> box_logits(torch.tensor([0.5, 0.5, 0.25, 1.0])).sigmoid()
        tensor([0.5000, 0.5000, 0.2500, 0.9990])
    """
    return torch.logit(boxes.float(), eps=LOGIT_MARGIN)


def box_positions(boxes: Float[Tensor, "*boxes 4"], dim: int) -> Float[Tensor, "*boxes dim"]:
    """Return a sinusoidal encoding of cxcywh boxes in float32; ``dim`` is a multiple of eight.

    Paper: Liu et al. 2022 (DAB-DETR), section 4.2. Departs from the paper: from half a period over the image
    to ``MAX_FREQUENCY`` periods.
    """
    count = dim // 8
    powers = torch.linspace(-1.0, math.log2(MAX_FREQUENCY), count, device=boxes.device)
    angles = (2 * math.pi * 2**powers) * boxes.float()[..., None]  # boxes 4 count
    return torch.cat((angles.sin(), angles.cos()), dim=-1).flatten(-2)


class BoxHead(nn.Module):
    """Predict class logits and box refinements; starts with score ``PRIOR`` for every class and unmoved
    boxes.

    Paper: Zhu et al. 2021 (Deformable DETR), appendix A.4; first scores: Lin et al. 2017, section 4.1.
    """

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.classes = Linear(dim, num_classes)
        self.move = MLP(dim, dim, out_dim=4)
        nn.init.constant_(self.classes.bias, -math.log((1 - PRIOR) / PRIOR))
        nn.init.zeros_(self.move.contract.weight)
        nn.init.zeros_(self.move.contract.bias)

    def forward(
        self, x: Float[Tensor, "batch queries dim"], box_logits: Float[Tensor, "batch queries 4"]
    ) -> tuple[Float[Tensor, "batch queries classes"], Float[Tensor, "batch queries 4"]]:
        """Return class logits in the weights' type also under autocast, and refined box logits in float32."""
        with without_autocast(x.device.type):
            x = self.norm(x.to(self.classes.weight.dtype))
            return self.classes(x), box_logits + self.move(x).float()


class ProposedQueries(nn.Module):
    """Two-stage queries: predict a box at every position; the highest-scoring ones become queries.

    Anchors are squares of ``ANCHOR_STRIDES`` strides a side around each position.

    Paper: Zhu et al. 2021 (Deformable DETR), appendix A.4, "two-stage"; Zhao et al. 2024 (RT-DETR), section
    4.3: the queries begin with the tokens themselves.
    """

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__()
        self.transform = nn.Sequential(Linear(dim, dim), nn.LayerNorm(dim))
        self.head = BoxHead(dim, num_classes)

    def forward(self, levels: FeatureLevels, num_proposals: int) -> Proposals:
        """Return ``num_proposals`` proposals per image.

        An image with fewer positions gets empty queries, with zero content and a box in the middle of the
        image.
        """
        tokens, is_real = levels.tokens, levels.is_image
        anchors = patch_anchors(levels)
        missing = num_proposals - tokens.shape[1]
        if missing > 0:
            if is_real is None:
                is_real = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
            tokens, anchors = F.pad(tokens, (0, 0, 0, missing)), F.pad(anchors, (0, 0, 0, missing))
            is_real = F.pad(is_real, (0, missing))
        content = self.transform(tokens)
        logits, moved = self.head(content, anchors)
        if is_real is not None:
            logits = logits.masked_fill(~is_real[..., None], EMPTY_LOGIT)
            moved = moved.masked_fill(~is_real[..., None], 0.0)
            content = content.masked_fill(~is_real[..., None], 0.0)
        scores = logits.detach().amax(dim=-1)
        if is_real is not None:
            scores = scores.masked_fill(~is_real, -math.inf)
        chosen = scores.topk(num_proposals, dim=1).indices
        queries = BoxQueries(
            _take(content, chosen),
            _take(moved, chosen),
            None if is_real is None else is_real.gather(1, chosen),
        )
        return Proposals(queries, _take(logits, chosen))


class LearnedQueries(nn.Module):
    """Learned queries, the same for every image, with boxes spread over it.

    Paper: Liu et al. 2022 (DAB-DETR), section 4.1.
    """

    def __init__(self, dim: int, num_queries: int) -> None:
        super().__init__()
        self.content = nn.Parameter(torch.zeros(num_queries, dim))
        self.box_positions = nn.Parameter(torch.zeros(num_queries, 4))
        nn.init.trunc_normal_(self.content, std=0.02)
        nn.init.uniform_(self.box_positions[:, :2].data, -2.0, 2.0)  # sigmoid: 0.12 to 0.88
        nn.init.constant_(self.box_positions[:, 2:].data, -2.0)  # sigmoid: 0.12

    def forward(self, batch: int) -> BoxQueries:
        return BoxQueries(
            self.content.expand(batch, -1, -1), self.box_positions.float().expand(batch, -1, -1), None
        )


def patch_anchors(levels: FeatureLevels) -> Float[Tensor, "batch patches 4"]:
    """Return the box logits of each position's anchor."""
    sides = ANCHOR_STRIDES * patch_sizes(levels)
    return box_logits(torch.cat((patch_centres(levels), sides), dim=-1))


def _take(x: Tensor, chosen: Tensor) -> Tensor:
    return x.gather(1, chosen[..., None].expand(-1, -1, x.shape[-1]))


class NoisyBoxes(NamedTuple):
    """Noised ground-truth boxes, the same number for each image."""

    labels: Int[Tensor, "batch slots"]
    """Classes, some of them flipped."""
    boxes: Float[Tensor, "batch slots 4"]
    """cxcywh as fractions of the image."""
    assigned: Int[Tensor, "batch slots"]
    """Index of the ground-truth box to reconstruct; -1 for a negative, to be predicted as no object."""
    groups: Int[Tensor, "batch slots"]
    """Denoising group, with each ground-truth box at most once as a positive and once as a negative."""


def add_box_noise(
    labels: Int[Tensor, "batch boxes"],
    boxes: Float[Tensor, "batch boxes 4"],
    counts: Int[Tensor, " batch"],
    *,
    num_slots: int,
    num_classes: int,
    label_noise: float,
    box_noise: float,
) -> NoisyBoxes:
    """Return noised copies of the ground-truth boxes: half positives to reconstruct, half negatives.

    The boxes are taken in turn, in random order, until all slots are filled: an image with few boxes gets
    several groups, one with too many loses some. An image without boxes gets random negatives. Draws from the
    default generator of the boxes' device.

    Each corner coordinate of a positive moves by up to ``box_noise`` times half of the box's width or height,
    that of a negative by one to two times as much.

    Args:
        labels: arbitrary beyond ``counts``, as are the boxes.
        boxes: cxcywh as fractions of the image.
        num_slots: denoising queries per image, even.
        label_noise: probability that a label is drawn anew.

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
    # An image without boxes: centres and sizes anywhere.
    anywhere = torch.rand_like(true_boxes) * vector_of((1.0, 1.0, 0.5, 0.5), true_boxes)
    true_boxes = torch.where(has_boxes[..., None], true_boxes, anywhere)
    drawn = torch.randint(num_classes, (batch, num_slots), device=boxes.device)
    keeps = torch.rand(batch, num_slots, device=boxes.device) >= label_noise
    keeps &= has_boxes
    noised = torch.cat(
        (_move_corners(true_boxes, box_noise, least=0.0), _move_corners(true_boxes, box_noise, least=1.0)),
        dim=1,
    )
    positives = torch.where(has_boxes, index, -1)
    return NoisyBoxes(
        torch.where(keeps, torch.cat((true_labels, true_labels), dim=1), drawn),
        noised,
        torch.cat((positives, torch.full_like(index, -1)), dim=1),
        torch.cat((group, group), dim=1),
    )


def denoising_mask(
    groups: Int[Tensor, "batch slots"], num_queries: int
) -> Bool[Tensor, "batch 1 tokens tokens"]:
    """Denoising queries see the queries and their own group; queries see queries only."""
    same = groups[:, :, None] == groups[:, None]  # b slots slots
    see_slots = F.pad(same, (0, 0, num_queries, 0))  # nothing above: no query sees a slot
    see_queries = see_slots.new_ones(*see_slots.shape[:2], num_queries)
    return torch.cat((see_queries, see_slots), dim=2)[:, None]


def self_attention_mask(
    queries: BoxQueries, noisy: NoisyBoxes | None
) -> Bool[Tensor, "batch 1 #tokens tokens"] | None:
    """Return the decoder's self-attention mask: ``denoising_mask``, with empty queries hidden, or None."""
    is_real = None if queries.is_real is None else queries.is_real[:, None, None]  # b 1 1 queries
    if noisy is None:
        return is_real
    mask = denoising_mask(noisy.groups, queries.content.shape[1])
    return mask if is_real is None else mask & F.pad(is_real, (0, noisy.groups.shape[1]), value=True)


def _take_turns(counts: Tensor, num_turns: int, num_boxes: int) -> tuple[Tensor, Tensor]:
    """Return the box of each turn, in a random order that repeats, and how often it had a turn before."""
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
