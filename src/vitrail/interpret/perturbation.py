"""The perturbation test of explanations: covering or revealing the most relevant patches first.

A faithful map makes the class probability fall fast when its patches are covered first (deletion), and rise
fast when they are revealed first (insertion).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn

from vitrail.report.significance import resampled_interval

Filling = Literal["blur", "mean"]
FILLINGS: tuple[Filling, ...] = get_args(Filling)
BLUR_SHARE = 1 / 8  # of the longer side: standard deviation of the blur, which keeps colours but no shapes


def patch_of_pixels(size: tuple[int, int], grid: tuple[int, int]) -> Int[Tensor, "{size[0]} {size[1]}"]:
    """Return the patch index of each pixel, row by row; patch sides differ by at most one pixel.

    Example:
        >>> patch_of_pixels((2, 3), (1, 2)).tolist()
        [[0, 0, 1], [0, 0, 1]]
    """
    row, column = (torch.arange(side) * count // side for side, count in zip(size, grid, strict=True))
    return row[:, None] * grid[1] + column


def cover(
    images: Float[Tensor, "batch channels height width"],
    fillings: Float[Tensor, "#batch channels height width"],
    is_covered: Bool[Tensor, "batch rows columns"],
) -> Float[Tensor, "batch channels height width"]:
    """Replace some patches of images by their fillings.

    Args:
        fillings: of the same size, one per image or one for all.
        is_covered: True where a patch is replaced.
    """
    patches = patch_of_pixels(images.shape[-2:], is_covered.shape[-2:]).to(images.device)  # type: ignore[arg-type]
    return torch.where(is_covered.flatten(1)[:, patches][:, None], fillings, images)


def fill_images(
    images: Float[Tensor, "batch channels height width"], filling: Filling
) -> Float[Tensor, "batch channels height width"]:
    """Return what covers an image.

    Args:
        images: normalised, so that zero is the data's mean colour.
        filling: ``mean``, the data's mean colour; or ``blur``, the blurred image, which is closer to the
            training distribution.

    Paper: Petsiuk et al. 2018 (RISE), section 4.1, has both.
    """
    if filling == "mean":
        return torch.zeros_like(images)
    rows, columns = (_blur_weights(side, max(images.shape[-2:])).to(images) for side in images.shape[-2:])
    return rows @ images @ columns.T


def _blur_weights(side: int, longer_side: int) -> Float[Tensor, "{side} {side}"]:
    """Return Gaussian weights that ignore what lies outside the image."""
    pixels = torch.arange(side, dtype=torch.float64)
    variance = math.pow(longer_side * BLUR_SHARE, 2)
    weights = torch.exp(-((pixels[:, None] - pixels) ** 2) / (2 * variance))
    return weights / weights.sum(dim=1, keepdim=True)


BATCH = 32  # images per forward pass
NUM_RESAMPLES = 2000


class Curves(NamedTuple):
    """The class probability in one image after each fraction of its patches."""

    deletion: Float[Tensor, " steps"]
    """With the most relevant patches covered: lower is better."""
    insertion: Float[Tensor, " steps"]
    """With only the most relevant patches shown: higher is better."""


class Interval(NamedTuple):
    """A mean over images with its 95 % bootstrap interval."""

    mean: float
    lower: float
    upper: float


def curve_shares(num_patches: int, num_steps: int) -> list[float]:
    """Return the fractions of patches at which curves are measured, from 0 to 1, without duplicates."""
    counts = sorted({round(step * num_patches / num_steps) for step in range(num_steps + 1)})
    return [count / num_patches for count in counts]


def perturb(
    model: nn.Module,
    image: Float[Tensor, "1 channels height width"],
    label: int,
    relevance: Float[Tensor, "rows columns"],
    *,
    filling: Filling = "blur",
    num_steps: int = 16,
    seed: int = 0,
) -> Curves:
    """Cover, and in a second series reveal, the patches of an image, most relevant first.

    Paper: Petsiuk et al. 2018 (RISE), section 4.1; for transformers: Chefer et al. 2021, section 5.

    Args:
        image: normalised, on the model's device.
        relevance: of each patch; ties are in random order.
        seed: of the order of ties.
    """
    drawn = torch.randperm(relevance.numel(), generator=torch.Generator().manual_seed(seed))
    values = relevance.detach().flatten().float().cpu()
    order = drawn[values[drawn].argsort(descending=True, stable=True)]
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    counts = torch.tensor([round(share * len(order)) for share in curve_shares(len(order), num_steps)])
    is_first = (rank < counts[:, None]).unflatten(1, relevance.shape)  # steps rows columns
    is_covered = torch.cat((is_first, ~is_first)).to(image.device)
    filled = fill_images(image, filling)
    probabilities = []
    with torch.inference_mode():
        for part in is_covered.split(BATCH):
            images = cover(image.expand(len(part), -1, -1, -1), filled, part)
            probabilities.append(model(images).float().softmax(dim=-1)[:, label].cpu())
    deletion, insertion = torch.cat(probabilities).unflatten(0, (2, -1)).unbind()
    return Curves(deletion, insertion)


def mean_interval(values: Float64[np.ndarray, " images"]) -> Interval:
    """Return the mean over images with its bootstrap interval; of differences, paired."""
    drawn = np.random.default_rng(0).integers(len(values), size=(NUM_RESAMPLES, len(values)))
    return Interval(float(values.mean()), *resampled_interval(values[drawn].mean(axis=1)))


RANDOM = "random"
"""The baseline of random order."""
REFERENCES = (RANDOM, "attention")
"""Baselines that other methods are compared with, if measured."""


class MethodScore(NamedTuple):
    """The areas under the curves of one method."""

    method: str
    deletion: Interval
    """Lower is better."""
    insertion: Interval
    """Higher is better."""
    deletion_against: dict[str, Interval]
    """Mean paired difference of deletion to each reference; negative is better."""
    insertion_against: dict[str, Interval]
    """Likewise of insertion; positive is better."""


@dataclass(frozen=True, kw_only=True)
class Faithfulness:
    """The curves of each method, one row per image."""

    deletion: dict[str, Float64[np.ndarray, "images steps"]]
    """Class probability as patches are covered."""
    insertion: dict[str, Float64[np.ndarray, "images steps"]]
    """Class probability as patches are revealed."""
    shares: list[float]
    """Fraction of the patches at each step, from 0 to 1."""
    grid: tuple[int, int]
    """Rows and columns of the patches."""
    filling: str
    """What covers an image."""

    @property
    def num_images(self) -> int:
        return len(next(iter(self.deletion.values())))

    def scores(self) -> list[MethodScore]:
        """Return the areas of all methods, lowest deletion first."""
        deletion, insertion = self._compare(self.deletion), self._compare(self.insertion)
        scores = []
        for name, (area, against) in deletion.items():
            scores.append(MethodScore(name, area, insertion[name][0], against, insertion[name][1]))
        return sorted(scores, key=lambda score: score.deletion.mean)

    def _compare(
        self, of_methods: Mapping[str, np.ndarray]
    ) -> dict[str, tuple[Interval, dict[str, Interval]]]:
        """Return each method's area under its curve, and its paired differences to the references."""
        areas = {name: np.trapezoid(curves, self.shares, axis=-1) for name, curves in of_methods.items()}
        references = [name for name in REFERENCES if name in areas]
        return {
            name: (
                mean_interval(area),
                {other: mean_interval(area - areas[other]) for other in references if other != name},
            )
            for name, area in areas.items()
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "images": self.num_images,
            "patches": list(self.grid),
            "filling": self.filling,
            "shares": self.shares,
            "methods": {
                score.method: {
                    "deletion": score.deletion._asdict(),
                    "insertion": score.insertion._asdict(),
                    "deletion_against": {k: v._asdict() for k, v in score.deletion_against.items()},
                    "insertion_against": {k: v._asdict() for k, v in score.insertion_against.items()},
                    "deletion_curve": self.deletion[score.method].mean(axis=0).tolist(),
                    "insertion_curve": self.insertion[score.method].mean(axis=0).tolist(),
                }
                for score in self.scores()
            },
        }
