"""Measure how faithful a classifier's explanations are, by covering and showing what they name first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from vitrail.core.errors import ConfigError, DataError, did_you_mean
from vitrail.interpret.covering import FILLINGS, Filling
from vitrail.interpret.faithfulness import RANDOM, Faithfulness
from vitrail.interpret.grids import spread_cells
from vitrail.interpret.perturbation import curve_shares, perturb
from vitrail.tasks.classification.attributions import LONGEST_COVERED, fit_grid
from vitrail.tasks.classification.explanation import METHODS, Explanation
from vitrail.tasks.classification.predictor import Predictor

NUM_RANDOM_ORDERS = 3  # averaged, so that the reference itself varies less


def measure_faithfulness(
    predictor: Predictor,
    images: Iterable[UInt8[Tensor, "3 height width"]],
    *,
    methods: Sequence[str] | None = None,
    filling: str = "blur",
    num_steps: int = 16,
    on_image: Callable[[int], None] | None = None,
) -> Faithfulness:
    """Run the perturbation test on prepared images, for the class that the model finds most probable in each.

    All methods rank the same cells: the model's patches, joined to at most 14 to a side.

    Args:
        predictor: the model, in torch.
        images: as ``Predictor.read`` returns them.
        methods: names as for ``Explanation.relevance``; None means those that suit the model and take no more
            than a pass forward and back. A random order is always measured beside them.
        filling: ``blur`` or ``mean``: what is seen where an image is covered.
        num_steps: steps of each curve, each of them a forward pass.
        on_image: called with the number of images done.

    Raises:
        ConfigError: a method or the filling is unknown, no method is named, or one does not suit the model.
        DataError: there is no image.
    """
    methods = None if methods is None else _check(methods)
    covered_with = _named_filling(filling)
    deletion: dict[str, list[Tensor]] = {}
    insertion: dict[str, list[Tensor]] = {}
    grid = (0, 0)
    for number, pixels in enumerate(images):
        explanation = predictor.explain_pixels(pixels, f"image {number}")
        source = explanation.attributions
        assert source is not None, "made beside its model"
        methods = usual_methods(explanation) if methods is None else methods
        grid = _cells(explanation, (pixels.shape[-2], pixels.shape[-1]))
        for name in (*methods, RANDOM):
            curves = [
                perturb(
                    *(source.model, source.image, source.label, relevance),
                    filling=covered_with,
                    num_steps=num_steps,
                    seed=number,
                )
                for relevance in _maps(explanation, name, grid, number)
            ]
            deletion.setdefault(name, []).append(_mean([each.deletion for each in curves]))
            insertion.setdefault(name, []).append(_mean([each.insertion for each in curves]))
        if on_image is not None:
            on_image(number + 1)
    if not deletion:
        raise DataError("no image was given", expected="at least one", remedy="Name another split or folder")
    return Faithfulness(
        deletion=_as_rows(deletion),
        insertion=_as_rows(insertion),
        shares=curve_shares(grid[0] * grid[1], num_steps),
        grid=grid,
        filling=filling,
    )


def _mean(curves: Sequence[Tensor]) -> Tensor:
    return torch.stack(tuple(curves)).mean(dim=0)


def usual_methods(explanation: Explanation) -> tuple[str, ...]:
    """Return the methods that suit a model and take no more than a pass forward and one back."""
    of_attention = (["relevance"] if explanation.suits_relevance else []) + (
        ["rollout"] if explanation.has_rollout else []
    )
    return (*of_attention, *(["attention"] if explanation.maps else []), "gradient_input")


def _check(methods: Sequence[str]) -> tuple[str, ...]:
    """Return methods that there are, each once."""
    if not methods:
        raise ConfigError(
            "no method was named",
            expected=" or ".join(METHODS),
            remedy="Name one or more, or leave them out for those that suit the model",
        )
    for name in methods:
        if name not in METHODS:
            raise ConfigError(
                f"there is no method {name!r}",
                expected=" or ".join(METHODS),
                remedy=did_you_mean(name, METHODS),
            )
    return tuple(dict.fromkeys(methods))


def _named_filling(name: str) -> Filling:
    for filling in FILLINGS:
        if filling == name:
            return filling
    raise ConfigError(
        f"there is no filling {name!r}", expected=" or ".join(FILLINGS), remedy="Choose one of these"
    )


def _cells(explanation: Explanation, size: tuple[int, int]) -> tuple[int, int]:
    """Return the cells that all methods rank: patches or pixels, joined to at most 14 to a side."""
    finest = size
    if explanation.maps and explanation.maps[0].query_grid is not None:
        finest = explanation.maps[0].query_grid
    return fit_grid(finest, LONGEST_COVERED)


def _maps(explanation: Explanation, name: str, grid: tuple[int, int], seed: int) -> list[Tensor]:
    if name != RANDOM:
        return [spread_cells(explanation.relevance(name), grid)]
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(grid, generator=generator) for _ in range(NUM_RANDOM_ORDERS)]


def _as_rows(of_methods: dict[str, list[Tensor]]) -> dict[str, np.ndarray]:
    return {name: torch.stack(rows).double().numpy() for name, rows in of_methods.items()}
