"""Everything that is found in a trained model without an image to explain, ready to be drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor

from vitrail.interpret.heads import HeadGroup, LayerHeads
from vitrail.interpret.learned_parts import BiasTable


@dataclass(frozen=True)
class DrawnFilters:
    """Filters over pixels."""

    layer: str
    """Dotted name of the layer."""
    kernels: Float[Tensor, "filters channels height width"]
    """What is drawn: principal components, or filters as they are."""
    shares: Float[Tensor, " filters"] | None
    """Share of the variance of each component; None for filters as they are."""
    num_filters: int
    """How many the layer has."""


@dataclass(frozen=True)
class DrawnPositions:
    """How alike learned positions are."""

    layer: str
    """Dotted name of the table."""
    grid: tuple[int, int] | None
    """Rows and columns; None for a sequence."""
    similarity: Float[Tensor, "positions positions"]
    """Cosines."""


@dataclass(frozen=True, kw_only=True)
class HeadFindings:
    """What heads do on average over samples."""

    layers: tuple[LayerHeads, ...]
    """Each layer, in the order in which they run."""
    groups: tuple[HeadGroup, ...]
    """Similarities of the heads of layers that attend over the same tokens."""
    num_samples: int
    """How many samples were measured."""
    origin: str
    """What they are: "validation images of photos/"."""
    num_unreadable: int = 0
    """How many were drawn and could not be read."""
    not_measured: tuple[str, ...] = ()
    """Layers whose weights do not sum to one, so that they are no attention over one set of tokens."""
    image_size: tuple[int, int] | None = None
    """Height and width of the images; None where they differ, or there are none."""


@dataclass(frozen=True, kw_only=True)
class Learned:
    """Everything that is drawn of a model."""

    model: str
    """Its name."""
    filters: DrawnFilters | None
    """Of the layer that reads pixels."""
    positions: tuple[DrawnPositions, ...]
    """Of every table of learned positions."""
    biases: tuple[BiasTable, ...]
    """Of every layer with relative position biases over a grid."""
    heads: HeadFindings | None
    """Of all layers that attend."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """What is not drawn, with the reason."""
