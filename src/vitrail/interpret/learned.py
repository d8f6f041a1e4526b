"""What training has written into a model's weights: filters and positions, as pure functions of tables."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

NUM_COMPONENTS = 28  # Dosovitskiy et al. 2021, figure 7, left
FLAT = 1e-7  # a component with less than this share of the first one's deviation is rounding


class PrincipalFilters(NamedTuple):
    """The directions in which the filters of a layer differ most, the most important first."""

    components: Float[Tensor, "components channels height width"]
    """Of length one each; the entry of greatest magnitude is positive, as the sign means nothing."""
    shares: Float[Tensor, " components"]
    """Share of the filters' variance along each."""


def principal_filters(
    filters: Float[Tensor, "filters channels height width"], num_components: int = NUM_COMPONENTS
) -> PrincipalFilters:
    """Find the first principal components of a layer's filters, centred at their mean; in float64.

    Paper: Dosovitskiy et al. 2021, section 4.5 and figure 7, left.

    Args:
        filters: what each channel of the result multiplies a patch by.
        num_components: how many are wanted; there are no more than the filters have.
    """
    values = filters.detach().double().flatten(1)
    values = values - values.mean(dim=0)
    _, deviations, directions = torch.linalg.svd(values, full_matrices=False)
    variances = deviations.square()
    found = int((deviations > FLAT * deviations[:1]).sum())
    kept = directions[: min(num_components, found)]
    largest = kept.gather(1, kept.abs().argmax(dim=1, keepdim=True))
    components = (kept * largest.sign()).unflatten(1, filters.shape[1:])
    total = variances.sum().clamp(min=torch.finfo(variances.dtype).tiny)
    return PrincipalFilters(components.float(), (variances[: len(kept)] / total).float())


def position_similarity(table: Float[Tensor, "positions dim"]) -> Float[Tensor, "positions positions"]:
    """Return the cosine between the embeddings of each two positions; in float32.

    Paper: Dosovitskiy et al. 2021, section 4.5 and figure 7, centre.

    Args:
        table: one embedding for each position, without those of prefix tokens.

    Example:
        >>> position_similarity(torch.tensor([[2.0, 0.0], [0.0, 3.0]])).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    normed = F.normalize(table.detach().float(), dim=-1)
    return normed @ normed.T
