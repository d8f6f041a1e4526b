"""Kills and failures at calls to the file system: nothing may be lost, left over or uncaught.

python tests/faults/files.py kills --count 1000        # of trainings, each resumed until it is done
python tests/faults/files.py faults train --calls 500  # a failure at each call in turn; see CASES
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1]))

from faults.layer import ERRORS, KILL, POWER_FAILURE, Commands, Ended
from making.box_scenes import make_scenes, write_coco
from making.image_folders import write_image_folder

MEASURED = {"elapsed_s", "samples_per_s", "peak_memory_mib"}
NAMED_BY_TIME = {"written", "training_s", "started", "command", "environment", "seconds", "ms"}
SETTINGS = {
    "model.width": 12,
    "model.depth": 1,
    "model.num_heads": 3,
    "optim.learning_rate": 0.3,
    "train.batch_size": 4,
    "train.steps": 9,
    "train.validations": 3,
    "train.precision": "float32",
    "train.keep": "best",
    "train.checkpoint_every_s": 0.001,
}
"""A checkpoint after each step, and scores that get worse again."""
PLAIN = """
from vitrail.core.durable import atomic_write
from vitrail.tasks.registry import TASKS

for task in TASKS.values():
    type(task).write_page = lambda self, path, *_: atomic_write(path, "a page")
"""
"""No plots, which take most of a tiny training."""


def train(folder: Path) -> list[str]:
    """Return the arguments that start the run of a folder, or resume it."""
    if (folder / "runs" / "run" / "config.json").exists():
        return ["train", "--resume", str(folder / "runs" / "run")]
    shutil.rmtree(folder / "runs" / "run", ignore_errors=True)  # it never began
    settings = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    place = ["--output", str(folder / "runs"), "--name", "run"]
    return ["train", str(folder / "photos"), "--model", "vit_nano", *settings, *place]


def export(folder: Path) -> list[str]:
    return ["export", str(folder / "runs" / "run"), "--format", "onnx", "-o", str(folder / "exported")]


def predict(folder: Path) -> list[str]:
    output = ["-o", str(folder / "answers.csv")]
    return ["predict", str(folder / "runs" / "run"), str(folder / "photos"), "--engine", "torch", *output]


def evaluate(folder: Path) -> list[str]:
    return ["evaluate", str(folder / "runs" / "run"), str(folder / "photos")]


def fix(folder: Path) -> list[str]:
    # A copy that is there is whole: an image that could not be read is left out of it, as it should be.
    shutil.rmtree(folder / "fixed", ignore_errors=True)
    return ["check", str(folder / "boxes"), "--fix", str(folder / "fixed")]


class Case(NamedTuple):
    """A command, and what exists before it."""

    arguments: Callable[[Path], list[str]]
    before: tuple[Callable[[Path], list[str]], ...] = ()
    root: str = "."
    """Folder whose calls fail."""


CASES = {
    "train": Case(train, root="runs"),
    "read": Case(train, root="photos"),
    "predict": Case(predict, (train, predict)),
    "evaluate": Case(evaluate, (train,)),
    "fix": Case(fix),
    "export": Case(export, (train, export)),
}


def make_data(folder: Path) -> None:
    write_image_folder(folder / "photos", per_class=8)
    write_coco(folder / "boxes", make_scenes())


def content_of(folder: Path) -> dict[str, str]:
    """Return digests of all files, without times."""
    return {str(path.relative_to(folder)): _digest(path) for path in sorted(folder.rglob("*"))}


def _digest(path: Path) -> str:
    if path.is_dir():
        return "folder"
    content = path.read_bytes()
    if path.suffix in (".json", ".jsonl"):
        lines = content.splitlines() if path.suffix == ".jsonl" else [content]
        content = json.dumps([_timeless(json.loads(line)) for line in lines]).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def _timeless(tree: Any) -> Any:
    if isinstance(tree, dict):
        varying = MEASURED | NAMED_BY_TIME | {"digest", "metrics"}
        return {name: _timeless(value) for name, value in tree.items() if name not in varying}
    return [_timeless(value) for value in tree] if isinstance(tree, list) else tree


class LostError(AssertionError):
    """A command did harm."""


def check(found: dict[str, str], expected: dict[str, str], what: str) -> None:
    if found != expected:
        names = sorted(name for name in found | expected if found.get(name) != expected.get(name))
        raise LostError(f"{what}: {', '.join(names)}")


def check_clean(ended: Ended, what: str) -> None:
    if not ended.is_clean:
        raise LostError(f"{what}: exit code {ended.code}: {ended.stderr[-1500:]}")


def prepare(commands: Commands, template: Path, case: Case) -> None:
    make_data(template)
    for arguments in case.before:
        ended = commands.run(arguments(template), template)
        assert ended.code == 0, ended.stderr


def fresh(template: Path, folder: Path) -> Path:
    """Return a folder as the template is. It has the template's place, which runs and packages name."""
    shutil.rmtree(template, ignore_errors=True)
    return shutil.copytree(folder, template, symlinks=True)


def faults(
    commands: Commands, scratch: Path, case: Case, calls: Sequence[int]
) -> Iterator[tuple[int, Ended]]:
    """Let some calls fail in turn; without a fault, the command must then end as if nothing had been."""
    folder, saved = scratch / "work", scratch / "saved"
    prepare(commands, folder, case)
    shutil.copytree(folder, saved)
    root = folder / case.root
    whole = commands.run(case.arguments(folder), root)
    assert whole.code == 0, whole.stderr
    expected = content_of(folder)
    for at in calls:
        if at > whole.num_calls:
            break
        error, lasting = ERRORS[at % len(ERRORS)], at % 2 == 0
        what = f"call {at}, {errno.errorcode[error]}{', lasting' if lasting else ''}"
        fresh(folder, saved)
        ended = commands.run(case.arguments(folder), root, at=at, fault=error, lasting=lasting)
        check_clean(ended, what)
        yield at, ended
        if case.root == "photos" and ended.code == 0:
            continue  # an image that cannot be read is left out of a training, which the doctor tells
        again = commands.run(case.arguments(folder), folder)
        if again.code != 0:
            raise LostError(f"{what}: again: {again.stderr[-1500:]}")
        check(content_of(folder), expected, what)


def kills(commands: Commands, scratch: Path, *, seed: int = 0) -> Iterator[int]:
    """Kill trainings at random calls, or let the power fail; yields the number of kills of each."""
    folder, saved = scratch / "work", scratch / "saved"
    make_data(folder)
    shutil.copytree(folder, saved)
    whole = commands.run(train(folder), folder)
    assert whole.code == 0, whole.stderr
    expected, draw = content_of(folder), random.Random(seed)
    while True:
        fresh(folder, saved)
        num_kills = 0
        for _ in range(12):
            at, fault = draw.randint(1, whole.num_calls), draw.choice((KILL, POWER_FAILURE))
            ended = commands.run(train(folder), folder, at=at, fault=fault)
            check_clean(ended, f"call {at} of {whole.num_calls}")
            num_kills += ended.code == -signal.SIGKILL
            if ended.code == 0:
                break
        else:
            ended = commands.run(train(folder), folder)
        if ended.code != 0:
            raise LostError(ended.stderr[-1500:])
        check(content_of(folder), expected, f"a run that was killed {num_kills} times")
        yield num_kills


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["kills", "faults"])
    parser.add_argument("case", nargs="?", choices=CASES)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    asked = parser.parse_args()
    began = time.monotonic()
    # Not on a disk: each of a thousand trainings waits for it some two hundred times.
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as name, Commands(Path(name), PLAIN) as commands:
        if asked.what == "kills":
            counts = []
            for count in kills(commands, Path(name), seed=asked.seed):
                counts.append(count)
                if sum(counts) >= asked.count or time.monotonic() - began > asked.seconds:
                    break
            done = f"{sum(counts)} kills of {len(counts)} trainings, all resumed to the same bits"
        else:
            codes: dict[int, int] = {}
            calls = range(asked.first, asked.first + asked.calls)
            for at, ended in faults(commands, Path(name), CASES[asked.case], calls):
                codes[at] = ended.code
                if time.monotonic() - began > asked.seconds:
                    break
            listed = dict(Counter(codes.values()))
            done = f"{asked.case}: faults at calls {min(codes)} to {max(codes)}, exit codes {listed}"
    print(f"{done} ({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main()
