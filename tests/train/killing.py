"""Train the toy in child processes that are killed again and again; run as a script by a test.

``python killing.py FOLDER PLANS``, with PLANS as JSON {name: [setting, ...]}, leaves FOLDER/NAME/killed,
resumed until it was done, and FOLDER/NAME/whole, never interrupted, and prints how many sessions of each were
killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from toy import SquaresObjective, toy_experiment, toy_model, train_toy

from vitrail.train.processes import single_process
from vitrail.train.step import TrainStep

NUM_SESSIONS = 12
FSYNC = os.fsync
OPERATIONS = ("fsync", "rename", "replace", "rmdir", "unlink", "mkdir")


def session(folder: Path, settings: list[str], die_at: int) -> None:
    """Train in a child; die just before its n-th change to the file system, never with 0."""
    done = 0
    for name in OPERATIONS:
        original = getattr(os, name)

        def counted(*arguments: Any, original: Any = original, **options: Any) -> Any:
            nonlocal done
            done += 1
            if done == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if original is not FSYNC:  # what a killed process wrote stays, on the disk or on its way
                return original(*arguments, **options)

        setattr(os, name, counted)
    train_toy(folder, single_process(), settings)


def start(folder: Path, settings: list[str], die_at: int = 0) -> int:
    """Fork a session and return its process id."""
    child = os.fork()
    if child == 0:
        try:
            session(folder, settings, die_at)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return child


def import_everything() -> None:
    """Import what torch puts off until a first optimiser is made, so that no child has to."""
    for name in ("adamw", "muon"):
        experiment = toy_experiment(optim__name=name)
        TrainStep(SquaresObjective(), toy_model(), experiment, single_process()).optimisers.step()


def train_and_kill(root: Path, settings: list[str]) -> int:
    """Kill the first sessions, at file operations and at moments in turn, and let the last one end."""
    chance = random.Random(5)
    if os.waitpid(start(root / "whole", settings), 0)[1] != 0:
        raise SystemExit("the run that nobody kills failed")
    num_killed = 0
    for number in range(NUM_SESSIONS):
        by_time = number % 3 == 2
        # The run directory is made by the 20th operation, and a checkpoint takes about 10.
        child = start(root / "killed", settings, 0 if by_time else chance.randint(25, 60))
        if by_time:
            time.sleep(chance.uniform(0.01, 0.05))
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if status == 0:
            break
        if not os.WIFSIGNALED(status):
            raise SystemExit("a resumed session failed")
        num_killed += 1
    if num_killed == NUM_SESSIONS and os.waitpid(start(root / "killed", settings), 0)[1] != 0:
        raise SystemExit("the last session failed")
    return num_killed


if __name__ == "__main__":
    torch.set_num_threads(1)
    import_everything()
    plans = json.loads(sys.argv[2])
    killed = {name: train_and_kill(Path(sys.argv[1], name), settings) for name, settings in plans.items()}
    print(json.dumps(killed))  # noqa: T201  the test reads it
