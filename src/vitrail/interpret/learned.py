"""Analysis of learned filters, positions and relative position biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.convolution import KERNEL_EPS, NormedConvolution, StandardisedConvolution
from vitrail.nn.feature_pyramid import LayerNormedConvolution
from vitrail.nn.patches import PatchEmbed
from vitrail.nn.pooling_attention import DecomposedRelativePositions
from vitrail.nn.positions import LearnedGridPositions
from vitrail.nn.relative import ContinuousRelativeBias, GridRelativeBias, PairwiseBias, relative_index
from vitrail.nn.rotary import GridRotary, SequenceRotary
from vitrail.nn.sequence_positions import LearnedPositions, SequenceRelativeBias
from vitrail.nn.sinusoidal import SinusoidalGridPositions, SinusoidalPositions

NUM_COMPONENTS = 28  # Dosovitskiy et al. 2021, figure 7, left
FLAT = 1e-7  # a component with a smaller fraction of the first one's deviation is rounding noise


class PrincipalFilters(NamedTuple):
    """The principal components of a layer's filters, most important first."""

    components: Float[Tensor, "components channels height width"]
    """Normalised; the entry of largest magnitude is positive, as signs are arbitrary."""
    shares: Float[Tensor, " components"]
    """Explained variance of each component."""


def principal_filters(
    filters: Float[Tensor, "filters channels height width"], num_components: int = NUM_COMPONENTS
) -> PrincipalFilters:
    """Return the first principal components of a layer's centred filters, in float64.

    Paper: Dosovitskiy et al. 2021, section 4.5 and figure 7, left.
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
    """Return the cosine similarities of all position embeddings, in float32.

    Paper: Dosovitskiy et al. 2021, section 4.5 and figure 7, centre.

    Args:
        table: without prefix tokens.

    Example:
        >>> position_similarity(torch.tensor([[2.0, 0.0], [0.0, 3.0]])).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    normed = F.normalize(table.detach().float(), dim=-1)
    return normed @ normed.T


class Filters(NamedTuple):
    """The weights of the first layer over pixels."""

    layer: str
    weights: Float[Tensor, "filters channels height width"]
    """For normalised pixels."""
    is_patch_embedding: bool
    """Whether they embed non-overlapping patches; otherwise they are a convolution."""
    are_summed: bool = False
    """Whether the channels are added up, as of a model that saw grey images."""


class PositionTable(NamedTuple):
    """Learned positions of one part of a model."""

    layer: str
    table: Float[Tensor, "positions dim"]
    """Without prefix tokens."""
    grid: tuple[int, int] | None
    """Rows and columns, row by row in the table; None for a sequence."""


class BiasTable(NamedTuple):
    """Relative position biases of each head of one layer."""

    layer: str
    biases: Float[Tensor, "heads rows columns"]
    """By the query's row and column minus the key's, from the most negative on; zero is in the middle."""


OTHER_POSITIONS: dict[tuple[type[nn.Module], ...], str] = {
    (SinusoidalGridPositions, SinusoidalPositions): "sines and cosines, which are computed and not learned",
    (GridRotary, SequenceRotary): "rotations, which are computed and not learned",
    (GridRelativeBias, ContinuousRelativeBias): "relative: biases of the scores",
    (PairwiseBias,): "biases of the scores, one for each pair of tokens",
    (DecomposedRelativePositions,): "relative and depend on the query",
    (SequenceRelativeBias,): "biases of the scores, one for each range of distances",
}


def find_filters(model: nn.Module, *, num_channels: int = 3) -> Filters | None:
    """Return the first filters over pixels, None if no layer reads an image of so many channels."""
    for name, module in model.named_modules():
        weights = _filters_of(module)
        if weights is not None and weights.shape[1] == num_channels:
            if isinstance(module, nn.Conv2d):
                reads_patches = module.kernel_size == module.stride != (1, 1)
            else:
                reads_patches = isinstance(module, PatchEmbed) and module.patch_size > 1
            return Filters(name, weights.detach().float(), reads_patches)
    return None


def saw_grey(preprocessing: Mapping[str, Any]) -> bool:
    """Return whether a model was trained on grey images, by the statistics of its training images.

    Pixels in 0..1 deviate by less than 0.5: larger deviations are conventions of published models.
    """
    images = preprocessing.get("images", preprocessing)
    mean, std = images.get("mean", ()), images.get("std", ())
    return len(set(mean)) == len(set(std)) == 1 and max(std) < 0.5


def find_positions(model: nn.Module) -> list[PositionTable]:
    """Return every table of learned positions, in model order."""
    tables = []
    for name, module in model.named_modules():
        if isinstance(module, LearnedGridPositions):
            tables.append(PositionTable(name, module.table.detach()[module.num_prefix :], module.grid))
        elif isinstance(module, LearnedPositions):
            tables.append(PositionTable(name, module.table.detach(), None))
    return tables


@torch.no_grad()
def find_biases(model: nn.Module) -> list[BiasTable]:
    """Return the relative position biases over a grid of every layer, in model order."""
    tables = []
    for name, module in model.named_modules():
        if isinstance(module, GridRelativeBias | ContinuousRelativeBias):
            of_pairs = module(module.grid)[0, :, module.num_prefix :, module.num_prefix :]
            rows, columns = (2 * length - 1 for length in module.grid)
            biases = of_pairs.new_zeros(len(of_pairs), rows * columns)
            biases[:, relative_index(module.grid).flatten()] = of_pairs.flatten(1)
            tables.append(BiasTable(name, biases.unflatten(1, (rows, columns)).float()))
    return tables


def why_no_positions(model: nn.Module) -> str:
    """Describe how a model without learned positions encodes position, as far as its layers show."""
    for classes, what in OTHER_POSITIONS.items():
        if any(isinstance(module, classes) for module in model.modules()):
            return f"its positions are {what}"
    policy = str(getattr(getattr(model, "config", None), "position_policy", ""))
    return f"it has no table of positions ({policy})" if policy else "it has no table of positions"


def _filters_of(module: nn.Module) -> Tensor | None:
    """Return a layer's kernel as filters, channels, rows, columns; None for other layers."""
    if isinstance(module, PatchEmbed | nn.Conv2d):
        return module.weight
    if isinstance(module, NormedConvolution | LayerNormedConvolution):
        return module.weight.permute(0, 3, 1, 2)
    if isinstance(module, StandardisedConvolution):
        weights = F.layer_norm(module.weight, module.weight.shape[1:], eps=KERNEL_EPS)
        return weights.permute(0, 3, 1, 2)
    return None
