"""The perturbation test of explanations: what covering or showing the most relevant cells first does.

A map that names the cells a model decides by makes the class's probability fall fast where they are covered
first (deletion), and rise fast where they are shown first (insertion).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from vitrail.interpret.covering import Filling, cover, fill_images

BATCH = 32  # images of one forward pass
NUM_RESAMPLES = 2000
CONFIDENCE = 0.95


class Curves(NamedTuple):
    """The probability of a class after each share of its cells, in one image."""

    deletion: Float[Tensor, " steps"]
    """With the most relevant cells covered: the lower, the better the map."""
    insertion: Float[Tensor, " steps"]
    """With the most relevant cells alone shown: the higher, the better."""


class Interval(NamedTuple):
    """A mean over images, and the interval that holds it in 95 of 100 resamplings of the images."""

    mean: float
    lower: float
    upper: float


def curve_shares(num_cells: int, num_steps: int) -> list[float]:
    """Return the shares of cells at which curves are measured, from 0 to 1, no two of the same cells."""
    counts = sorted({round(step * num_cells / num_steps) for step in range(num_steps + 1)})
    return [count / num_cells for count in counts]


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
    """Cover, and in a second series show, ever more cells of an image, the most relevant first.

    Paper: Petsiuk et al. 2018 (RISE), section 4.1; for transformers: Chefer et al. 2021, section 5.

    Args:
        model: an image classifier in evaluation mode.
        image: normalised, on the model's device.
        label: the class whose probability is measured.
        relevance: of each cell; cells of equal relevance come in an order drawn from the seed.
        filling: what is seen where the image is covered.
        num_steps: steps of a series.
        seed: of the order of equal cells.
    """
    order = _descending(relevance.flatten(), seed)
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


def area_under(curve: Float64[np.ndarray, "*images steps"], shares: list[float]) -> np.ndarray:
    """Return the area under each curve over the share of cells, 0..1, by the trapezoidal rule."""
    return np.trapezoid(curve, shares, axis=-1)


def mean_interval(values: Float64[np.ndarray, " images"], *, seed: int = 0) -> Interval:
    """Return the mean over images with its bootstrap interval; of differences, where pairs were subtracted.

    Paper: Efron and Tibshirani 1993, chapter 13 (percentile interval).
    """
    drawn = np.random.default_rng(seed).integers(len(values), size=(NUM_RESAMPLES, len(values)))
    tail = (1 - CONFIDENCE) / 2
    lower, upper = np.quantile(values[drawn].mean(axis=1), [tail, 1 - tail])
    return Interval(float(values.mean()), float(lower), float(upper))


def compare_areas(
    areas: Mapping[str, Float64[np.ndarray, " images"]], reference: str, *, seed: int = 0
) -> dict[str, Interval]:
    """Return, of each other method, the mean difference of its areas to those of the reference, paired."""
    return {
        name: mean_interval(values - areas[reference], seed=seed)
        for name, values in areas.items()
        if name != reference
    }


def _descending(values: Tensor, seed: int) -> Tensor:
    """Return the places of values from the greatest to the smallest; equal ones in a drawn order."""
    drawn = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))
    values = values.detach().float().cpu()
    return drawn[values[drawn].argsort(descending=True, stable=True)]
