"""Accuracy against speed of token merging (Bolya et al. 2023), of a trained ViT on the data it suits.

Every model is scored on the whole split; then all take turns batch by batch in one process, and the ratio of
rates is taken round by round to the model without merging. The numbers at the points are tokens merged in
each block.

    vitrail train imagenette-224 --model vit_ti16 --name vit --budget 2h
    python benchmarks/token_merging.py runs/vit imagenette-224 --counts 0 2 4 8 12 16 -o token_merging.png
    python benchmarks/token_merging.py runs/vit imagenette-224 --schedules constant decreasing

Without a run, the speed alone of models with random weights, in turns:

    python benchmarks/token_merging.py --models vit_ti16 vit_s16 vit_b16 --counts 4 8 13 16 --batch 8
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from vitrail.core.errors import ConfigError
from vitrail.data.preprocessing import Preprocessing
from vitrail.engines.cpu import accelerate
from vitrail.engines.loading import load_any
from vitrail.models import build
from vitrail.models.merged import merge_tokens
from vitrail.report.plots import COLOURS, frame, to_picture, white_figure
from vitrail.tasks.evaluating import open_scoring
from vitrail.train.evaluate import evaluate as score
from vitrail.train.machine import inspect_machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("data", nargs="?")
    parser.add_argument("--models", nargs="+", help="names of models, in the place of a run and its data")
    parser.add_argument("--counts", nargs="+", type=int, default=[0, 2, 4, 8, 12, 16])
    parser.add_argument("--schedules", nargs="+", default=["constant"], choices=["constant", "decreasing"])
    parser.add_argument("--split", default="test")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", "-o", type=Path, default=Path("token_merging.png"))
    parser.add_argument("--json", type=Path, help="write the points here, too")
    arguments = parser.parse_args()
    if arguments.models:
        for name in arguments.models:
            time_model(name, arguments)
        return
    if arguments.data is None:
        parser.error("name a run and its data, or --models")

    points = token_merging_curve(
        arguments.run,
        arguments.data,
        counts=arguments.counts,
        schedules=arguments.schedules,
        split=arguments.split,
        batch_size=arguments.batch,
        rounds=arguments.rounds,
        on_point=lambda what: print(what, flush=True),
    )
    print(f"{'merged':>6}  {'schedule':10}  {'accuracy':>8}  {'images/s':>9}  speed (least to greatest)")
    for point in points:
        low, high = point.speed_range
        print(
            f"{point.num_merged:6}  {point.schedule:10}  {point.accuracy:8.2%}  {point.images_per_s:9.1f}  "
            f"{point.speed:.2f} ({low:.2f} to {high:.2f})"
        )
    plain = points[0]
    curves = {
        schedule: [
            (point.speed, point.accuracy, point.num_merged)
            for point in (plain, *points[1:])
            if point is plain or point.schedule == schedule
        ]
        for schedule in arguments.schedules
    }
    arguments.output.write_bytes(merging_png(curves, title=f"Token merging: {arguments.run.name}"))
    print(arguments.output)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([point._asdict() for point in points], indent=2) + "\n")


class MergingPoint(NamedTuple):
    """One model of the curve."""

    num_merged: int
    """Tokens merged in each block, on average."""
    schedule: str
    """``constant`` or ``decreasing``."""
    accuracy: float
    images_per_s: float
    """Median over the rounds."""
    speed: float
    """Speed-up over the model without merging: median over the rounds of the ratio within a round."""
    speed_range: tuple[float, float]
    """Minimum and maximum over the rounds."""


def token_merging_curve(
    run: str | Path,
    source: str | Path,
    *,
    counts: Sequence[int] = (0, 2, 4, 8, 12, 16),
    schedules: Sequence[str] = ("constant",),
    split: str = "test",
    batch_size: int = 32,
    rounds: int = 7,
    on_point: Callable[[str], None] | None = None,
) -> list[MergingPoint]:
    """Score and time a ViT with more and more merging on a data set.

    Args:
        run: a run directory or the folder of a saved model.
        source: any images that ``vitrail.train`` takes, with the same classes.
        counts: tokens merged in each block; the model without merging is always measured.
        schedules: ``constant``, ``decreasing`` or both.
        rounds: interleaved timing rounds.
        on_point: called with the next stage.

    Raises:
        CheckpointError: there is no usable model.
        ConfigError: the model cannot merge tokens; or there is no such split or schedule.
        DataError: the data cannot be used.
    """
    if rounds < 1:
        raise ConfigError(f"{rounds} rounds were to be timed", expected="1 or more", remedy="Choose 7")
    loaded, machine = load_any(run), inspect_machine()
    (scoring,) = open_scoring(run, loaded, source, split)
    model = loaded.model.to(machine.device)
    variants: dict[tuple[int, str], nn.Module] = {(0, "constant"): merge_tokens(model, 0)}
    for schedule in schedules:
        for count in counts:
            if count:
                variants[count, schedule] = merge_tokens(model, count, schedule=schedule)
    accuracies = {}
    for (count, schedule), variant in variants.items():
        if on_point is not None:
            on_point(f"score {count} {schedule}")
        report = score(
            scoring.objective,
            variant,
            scoring.source,
            batch_size=batch_size,
            class_names=tuple(loaded.class_names),
            signature=scoring.signature,
        )
        accuracies[count, schedule] = report.scores["accuracy"]
    if on_point is not None:
        on_point("time all in turns")
    rates = _time_in_turns(variants, _images(loaded.preprocessing, batch_size, machine.device), rounds)
    return [_point(key, accuracies[key], rates) for key in variants]


def _images(preprocessing: dict[str, object], batch_size: int, device: torch.device | str) -> torch.Tensor:
    height, width = Preprocessing.from_tree(preprocessing).image_size
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch_size, 3, height, width, generator=generator).to(device)


def _time_in_turns(
    variants: dict[tuple[int, str], nn.Module], images: torch.Tensor, rounds: int
) -> dict[tuple[int, str], list[float]]:
    """Return the images/s of each model in each round, after a warm-up."""
    rates: dict[tuple[int, str], list[float]] = {key: [] for key in variants}
    with torch.inference_mode():
        for number in range(rounds + 1):
            for key, model in variants.items():
                started = time.perf_counter()
                model(images).sum().item()  # reading a number waits for the device
                if number:
                    rates[key].append(len(images) / (time.perf_counter() - started))
    return rates


def _point(key: tuple[int, str], accuracy: float, rates: dict[tuple[int, str], list[float]]) -> MergingPoint:
    ratios = [own / plain for own, plain in zip(rates[key], rates[0, "constant"], strict=True)]
    return MergingPoint(
        *key,
        accuracy,
        statistics.median(rates[key]),
        statistics.median(ratios),
        (min(ratios), max(ratios)),
    )


def merging_png(curves: Mapping[str, Sequence[tuple[float, float, int]]], *, title: str) -> bytes:
    """Plot accuracy against speed, one curve per schedule, each point labelled with its merged tokens.

    Args:
        curves: points of each schedule: speed-up, accuracy from 0 to 1, and tokens merged in each block.
    """
    figure = white_figure(5.6, 3.8, title)
    axes = figure.add_subplot()
    for colour, (schedule, points) in zip(COLOURS, curves.items(), strict=False):
        speeds, accuracies = [point[0] for point in points], [100 * point[1] for point in points]
        axes.plot(speeds, accuracies, color=colour, marker="o", markersize=4, linewidth=1.6, label=schedule)
        for speed, accuracy, (_, _, count) in zip(speeds, accuracies, points, strict=True):
            axes.annotate(
                str(count), (speed, accuracy), (4, 4), textcoords="offset points", fontsize=8, color=colour
            )
    frame(axes, "images/s over those without merging", "accuracy, %")
    if len(curves) > 1:
        axes.legend(frameon=False, title="schedule")
    return to_picture(figure)


def time_model(name: str, arguments: argparse.Namespace) -> None:
    """Time a model with random weights and without gradients, with each count in turn, and print ratios."""
    torch.manual_seed(0)
    model = accelerate(build(name)).eval()
    images = torch.randn(arguments.batch, 3, *model.config.image_size)  # type: ignore[misc, union-attr]
    sides = {0: model, **{count: merge_tokens(model, count) for count in arguments.counts if count}}
    seconds: dict[int, list[float]] = {count: [] for count in sides}
    with torch.inference_mode():
        for side in sides.values():
            side(images)
        for _ in range(arguments.rounds):
            for count, side in sides.items():
                began = time.perf_counter()
                side(images)
                seconds[count].append(time.perf_counter() - began)
    for count, own in seconds.items():
        ratios = [plain / merged for plain, merged in zip(seconds[0], own, strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{name}  {count:2} merged  {statistics.median(ratios):.2f} ({spread})", flush=True)


if __name__ == "__main__":
    main()
