"""Train the toy in child processes that are killed again and again; run as a script by a test.

``python killing.py FOLDER SETTING...`` leaves FOLDER/killed, resumed until it was done, and FOLDER/whole,
never interrupted, and prints how many sessions were killed.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from toy import train_toy

from vitrail.train.processes import single_process

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


def main(root: Path, settings: list[str]) -> None:
    """Kill at file operations and at moments in turn, until a session comes to its end."""
    chance = random.Random(5)
    root.mkdir(parents=True)
    if os.waitpid(start(root / "whole", settings), 0)[1] != 0:
        raise SystemExit("the run that nobody kills failed")
    train_toy_once = start(root / "killed", settings, die_at=25)  # the run directory is made by then
    os.waitpid(train_toy_once, 0)
    killed = 1
    while True:
        at_operation = killed % 2 == 0
        child = start(root / "killed", settings, chance.randint(1, 60) if at_operation else 0)
        if not at_operation:
            time.sleep(chance.uniform(0.01, 0.15))
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if status == 0:
            break
        if not os.WIFSIGNALED(status):
            raise SystemExit("a resumed session failed")
        killed += 1
    print(killed)  # noqa: T201  the test reads it


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2:])
