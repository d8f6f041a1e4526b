"""Classes of images by those of their nearest neighbours among the features of a frozen model."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

NUM_NEIGHBOURS = 20  # Caron et al. 2021, section 4.1: works best for all of their models
TEMPERATURE = 0.07  # Wu et al. 2018, section 3.4, whom they follow
ROWS_AT_ONCE = 1024  # of the matrix of similarities, so that it fits into memory


def weighted_votes(
    bank: Float[Tensor, "known dim"],
    bank_labels: Int[Tensor, " known"],
    queries: Float[Tensor, "n dim"],
    *,
    num_classes: int,
    num_neighbours: int = NUM_NEIGHBOURS,
    temperature: float = TEMPERATURE,
) -> Float[Tensor, "n classes"]:
    """Let the nearest known images vote for their class, the nearer the heavier; the votes sum to one.

    A neighbour of cosine similarity s votes with ``exp(s / temperature)``.

    Paper: Wu et al. 2018, "Unsupervised feature learning via non-parametric instance discrimination",
    section 3.4; Caron et al. 2021, "Emerging properties in self-supervised vision transformers", section 4.1.

    Args:
        bank: features of images whose class is known.
        bank_labels: their classes.
        queries: features of images to classify.
        num_classes: number of classes.
        num_neighbours: how many vote; all where the bank has fewer.
        temperature: the smaller, the more the nearest counts.

    >>> bank = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> votes = weighted_votes(bank, torch.tensor([0, 1, 1]), torch.tensor([[0.0, 2.0]]), num_classes=2)
    >>> votes.argmax().item()
    1
    """
    known = F.normalize(bank.float(), dim=-1)
    num_neighbours = min(num_neighbours, len(known))
    votes = torch.zeros(len(queries), num_classes, device=known.device)
    for start in range(0, len(queries), ROWS_AT_ONCE):
        part = F.normalize(queries[start : start + ROWS_AT_ONCE].float(), dim=-1)
        similarity, places = (part @ known.T).topk(num_neighbours, dim=-1)
        # Less the largest, which no share of votes is changed by.
        weights = ((similarity - similarity[:, :1]) / temperature).exp()
        votes[start : start + len(part)].scatter_add_(1, bank_labels[places], weights)
    return votes / votes.sum(dim=-1, keepdim=True)
