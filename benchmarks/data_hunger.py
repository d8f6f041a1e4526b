"""Accuracy against the number of training images: ViT, hybrid and ResNet, the long form of the claim.

Every model is trained from random weights for the same steps with the same recipe, on 100 images up to all. A
line is added to the results file after each number of images and seed, so that a stopped benchmark goes on.

    VITRAIL_DATA=path/to/data python benchmarks/data_hunger.py fashion-mnist
    python benchmarks/data_hunger.py path/to/imagenette --image-size 64 --width 96 --depth 4 --steps 4000
    python benchmarks/data_hunger.py --table --picture benchmarks/results/data_hunger.png
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from vitrail.lab.data_hunger import MODELS, DataHunger, HungerRow, draw_curves
from vitrail.lab.harness import new_panels
from vitrail.tasks.classification.opening import open_dataset

RESULTS = Path(__file__).with_name("results") / "data_hunger.jsonl"
SMALLEST, FACTOR = 100, 4
SETTINGS = ("data", "num_steps", "image_size", "width", "depth", "batch_size", "num_images")  # of one row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", nargs="?", help="what vitrail train takes")
    parser.add_argument("--image-size", type=int, default=28)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--table", action="store_true", help="only print the table of all results so far")
    parser.add_argument("--picture", type=Path, help="a PNG or SVG to draw the curves of all results to")
    arguments = parser.parse_args()
    if arguments.data is None and not arguments.table:
        parser.error("name the data, or --table")
    if not arguments.table:
        measure_all(arguments)
    print_table(read_results())
    if arguments.picture is not None:
        draw_picture(read_results(), arguments.picture)


def measure_all(arguments: argparse.Namespace) -> None:
    """Train on 100 images, on four times as many, and so on to all of them."""
    dataset = open_dataset(arguments.data)  # of the same name in the claim, without its fallback
    num_images, sizes = len(dataset.train), [SMALLEST]
    while sizes[-1] < num_images:
        sizes.append(min(FACTOR * sizes[-1], num_images))
    settings = {
        "image_size": arguments.image_size,
        "width": arguments.width,
        "depth": arguments.depth,
        "num_steps": arguments.steps,
        "batch_size": arguments.batch_size,
    }
    for seed in arguments.seeds:
        for size in sizes:
            key = {"data": Path(arguments.data).name, "num_images": size, "seed": seed, **settings}
            if any(all(row[name] == value for name, value in key.items()) for row in read_results()):
                continue
            measure(arguments.data, size, seed, settings, key)


def measure(data: str, size: int, seed: int, settings: dict[str, int], key: dict[str, Any]) -> None:
    """Train each model once on so many images, and add what came out."""
    claim = DataHunger().with_changes(
        {**settings, "data": data, "sizes": [size], "num_tested": 10_000, "num_seeds": 1}
    )
    started = time.monotonic()
    rows = claim.run(lambda progress: print(progress.what, flush=True), seed=seed)
    wall_s = round(time.monotonic() - started, 1)
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        for row in rows:
            result = {**key, **row.model_dump(mode="json"), "data": key["data"], "wall_s": wall_s}
            file.write(json.dumps({**result, "date": time.strftime("%Y-%m-%d")}) + "\n")


def draw_picture(results: list[dict[str, Any]], path: Path) -> None:
    """Draw the curves of each data set and setting beside each other."""
    groups: dict[tuple[Any, ...], list[HungerRow]] = {}
    for result in results:
        row = HungerRow.from_tree({name: result[name] for name in HungerRow.model_fields})
        groups.setdefault(tuple(result[name] for name in SETTINGS[:-1]), []).append(row)
    figure, panels = new_panels(len(groups))
    for axes, rows in zip(panels, groups.values(), strict=True):
        draw_curves(axes, rows)
    figure.savefig(path)


def read_results() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def print_table(results: list[dict[str, Any]]) -> None:
    """Print the mean accuracy and its range over the seeds, as Markdown."""
    print("| data | steps | images | seeds | " + " | ".join(MODELS) + " |")
    print("|---|---:|---:|---:|" + "---:|" * len(MODELS))
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in results:
        groups.setdefault(tuple(row[name] for name in SETTINGS), []).append(row)
    for key, found in sorted(groups.items()):
        data, steps, *_, size = key
        scores = [[row["accuracy"] for row in found if row["model"] == name] for name in MODELS]
        cells = [f"{statistics.fmean(each):.2%} ({min(each):.2%} to {max(each):.2%})" for each in scores]
        print(f"| {data} | {steps:,} | {size:,} | {len(scores[0])} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
