"""Images whose patches belong together in sets, and the model that averages patches by their places alone.

Paper: Jelassi, Sander and Li 2022, section 2.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.nn.attention import attention_weights

SIDE = 2  # of a square


class LabelledPatches(NamedTuple):
    """Images and their classes."""

    patches: Float[Tensor, "batch patches dim"]
    """The images."""
    sign: Float[Tensor, " batch"]
    """The class of each, -1 or 1."""


class PatchSets:
    """Images with a structure: one set of patches shows the class, all others distract.

    Args:
        belongs: which patches are of one set; all sets are equally large.
        feature: what the patches of the class's set show, of the sign of the class.
        noise: standard deviation of a patch's values beside the feature.
        distraction: probability that a patch outside of the image's set shows the feature, of either sign.
        generator: draws the images.

    Paper: Jelassi, Sander and Li 2022, section 2. Departs from the paper: the numbers are ours. There, a
    patch's noise is about as long as the feature; here, it is longer.
    """

    def __init__(
        self,
        belongs: Bool[Tensor, "patches patches"],
        feature: Float[Tensor, " dim"],
        *,
        noise: float,
        distraction: float,
        generator: torch.Generator,
    ) -> None:
        self.belongs, self.feature, self.generator = belongs, feature, generator
        self.noise, self.distraction = noise, distraction

    def draw(self, num_images: int) -> LabelledPatches:
        """Return new images, half of them of each class on average."""
        num_patches, generator = len(self.belongs), self.generator
        sign = 2.0 * torch.randint(2, (num_images,), generator=generator) - 1
        member = torch.randint(num_patches, (num_images,), generator=generator)  # sets are equally large
        is_signal = self.belongs[member]
        chance = torch.rand(num_images, num_patches, generator=generator)
        distracting = (chance < self.distraction / 2).float() - (chance > 1 - self.distraction / 2).float()
        shown = torch.where(is_signal, sign[:, None], distracting)
        noise = torch.randn(num_images, num_patches, len(self.feature), generator=generator)
        noise = noise - (noise @ self.feature)[..., None] * self.feature
        return LabelledPatches(shown[..., None] * self.feature + self.noise * noise, sign)


class PositionalAverage(nn.Module):
    """Sum activations of averages of projected patches, whose weights come from positions or are given.

    Args:
        num_patches: of an image.
        dim: values of a patch.
        linear: factor of the linear part of the activation x^3 + linear x.
        given: the weights of the averages, or numbers proportional to them; None learns them from positions.
        generator: draws the first weights.

    Paper: Jelassi, Sander and Li 2022, section 2, the simplified ViT, with an activation of degree 3. Departs
    from the paper: Adam takes the place of gradient descent.
    """

    def __init__(
        self,
        num_patches: int,
        dim: int,
        *,
        linear: float,
        given: Tensor | None,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.linear = linear
        self.projection = nn.Parameter(torch.randn(dim, generator=generator) / dim)
        if given is None:
            drawn = 0.1 * torch.randn(1, 1, num_patches, num_patches, generator=generator)
            self.positions: nn.Parameter | None = nn.Parameter(drawn)
        else:
            self.positions = None
            self.register_buffer("given", given / given.sum(dim=1, keepdim=True))

    def weights(self) -> Float[Tensor, "patches patches"]:
        """Return the weights of the averages, the same for every image."""
        if self.positions is None:
            given: Tensor = self.given  # type: ignore[assignment]
            return given
        return attention_weights(self.positions, self.positions, scale=1.0)[0, 0]

    def forward(self, patches: Float[Tensor, "batch patches dim"]) -> Float[Tensor, " batch"]:
        x = (patches @ self.projection) @ self.weights().T  # b n
        return (x**3 + self.linear * x).sum(dim=1)


def squares_of(side: int) -> Bool[Tensor, "patches patches"]:
    """Tell which patches stand in the same square of 2 x 2."""
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    square = (rows // SIDE * side + columns // SIDE).flatten()
    return square[:, None] == square


def unit_vector(dim: int, generator: torch.Generator) -> Float[Tensor, " dim"]:
    """Return a random direction."""
    vector = torch.randn(dim, generator=generator)
    return vector / vector.norm()


@torch.no_grad()
def associated_share(weights: Tensor, belongs: Tensor) -> float:
    """Return the share of rows whose greatest weights are those of the set (patch association)."""
    best = torch.zeros_like(belongs).scatter(1, weights.topk(SIDE * SIDE, dim=1).indices, True)
    return float((best == belongs).all(dim=1).float().mean())
