"""Test accuracy against the wall-clock budget: `vitrail train DATA --budget ...`, one run a seed.

Each run is the command that a user would type, in a process of its own, nothing else tuned: settings come
from the automatic choices, made on the training split. The test split is read once, at the end of a run.
A line is added to the results file after each run, so that a stopped benchmark goes on where it was.

    python benchmarks/accuracy_by_budget.py fashion-mnist --budgets 2m 10m 30m --seeds 0 1 2
    python benchmarks/accuracy_by_budget.py path/to/cifar10 --budgets 10m --seeds 0
    python benchmarks/accuracy_by_budget.py --table
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results") / "accuracy_by_budget.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", nargs="?", help="what vitrail train takes")
    parser.add_argument("--budgets", nargs="+", default=["2m", "10m", "30m"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where run directories go")
    parser.add_argument("--table", action="store_true", help="only print the table of all results so far")
    arguments = parser.parse_args()
    if arguments.data is None and not arguments.table:
        parser.error("name the data, or --table")
    if not arguments.table:
        for budget in arguments.budgets:
            for seed in arguments.seeds:
                measure(arguments.data, budget, seed, arguments.runs)
    print_table(read_results())


def measure(data: str, budget: str, seed: int, runs: Path) -> None:
    """Train once and add the result, unless it is there already."""
    key = {"data": Path(data).name, "budget": budget, "seed": seed}
    if any(all(result[name] == value for name, value in key.items()) for result in read_results()):
        return
    name = f"{key['data']}-{budget}-seed{seed}"
    command = [sys.executable, "-m", "vitrail", "train", data, "--budget", budget, "--seed", str(seed)]
    started = time.monotonic()
    finished = subprocess.run(
        [*command, "--output", str(runs), "--name", name], check=True, stdout=subprocess.PIPE, text=True
    )
    wall_s = time.monotonic() - started
    folder = Path(finished.stdout.strip().splitlines()[-1].split("report ")[-1]).parent
    report = json.loads((folder / "report.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    steps = [config["train"]["steps"], *(replan["steps"] for replan in config["train"]["replans"])]
    result = {
        **key,
        "accuracy": report["scores"]["accuracy"],
        "wall_s": round(wall_s, 1),
        "steps": steps[-1],
        "images": steps[-1] * config["train"]["batch_size"],
        "model": config["model"]["name"],
        "signature": report["signature"],
        "date": time.strftime("%Y-%m-%d"),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(result) + "\n")
    print(f"{name}: accuracy {result['accuracy']:.4f} in {wall_s:.0f} s", flush=True)


def read_results() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def print_table(results: list[dict[str, Any]]) -> None:
    """Print mean and spread over the seeds, as Markdown."""
    print("| data | budget | seeds | accuracy: mean | min | max | wall clock, s | images seen |")
    print("|---|---|---|---|---|---|---|---|")
    groups = dict.fromkeys((result["data"], result["budget"]) for result in results)
    for data, budget in groups:
        group = [result for result in results if (result["data"], result["budget"]) == (data, budget)]
        scores = [100 * result["accuracy"] for result in group]
        wall = statistics.mean(result["wall_s"] for result in group)
        images = statistics.mean(result["images"] for result in group)
        print(
            f"| {data} | {budget} | {len(group)} | {statistics.mean(scores):.2f} % | {min(scores):.2f} | "
            f"{max(scores):.2f} | {wall:.0f} | {images:,.0f} |"
        )


if __name__ == "__main__":
    main()
