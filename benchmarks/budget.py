"""Measure by how much a training passes its budget where the machine's speed halves in the middle.

Each run is ``vitrail train DATA --budget B`` in a process of its own. At ``--at`` of the budget as many busy
processes start as there are cores, so that the training gets about half of each, until it ends; ``--at 1``
leaves the machine alone. The wall clock is that of the whole command, from start of Python to its end.

Example: python benchmarks/budget.py digits --budgets 60 120 --at 0.5
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHARE, SECONDS = 0.03, 5.0  # of the budget, or so long: what a run may take beyond it


def measure(data: str, budget_s: float, at: float, options: list[str], output: Path) -> dict[str, float]:
    """Train, slowed down from a share of the budget on; return wall clock and steps, planned and trained."""
    name = f"{budget_s:g}-{at:g}"
    command = [sys.executable, "-m", "vitrail", "train", data, "--budget", f"{budget_s:g}s", *options]
    started = time.monotonic()
    training = subprocess.Popen(
        [*command, "--output", str(output), "--name", name], stdout=subprocess.DEVNULL
    )
    busy: list[subprocess.Popen[bytes]] = []
    try:
        while training.poll() is None:
            if not busy and at < 1 and time.monotonic() - started >= at * budget_s:
                loop = [sys.executable, "-c", "while True: pass"]
                busy = [subprocess.Popen(loop) for _ in range(os.cpu_count() or 1)]
            time.sleep(0.05)
    finally:
        for process in (training, *busy):
            process.kill()
            process.wait()
    taken_s = time.monotonic() - started
    if training.returncode:
        raise RuntimeError(f"{' '.join(command)} failed")
    settings = json.loads((output / name / "config.json").read_text(encoding="utf-8"))["train"]
    steps = [settings["steps"], *(replan["steps"] for replan in settings["replans"])]
    return {"taken_s": taken_s, "planned": steps[0], "trained": steps[-1], "corrections": len(steps) - 1}


def main() -> None:
    """Print a row for each budget; fail where one is passed by more than a run may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", nargs="?", default="digits")
    parser.add_argument("--budgets", type=float, nargs="+", default=[60.0], help="seconds")
    parser.add_argument("--at", type=float, default=0.5, help="share of the budget after which load comes")
    parser.add_argument("--options", nargs=argparse.REMAINDER, default=[], help="further ones of the command")
    arguments = parser.parse_args()
    late = False
    with tempfile.TemporaryDirectory() as folder:
        for budget_s in arguments.budgets:
            row = measure(arguments.data, budget_s, arguments.at, arguments.options, Path(folder))
            over_s = row["taken_s"] - budget_s
            late = late or over_s > max(SHARE * budget_s, SECONDS)
            print(
                f"budget {budget_s:g} s: {row['taken_s']:.1f} s, {over_s:+.1f} s ({over_s / budget_s:+.1%}); "
                f"{row['trained']} of {row['planned']} planned steps, {row['corrections']} corrections",
                flush=True,
            )
    if late:
        sys.exit(f"a budget was passed by more than {SHARE:.0%} and {SECONDS:g} s")


if __name__ == "__main__":
    main()
