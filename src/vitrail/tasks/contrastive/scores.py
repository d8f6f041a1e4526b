"""Image-text retrieval scores: recall at 1, 5 and 10 both ways.

Source: Hodosh, Young and Hockenmaier 2013, section 4; as Radford et al. 2021 report it in table 13.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

DEPTHS = (1, 5, 10)
ROWS_AT_ONCE = 1024  # of the cosine matrix, which may exceed memory as a whole


class RetrievalRanks(NamedTuple):
    """1-based ranks of the correct match."""

    of_texts: Int[Tensor, " images"]
    """For each image the best rank of any of its texts, among all texts."""
    of_images: Int[Tensor, " texts"]
    """For each text the rank of its image, among all images."""


def retrieval_ranks(
    images: Float[Tensor, "images dim"],
    texts: Float[Tensor, "texts dim"],
    image_of_text: Int[Tensor, " texts"],
) -> RetrievalRanks:
    """Rank by dot products; ties count against the correct match.

    Args:
        images: normalised embeddings.
        texts: likewise, at least one per image.
        image_of_text: index of each text's image.

    >>> images, texts = torch.eye(2), torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.9, 0.1]])
    >>> ranks = retrieval_ranks(images, texts, torch.tensor([0, 1, 1]))
    >>> ranks.of_texts.tolist(), ranks.of_images.tolist()
    ([1, 1], [1, 1, 2])
    """
    of_images = []
    for rows, owners in zip(texts.split(ROWS_AT_ONCE), image_of_text.split(ROWS_AT_ONCE), strict=True):
        scores = rows @ images.T
        own = scores.gather(1, owners[:, None])
        of_images.append((scores >= own).sum(dim=1))  # includes its own image
    of_texts = []
    for first, rows in zip(range(0, len(images), ROWS_AT_ONCE), images.split(ROWS_AT_ONCE), strict=True):
        scores = rows @ texts.T
        is_own = image_of_text[None] == torch.arange(first, first + len(rows), device=rows.device)[:, None]
        best = scores.masked_fill(~is_own, -torch.inf).amax(dim=1, keepdim=True)
        of_texts.append(((scores >= best) & ~is_own).sum(dim=1) + 1)
    nothing = image_of_text[:0]
    return RetrievalRanks(torch.cat([nothing, *of_texts]), torch.cat([nothing, *of_images]))


def retrieval_scores(ranks: RetrievalRanks) -> dict[str, float]:
    """Return recall at 1, 5 and 10 both ways, their mean, and median ranks.

    All are zero if there is nothing to rank.
    """
    scores: dict[str, float] = {}
    for way, found in (("image_to_text", ranks.of_texts), ("text_to_image", ranks.of_images)):
        for depth in DEPTHS:
            hits = (found <= depth).double()
            scores[f"{way}_r{depth}"] = float(hits.mean()) if len(found) else 0.0
    mean = sum(scores.values()) / len(scores)
    medians = {
        "median_rank_of_texts": float(ranks.of_texts.median()) if len(ranks.of_texts) else 0.0,
        "median_rank_of_images": float(ranks.of_images.median()) if len(ranks.of_images) else 0.0,
    }
    return {"mean_recall": mean, **scores, **medians}
