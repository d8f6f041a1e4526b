"""Damaged files of a run: a clear error before the training goes on, or the result is what it was.

python tests/faults/runs.py --count 2000
"""

from __future__ import annotations

import argparse
import hashlib
import math
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from making.image_folders import write_image_folder
from making.plain_pages import plain_pages
from making.small_runs import SMALL_RUNS
from vitrail.core.errors import VitrailError
from vitrail.models.checkpoint import load_model
from vitrail.studies.judging import measure_run
from vitrail.tasks.classification.comparing import Accuracy
from vitrail.tasks.evaluating import evaluate
from vitrail.tasks.training import train

FILES = (
    "config.json",
    "choices.json",
    "verdict.json",
    "environment.json",
    "metrics.jsonl",
    "report.json",
    "checkpoints/step-*/state.json",
    "checkpoints/step-*/state.safetensors",
    "checkpoints/best/state.json",
    "checkpoints/best/weights.safetensors",
    "model/model.json",
    "model/model.safetensors",
)
OTHER_VALUES = (b"null", b"true", b'"x"', b"[]", b"{}", b"-1", b"1e999", b"7", b"[[[[[]]]]]")
TRAINED = {"train.keep": "best", "train.steps": 6, "train.validations": 3}


def make_run(folder: Path) -> Path:
    """Train for a few steps, and return the run directory."""
    small = SMALL_RUNS["classification"]
    source = write_image_folder(folder / "photos", per_class=6)
    return small.train(source, folder, name="run", changes=TRAINED).folder


def flip(content: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :]


def cut(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content))]


def drop_lines(content: bytes, draw: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    first = draw.randrange(len(lines))
    return b"".join(lines[:first] + lines[first + draw.randint(1, 3) :])


def change_number(content: bytes, draw: random.Random) -> bytes:
    found = list(re.finditer(rb"(?<=[ \[])-?\d+(\.\d+)?", content))
    if not found:
        return flip(content, draw)
    match = draw.choice(found)
    number = str(float(match[0]) * 2 + 1 if b"." in match[0] else int(match[0]) // 2 + 1)
    return content[: match.start()] + number.encode() + content[match.end() :]


def change_value(content: bytes, draw: random.Random) -> bytes:
    found = list(re.finditer(rb"(?<=: )[^,\n]+", content))
    if not found:
        return cut(content, draw)
    match = draw.choice(found)
    return content[: match.start()] + draw.choice(OTHER_VALUES) + content[match.end() :]


MUTATIONS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flip,
    cut,
    drop_lines,
    change_number,
    change_value,
)


def result_of(run: Path) -> dict[str, Any]:
    """Return what a run comes to for who resumes, evaluates, loads or compares it, or the error."""
    found: dict[str, Any] = {}
    actions: dict[str, Callable[[], Any]] = {
        "compare": lambda: measure_run(run, Accuracy()).model_dump(),
        "load": lambda: [*(loaded := load_model(run / "model")).class_names, repr(loaded.preprocessing)],
        "evaluate": lambda: dict(evaluate(run, run.parent / "photos").scores),
        "resume": lambda: dict(train(resume=run).scores),
    }
    for name, act in actions.items():
        try:
            found[name] = act()
        except VitrailError as error:
            found[name] = error
    weights = run / "model" / "model.safetensors"
    found["weights"] = hashlib.sha256(weights.read_bytes()).hexdigest() if weights.exists() else None
    return found


def harm_of(run: Path, copy: Path, name: str, mutate: Any, expected: dict[str, Any], seed: int) -> str:
    """Damage one file of a copied run, and return what is accepted and should not be; else nothing."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    (path,) = copy.glob(name)
    path.write_bytes(mutate(path.read_bytes(), random.Random(seed)))
    found = result_of(copy)
    harm = [
        part
        for part, value in found.items()
        if not isinstance(value, VitrailError)
        and value != expected[part]
        # What a resumed run writes again is whole.
        and not (part == "weights" and isinstance(found["resume"], VitrailError))
    ]
    return f"{name}, {mutate.__name__}, seed {seed}: {', '.join(harm)}" if harm else ""


def attack(folder: Path, seeds: Iterable[int], seconds: float = math.inf) -> list[str]:
    """Damage a file of a run for each seed, as long as there is time, and return the harm that was done."""
    began, run = time.monotonic(), make_run(folder)
    (kept := folder / "kept").mkdir()
    shutil.move(run, kept / "run")
    expected = result_of(Path(shutil.copytree(kept / "run", run)))
    harms = []
    for seed in seeds:
        file, mutate = FILES[seed % len(FILES)], MUTATIONS[seed // len(FILES) % len(MUTATIONS)]
        harms.append(harm_of(kept / "run", run, file, mutate, expected, seed))
        if time.monotonic() - began > seconds:
            break
    print(f"{len(harms)} damaged files in {time.monotonic() - began:.0f} s")
    return [harm for harm in harms if harm]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, plain_pages():
        harms = attack(Path(name), range(asked.seed, asked.seed + asked.count), asked.seconds)
    print("\n".join(harms) or "each refused, or nothing changed")
    sys.exit(bool(harms))


if __name__ == "__main__":
    main()
