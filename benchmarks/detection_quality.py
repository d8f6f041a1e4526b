"""Average precision on BCCD (364 images of blood cells): one training for each recipe and seed.

Each run is the command that a user would type, in a process of its own, from random weights. Choices were
made on the validation split; the test split is read once, at the end of a run. A line is added to the results
file after each run, so that a stopped benchmark goes on where it was; a run that was made by hand is added by
naming its folder. The picture has the validation scores of all runs over the minutes of training.

    python benchmarks/detection_quality.py FOLDER --recipes bccd bccd-detr --seeds 0 1
    python benchmarks/detection_quality.py FOLDER --recipes bccd-no-denoising bccd-one-level --seeds 0
    python benchmarks/detection_quality.py --add runs/bccd0 --as bccd
    python benchmarks/detection_quality.py --table

FOLDER holds the images and annotations of BCCD with their own division into train, val and test.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results") / "detection_quality.jsonl"
PICTURE = RESULTS.with_suffix(".png")
AIM, LEAST = 0.88, 0.80  # of AP50 on the test split: what was to be reached, and at least
# Okabe and Ito 2008, told apart by the colour-blind
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", nargs="?", type=Path, help="the folder of BCCD")
    parser.add_argument("--recipes", nargs="+", default=["bccd"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where run directories go")
    parser.add_argument("--add", type=Path, help="a finished run directory to add to the results")
    parser.add_argument("--as", dest="name", help="the recipe that it followed")
    parser.add_argument("--table", action="store_true", help="only print the table and draw the curves")
    arguments = parser.parse_args()
    if (arguments.add is None) != (arguments.name is None):
        parser.error("--add names a folder, and --as the recipe that it followed")
    if arguments.add is not None:
        add_result(arguments.add, arguments.name)
    elif arguments.data is not None and not arguments.table:
        for recipe in arguments.recipes:
            for seed in arguments.seeds:
                measure(arguments.data, recipe, seed, arguments.runs)
    elif not arguments.table:
        parser.error("name the data, or --add a run, or --table")
    results = read_results()
    print_table(results)
    draw_curves(results)


def measure(data: Path, recipe: str, seed: int, runs: Path) -> None:
    """Train once and add the result, unless it is there already; a run that was stopped goes on."""
    if any(result["recipe"] == recipe and result["seed"] == seed for result in read_results()):
        return
    folder = runs / f"{recipe}-seed{seed}"
    command = [sys.executable, "-m", "vitrail", "train"]
    if (folder / "config.json").exists():
        command += ["--resume", str(folder)]
    else:
        command += [str(data), "--recipe", recipe, "--seed", str(seed)]
        command += ["--output", str(runs), "--name", folder.name]
    subprocess.run(command, check=True)
    add_result(folder, recipe)


def add_result(folder: Path, recipe: str) -> None:
    """Add scores and validation curve of a finished run to the results file, in place of older ones."""
    report, config, described, environment = (
        json.loads((folder / name).read_text())
        for name in ("report.json", "config.json", "model/model.json", "environment.json")
    )
    tables, training_s = report["tables"], described["about"]["training_s"]
    result = {
        "recipe": recipe,
        "seed": config["train"]["seed"],
        "steps": [config["train"]["steps"], *(replan["steps"] for replan in config["train"]["replans"])][-1],
        "minutes": round(training_s / 60, 1),
        "threads": environment["threads"],
        **{name: round(report["scores"][name], 4) for name in ("ap", "ap50", "ap75")},
        "ap_by_class": {
            name: None if row["ap"] is None else round(row["ap"], 4)
            for name, row in zip(report["class_names"], tables["per_class"], strict=True)
        },
        "model": config["model"]["name"],
        "parameters": described["weights"]["parameters"],
        "batch_size": config["train"]["batch_size"],
        "image_size": config["data"]["image_size"],
        "curve": validation_curve(folder / "metrics.jsonl"),
        "signature": report["signature"],
        "cpu": environment["cpu"],
        "date": time.strftime("%Y-%m-%d"),
    }
    others = [row for row in read_results() if (row["recipe"], row["seed"]) != (recipe, result["seed"])]
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text("".join(f"{json.dumps(row)}\n" for row in [*others, result]))


def validation_curve(metrics: Path) -> list[list[float]]:
    """Return minutes of training, step, AP and AP50 of every validation."""
    entries = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [
        [
            round(entry["elapsed_s"] / 60, 2),
            entry["step"],
            round(entry["scores"]["ap"], 4),
            round(entry["scores"]["ap50"], 4),
        ]
        for entry in entries
        if entry["kind"] == "validation"
    ]


def read_results() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def by_recipe(results: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Group results, recipes in the order in which they were first measured."""
    return {
        recipe: [result for result in results if result["recipe"] == recipe]
        for recipe in dict.fromkeys(result["recipe"] for result in results)
    }


def print_table(results: Sequence[dict[str, Any]]) -> None:
    """Print mean and spread over the seeds, as Markdown."""
    if not results:
        print("no results yet")
        return
    classes = list(dict.fromkeys(name for result in results for name in result["ap_by_class"]))
    print(f"| recipe | parameters | steps | threads | minutes | seeds | AP50 | AP | {' | '.join(classes)} |")
    print("|---" * (8 + len(classes)) + "|")
    for recipe, rows in by_recipe(results).items():
        cells = [
            f"`{recipe}`",
            f"{rows[0]['parameters']:,}",
            one_or_all([row["steps"] for row in rows]),
            one_or_all([row["threads"] for row in rows]),
            f"{statistics.mean(row['minutes'] for row in rows):.0f}",
            str(len(rows)),
            *(mean_and_spread([row[name] for row in rows]) for name in ("ap50", "ap")),
            *(mean_and_spread([row["ap_by_class"].get(name) for row in rows]) for name in classes),
        ]
        print(f"| {' | '.join(cells)} |")


def draw_curves(results: Sequence[dict[str, Any]]) -> None:
    """Draw validation AP50 over minutes: a colour for each recipe, a line for each seed."""
    from matplotlib.figure import Figure

    drawn = [result for result in results if result["curve"]]
    if not drawn:
        return
    figure = Figure(figsize=(8.4, 4.8), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    for place, (recipe, rows) in enumerate(by_recipe(drawn).items()):
        for number, row in enumerate(sorted(rows, key=lambda row: row["seed"])):
            minutes, _, _, ap50 = zip(*row["curve"], strict=True)
            test = mean_and_spread([each["ap50"] for each in rows])
            axes.plot(
                (0, *minutes),
                (0, *ap50),
                color=COLOURS[place % len(COLOURS)],
                linestyle="-" if place < len(COLOURS) else "--",
                linewidth=1.8,
                alpha=1.0 if not number else 0.55,
                marker="o",
                markersize=3,
                label=None if number else f"{recipe}: {test}",
            )
    for level, name in ((AIM, "aim for the test split"), (LEAST, "at least")):
        axes.axhline(level, color="#808080", linewidth=0.8, linestyle=":")
        axes.annotate(
            name, (1.0, level), xycoords=("axes fraction", "data"), fontsize=8, ha="right", va="bottom"
        )
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1)
    axes.set_xlabel("minutes of training")
    axes.set_ylabel("validation AP50")
    axes.set_title("BCCD, from random weights", fontsize=10)
    axes.grid(linewidth=0.5, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(title="recipe: AP50 of the test split", frameon=False, fontsize=8, loc="lower right")
    figure.savefig(PICTURE, dpi=130, metadata={"Software": None})
    print(f"\ncurves: {PICTURE}")


def one_or_all(values: Sequence[int]) -> str:
    return ", ".join(f"{value:,}" for value in dict.fromkeys(values))


def mean_and_spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "none"
    mean = f"{statistics.mean(known):.3f}"
    return mean if len(known) == 1 else f"{mean} ({min(known):.3f} to {max(known):.3f})"


if __name__ == "__main__":
    main()
