"""Faithfulness of a model's explanations: the perturbation test on a data set, with curves and table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from vitrail.core.durable import atomic_write
from vitrail.core.errors import ConfigError, DataError, did_you_mean
from vitrail.data.stream import SampleSource
from vitrail.engines.loading import load_any
from vitrail.interpret.attribution import LONGEST_COVERED, fit_grid
from vitrail.interpret.grids import spread_cells
from vitrail.interpret.perturbation import (
    FILLINGS,
    RANDOM,
    REFERENCES,
    Faithfulness,
    Filling,
    Interval,
    curve_shares,
    perturb,
)
from vitrail.interpret.viewer.explanation import METHODS, Explanation
from vitrail.report.page import section, table, write_page
from vitrail.report.pictures import MORE_COLOURS, check_picture_path, frame, to_png, white_figure
from vitrail.report.plots import INK, SOFT, inline_svg, new_figure
from vitrail.tasks.classification.predictor import Predictor
from vitrail.tasks.evaluating import open_scoring

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMES = {
    "relevance": "class relevance",
    "gradient_input": "gradient x input",
    "integrated_gradients": "integrated gradients",
    RANDOM: "random order",
}
FILLED = {"blur": "the blurred image", "mean": "the mean colour of the data"}
STYLE = ".pair{display:flex;flex-wrap:wrap;gap:18px}.pair svg{max-width:100%;height:auto}"
NOTE = (
    "The most probable class of each image is explained. Deletion covers the patches that a method ranks "
    "first: with a good map the probability falls fast. Insertion shows them first on a covered image: with "
    "a good map it rises fast."
)


def write_faithfulness(path: Path, found: Faithfulness, *, title: str) -> None:
    """Write a page with curves and table, or the curves alone if the name ends in .png.

    Raises:
        ConfigError: the name ends otherwise.
        CheckpointError: the disk is full or not writable; a former file is as it was.
    """
    check_picture_path(path)
    if path.suffix.lower() == ".png":
        atomic_write(path, _png(found, title=title))
        return
    rows, columns = found.grid
    how = f"{found.num_images} images, {rows} x {columns} patches, covered with {FILLED[found.filling]}."
    curves = f'<div class="pair">{_curves(found, "deletion")}{_curves(found, "insertion")}</div>'
    names = header(found)
    body = (
        f'<h1>{escape(title)}</h1><p class="soft">{escape(how)}</p>'
        + section("Probability of the class", curves, NOTE)
        + section(
            "Area under the curves",
            table(names, table_rows(found), frozenset(range(1, len(names)))),
            "Means over images with 95 % bootstrap intervals; the differences are paired by image.",
        )
    )
    write_page(path, title=title, body=body, style=STYLE)


def _png(found: Faithfulness, *, title: str) -> bytes:
    figure = white_figure(9.2, 3.6, title)
    for axes, kind in zip(figure.subplots(1, 2), ("deletion", "insertion"), strict=True):
        _draw(axes, found, kind, soft="#777777")
        frame(axes, _x_label(kind), "probability of the class")
        axes.legend(frameon=False, fontsize=8)
    return to_png(figure)


def header(found: Faithfulness) -> list[str]:
    """Return the column names."""
    references = [name for name in REFERENCES if name in found.deletion]
    return ["method", "deletion", *(f"against {name}" for name in references), "insertion"]


def table_rows(found: Faithfulness) -> list[list[str]]:
    """Return the rows, the method with the lowest deletion score first."""
    references = [name for name in REFERENCES if name in found.deletion]
    return [
        [
            NAMES.get(score.method, score.method),
            _text(score.deletion),
            *(
                _text(score.deletion_against[name], sign="+") if name in score.deletion_against else ""
                for name in references
            ),
            _text(score.insertion),
        ]
        for score in found.scores()
    ]


def _text(interval: Interval, sign: str = "") -> str:
    return " ".join(
        (f"{interval.mean:{sign}.3f}", f"({interval.lower:{sign}.3f} to {interval.upper:{sign}.3f})")
    )


def _curves(found: Faithfulness, kind: str) -> str:
    figure, axes = new_figure(_x_label(kind), "probability of the class", size=(4.6, 3.3))
    _draw(axes, found, kind, soft=SOFT)
    axes.legend(frameon=False, labelcolor=INK, fontsize=8)
    return inline_svg(figure, f"{kind} curves of the methods")


def _draw(axes: Axes, found: Faithfulness, kind: str, *, soft: str) -> None:
    of_methods = found.deletion if kind == "deletion" else found.insertion
    percent = 100 * np.asarray(found.shares)
    colours = iter(MORE_COLOURS)
    for name, curves in of_methods.items():
        is_random = name == RANDOM
        axes.plot(
            percent,
            curves.mean(axis=0),
            color=soft if is_random else next(colours),
            linestyle="--" if is_random else "-",
            linewidth=1.6,
            label=NAMES.get(name, name),
        )
    axes.set_ylim(0, 1.02)


def _x_label(kind: str) -> str:
    return "patches covered, %" if kind == "deletion" else "patches shown, %"


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
    """Run the perturbation test on prepared images, for the top predicted class of each.

    All methods rank the same regions: the model's patches, joined to at most 14 per side.

    Args:
        predictor: runs in torch.
        images: as ``Predictor.read`` returns them.
        methods: names as for ``Explanation.relevance`` (default: those that suit the model and take at most a
            forward and a backward pass). A random order is always measured beside them.
        filling: ``blur`` or ``mean``: what covers an image.
        num_steps: steps of each curve, one forward pass each.
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
        grid = _common_grid(explanation, (pixels.shape[-2], pixels.shape[-1]))
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
    """Return the methods that suit a model and take at most a forward and a backward pass."""
    of_attention = (["relevance"] if explanation.suits_relevance else []) + (
        ["rollout"] if explanation.has_rollout else []
    )
    return (*of_attention, *(["attention"] if explanation.maps else []), "gradient_input")


def _check(methods: Sequence[str]) -> tuple[str, ...]:
    """Return the methods without duplicates; raise if one is unknown."""
    unknown = next((name for name in methods if name not in METHODS), None)
    if not methods or unknown is not None:
        raise ConfigError(
            f"there is no method {unknown!r}" if methods else "no method was named",
            expected=" or ".join(METHODS),
            remedy=did_you_mean(unknown, METHODS)
            if unknown
            else "Leave them out for those that suit the model",
        )
    return tuple(dict.fromkeys(methods))


def _named_filling(name: str) -> Filling:
    for filling in FILLINGS:
        if filling == name:
            return filling
    raise ConfigError(
        f"there is no filling {name!r}", expected=" or ".join(FILLINGS), remedy="Choose one of these"
    )


def _common_grid(explanation: Explanation, size: tuple[int, int]) -> tuple[int, int]:
    """Return the grid that all methods rank: patches or pixels, joined to at most 14 per side."""
    finest = size
    if explanation.layers and explanation.layers[0].query_grid is not None:
        finest = explanation.layers[0].query_grid
    return fit_grid(finest, LONGEST_COVERED)


def _maps(explanation: Explanation, name: str, grid: tuple[int, int], seed: int) -> list[Tensor]:
    if name != RANDOM:
        return [spread_cells(explanation.relevance(name), grid)]
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(grid, generator=generator) for _ in range(NUM_RANDOM_ORDERS)]


def _as_rows(of_methods: dict[str, list[Tensor]]) -> dict[str, np.ndarray]:
    return {name: torch.stack(rows).double().numpy() for name, rows in of_methods.items()}


def faithfulness(
    run: str | Path,
    source: str | Path,
    *,
    split: str = "test",
    num_images: int = 64,
    methods: Sequence[str] | None = None,
    filling: str = "blur",
    num_steps: int = 16,
    merge_tokens: int = 0,
    seed: int = 0,
    on_image: Callable[[int], None] | None = None,
) -> Faithfulness:
    """Run the perturbation test on images sampled from a split of a data set.

    Args:
        run: a run directory or the folder of a saved model.
        source: any images that ``vitrail.train`` takes, with the same classes.
        num_images: size of the sample, at most the split.
        methods: names as for ``Explanation.relevance`` (default: those that suit the model and take at most a
            forward and a backward pass).
        filling: ``blur`` or ``mean``: what covers an image.
        num_steps: steps of each curve.
        merge_tokens: tokens to merge in each block of the model.
        on_image: called with the number of images done.

    Raises:
        CheckpointError: there is no usable model, or none of images.
        ConfigError: there is no such split or method, or a method does not suit the model.
        DataError: the data cannot be used.
    """
    if num_images < 1:
        raise ConfigError(f"{num_images} images were to be drawn", expected="1 or more", remedy="Draw 64")
    loaded = load_any(run)
    predictor = Predictor(loaded, merge_tokens=merge_tokens)
    samples = open_scoring(run, loaded, source, split).source
    drawn = np.random.default_rng(seed).permutation(len(samples))[:num_images]
    return measure_faithfulness(
        predictor,
        _pixels(samples, drawn.tolist()),
        methods=methods,
        filling=filling,
        num_steps=num_steps,
        on_image=on_image,
    )


def _pixels(samples: SampleSource, indices: Sequence[int]) -> Iterator[UInt8[Tensor, "3 height width"]]:
    return (samples.load(index, None).image for index in indices)
