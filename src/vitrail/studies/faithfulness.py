"""Faithfulness of a model's explanations: the perturbation test on a data set, with curves and table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from vitrail.core.errors import ConfigError, DataError, check_name
from vitrail.engines.loading import load_any
from vitrail.interpret.attribution import LONGEST_COVERED
from vitrail.interpret.grids import fit_grid, spread_patches
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
from vitrail.report.page import conclusions, section, table
from vitrail.report.plots import MORE_COLOURS
from vitrail.report.tiles import Inks
from vitrail.studies.panels import Panel, join_panels, write_panels
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
NOTE = (
    "The most probable class of each image is explained. Deletion covers the patches that a method ranks "
    "first: with a good map the probability falls fast. Insertion shows them first on a covered image: with "
    "a good map it rises fast."
)


def write_faithfulness(path: Path, found: Faithfulness, *, title: str) -> None:
    """Write a page with curves and table, or the curves alone as .png, .svg or .pdf.

    Raises: as ``write_panels``.
    """
    patches = " x ".join(map(str, found.grid))
    how = f"{found.num_images} images, {patches} patches, covered with {FILLED[found.filling]}."
    panels = [
        Panel(f"{kind} curves of the methods", kind, (x, "probability of the class"), draw)
        for kind, x, draw in (
            ("deletion", "patches covered, %", partial(_draw, found.deletion, found.shares)),
            ("insertion", "patches shown, %", partial(_draw, found.insertion, found.shares)),
        )
    ]
    header, rows = faithfulness_table(found)
    note = "Means over images with 95 % bootstrap intervals; the differences are paired by image."
    areas = table(header, rows, frozenset(range(1, len(header))))
    body = conclusions([_conclude(found)]) + section("Probability of the class", join_panels(panels), NOTE)
    body += section("Area under the curves", areas, note)
    write_panels(path, panels, title=title, subtitle=how, body=body)


def _conclude(found: Faithfulness) -> str:
    """Say which method ranks the patches best, and whether it beats a random order."""
    best = next(score for score in found.scores() if score.method != RANDOM)
    name, against = NAMES.get(best.method, best.method), best.deletion_against[RANDOM]
    score = f"deletion score {best.deletion.mean:.3f}"
    if against.upper >= 0:
        return f"No method ranks the patches better than a random order; {name} comes nearest, {score}."
    return f"{name} ranks the patches best: {score}, {-against.mean:.3f} below a random order.".capitalize()


def faithfulness_table(found: Faithfulness) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the table, the method with the lowest deletion score first."""
    references = [name for name in REFERENCES if name in found.deletion]
    rows = []
    for score in found.scores():
        against = (score.deletion_against.get(name) for name in references)
        differences = ("" if each is None else _text(each, sign="+") for each in against)
        name = NAMES.get(score.method, score.method)
        rows.append([name, _text(score.deletion), *differences, _text(score.insertion)])
    return ["method", "deletion", *(f"against {name}" for name in references), "insertion"], rows


def _text(interval: Interval, sign: str = "") -> str:
    return f"{interval.mean:{sign}.3f} ({interval.lower:{sign}.3f} to {interval.upper:{sign}.3f})"


def _draw(of_methods: Mapping[str, np.ndarray], shares: list[float], axes: Axes, inks: Inks) -> None:
    percent = 100 * np.asarray(shares)
    colours = iter(MORE_COLOURS)
    for name, curves in of_methods.items():
        colour, dashes = (inks.soft, "--") if name == RANDOM else (next(colours), "-")
        style: dict[str, Any] = {"color": colour, "linestyle": dashes, "linewidth": 1.6}
        axes.plot(percent, curves.mean(axis=0), label=NAMES.get(name, name), **style)
    axes.set_ylim(0, 1.02)
    axes.legend(frameon=False, labelcolor=inks.ink, fontsize=8)


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
    if methods is not None:
        for name in methods or [""]:
            check_name("method", name, METHODS)
    chosen = None if methods is None else tuple(dict.fromkeys(methods))
    check_name("filling", filling, FILLINGS)
    deletion: dict[str, list[Tensor]] = defaultdict(list)
    insertion: dict[str, list[Tensor]] = defaultdict(list)
    grid = (0, 0)
    for number, pixels in enumerate(images):
        explanation = predictor.explain_pixels(pixels, f"image {number}")
        source = explanation.attributions
        assert source is not None, "made beside its model"
        chosen = _usual_methods(explanation) if chosen is None else chosen
        patches = explanation.layers[0].query_grid if explanation.layers else None
        grid = fit_grid(patches or (pixels.shape[-2], pixels.shape[-1]), LONGEST_COVERED)
        maps = {name: [spread_patches(explanation.relevance(name), grid)] for name in chosen}
        generator = torch.Generator().manual_seed(number)
        maps[RANDOM] = [torch.rand(grid, generator=generator) for _ in range(NUM_RANDOM_ORDERS)]
        for name, of_method in maps.items():
            curves = [
                perturb(
                    *(source.model, source.image, source.label, relevance),
                    filling=cast("Filling", filling),
                    num_steps=num_steps,
                    seed=number,
                )
                for relevance in of_method
            ]
            deletion[name].append(torch.stack([each.deletion for each in curves]).mean(dim=0))
            insertion[name].append(torch.stack([each.insertion for each in curves]).mean(dim=0))
        if on_image is not None:
            on_image(number + 1)
    if not deletion:
        raise DataError("no image was given", expected="at least one", remedy="Name another split or folder")
    return Faithfulness(
        deletion={name: torch.stack(rows).double().numpy() for name, rows in deletion.items()},
        insertion={name: torch.stack(rows).double().numpy() for name, rows in insertion.items()},
        shares=curve_shares(grid[0] * grid[1], num_steps),
        grid=grid,
        filling=filling,
    )


def _usual_methods(explanation: Explanation) -> tuple[str, ...]:
    """Return the methods that suit a model and take at most a forward and a backward pass."""
    suits = {"relevance": explanation.suits_relevance, "rollout": explanation.has_rollout}
    suits |= {"attention": bool(explanation.maps), "gradient_input": True}
    return tuple(name for name, is_suited in suits.items() if is_suited)


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
        methods, filling, num_steps, on_image: as in ``measure_faithfulness``.
        merge_tokens: tokens to merge in each block of the model.

    Raises: as ``load_any``, ``open_scoring`` and ``measure_faithfulness``.
    """
    if num_images < 1:
        raise ConfigError(f"{num_images} images were to be drawn", expected="1 or more", remedy="Draw 64")
    loaded = load_any(run)
    predictor = Predictor(loaded, merge_tokens=merge_tokens)
    samples = open_scoring(run, loaded, source, split)[0].source
    drawn = np.random.default_rng(seed).permutation(len(samples))[:num_images]
    return measure_faithfulness(
        predictor,
        (samples.load(index, None).image for index in drawn.tolist()),
        methods=methods,
        filling=filling,
        num_steps=num_steps,
        on_image=on_image,
    )
