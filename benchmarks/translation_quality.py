"""BLEU on Multi30k (Elliott et al. 2016), task 1, English to German: one training for each recipe and seed.

Each run is the command that a user would type, in a process of its own. Choices were made on the validation
split; the test split is read once, at the end of a run. A line is added to the results file after each run,
so that a stopped benchmark goes on where it was.

    python benchmarks/translation_quality.py FOLDER --recipes multi30k --seeds 0 1
    python benchmarks/translation_quality.py FOLDER --recipes multi30k-rnn multi30k-rnn-attention --seeds 0
    python benchmarks/translation_quality.py --table

FOLDER holds train.en, train.de, val.en, val.de, test_2016_flickr.en and test_2016_flickr.de, or their .gz.
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

RESULTS = Path(__file__).with_name("results") / "translation_quality.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", nargs="?", type=Path, help="the folder of Multi30k")
    parser.add_argument("--recipes", nargs="+", default=["multi30k"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where run directories go")
    parser.add_argument("--table", action="store_true", help="only print the table of all results so far")
    arguments = parser.parse_args()
    if arguments.data is None and not arguments.table:
        parser.error("name the data, or --table")
    if not arguments.table:
        for recipe in arguments.recipes:
            for seed in arguments.seeds:
                measure(arguments.data, recipe, seed, arguments.runs)
    results = read_results()
    print_table(results)
    print()
    print_by_length(results)


def measure(data: Path, recipe: str, seed: int, runs: Path) -> None:
    """Train once and add the result, unless it is there already; a run that was stopped goes on."""
    if any(result["recipe"] == recipe and result["seed"] == seed for result in read_results()):
        return
    folder = runs / f"{recipe}-seed{seed}"
    command = [sys.executable, "-m", "vitrail", "train"]
    if (folder / "config.json").exists():
        command += ["--resume", str(folder)]
    else:
        command += [str(data), "--languages", "en,de", "--recipe", recipe, "--seed", str(seed)]
        command += ["--output", str(runs), "--name", folder.name]
    subprocess.run(command, check=True)
    add_result(folder, recipe, seed)


def add_result(folder: Path, recipe: str, seed: int) -> None:
    """Add the scores of a finished run to the results file."""
    report = json.loads((folder / "report.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    described = json.loads((folder / "model" / "model.json").read_text())
    result = {
        "recipe": recipe,
        "seed": seed,
        **{name: round(report["scores"][name], 2) for name in ("bleu_tokenised", "bleu", "chrf")},
        "training_s": described["about"]["training_s"],
        "parameters": described["weights"]["parameters"],
        "steps": [config["train"]["steps"], *(replan["steps"] for replan in config["train"]["replans"])][-1],
        "batch_tokens": config["train"]["batch_size"],
        "model": config["model"]["name"],
        "length_penalty": config["task"]["length_penalty"],
        "by_length": report["tables"]["buckets"],
        "signature": report["signature"],
        "date": time.strftime("%Y-%m-%d"),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(result) + "\n")


def read_results() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def print_table(results: list[dict[str, Any]]) -> None:
    """Print mean and spread over the seeds, as Markdown."""
    print("| recipe | parameters | seeds | tokenised, lower-cased BLEU | cased BLEU | chrF | training, min |")
    print("|---|---|---|---|---|---|---|")
    for recipe in dict.fromkeys(result["recipe"] for result in results):
        rows = [result for result in results if result["recipe"] == recipe]
        cells = [mean_and_spread([row[name] for row in rows]) for name in ("bleu_tokenised", "bleu", "chrf")]
        minutes = statistics.mean(row["training_s"] for row in rows) / 60
        print(
            f"| `{recipe}` | {rows[0]['parameters']:,} | {len(rows)} | {' | '.join(cells)} | {minutes:.0f} |"
        )


def print_by_length(results: list[dict[str, Any]]) -> None:
    """Print the mean BLEU over the seeds by the number of words of the source sentence, as Markdown."""
    recipes = list(dict.fromkeys(result["recipe"] for result in results))
    spans = [(bucket["shortest"], bucket["longest"], bucket["count"]) for bucket in results[0]["by_length"]]
    print(f"| words | sentences | {' | '.join(f'`{recipe}`' for recipe in recipes)} |")
    print("|---|---|" + "---|" * len(recipes))
    for place, (shortest, longest, count) in enumerate(spans):
        cells = []
        for recipe in recipes:
            rows = [result["by_length"][place] for result in results if result["recipe"] == recipe]
            cells.append(f"{statistics.mean(row['bleu'] for row in rows):.1f}")
        print(f"| {shortest} to {longest} | {count} | {' | '.join(cells)} |")


def mean_and_spread(values: list[float]) -> str:
    mean = f"{statistics.mean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
