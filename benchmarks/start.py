"""Measure the processor time of short commands and of the first use of each public name.

Processor time is that of user and system, of the command and its threads. It depends less on what else the
machine does than wall clock, but not little. A tiny ViT for digits is trained first, unless a run and its
data are named. Commands run once unmeasured, so that bytecode is compiled and files are cached, and then in
turn.

Example: python benchmarks/start.py --rounds 5
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import vitrail

LIMIT_S = 3.0  # what predict, explain and evaluate may take with a small model


def processor_time(command: list[str]) -> float:
    """Run a command and return its user and system time in seconds; raise where it fails."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    shown = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: {shown.decode()}")
    return used.ru_utime + used.ru_stime


def commands_of(run: Path, data: str, inputs: list[str], folder: Path) -> dict[str, list[str]]:
    """Return the command line of each row."""
    python, command = [sys.executable, "-c"], [sys.executable, "-m", "vitrail"]
    names = [name for name in vitrail.__all__ if name != "__version__"]
    return {
        "import torch": [*python, "import torch"],
        "vitrail --help": [*command, "--help"],
        "vitrail predict": [*command, "predict", str(run), *inputs],
        "vitrail explain": [*command, "explain", str(run), *inputs, "-o", str(folder / "page.html")],
        "vitrail evaluate": [*command, "evaluate", str(run), data],
        "vitrail models": [*command, "models"],
        "import vitrail": [*python, "import vitrail"],
        **{f"vitrail.{name}": [*python, f"import vitrail; vitrail.{name}"] for name in names},
    }


def main() -> None:
    """Print the least and the median processor time of each command; fail where one is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--run", type=Path, help="a run directory of images; by default one of digits is trained"
    )
    parser.add_argument("--data", default="digits", help="the data of the run")
    parser.add_argument("--image", help="an image file for the run")
    parser.add_argument("--only", default="", help="commands with this text in their row alone")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, run, image = Path(name), arguments.run, arguments.image
        if run is None:
            brief = {"train.steps": 30}
            run = vitrail.train("digits", model="vit_nano", changes=brief, output=folder, name="run").folder
        if image is None:
            from PIL import Image

            image = str(folder / "digit.png")
            Image.fromarray(vitrail.open_dataset("digits").test.images[0]).save(image)
        rows = commands_of(run, arguments.data, [image], folder)
        rows = {row: command for row, command in rows.items() if arguments.only in row}
        taken: dict[str, list[float]] = {row: [] for row in rows}
        for round_index in range(-1, arguments.rounds):
            for number, (row, command) in enumerate(rows.items(), 1):
                if round_index < 0 and not row.startswith("vitrail "):  # they import what the others do
                    continue
                print(f"round {round_index + 1}: {number}/{len(rows)} {row}", file=sys.stderr, flush=True)
                seconds = processor_time(command)
                if round_index >= 0:
                    taken[row].append(seconds)
    print(f"{'processor time, s':28} {'least':>6} {'median':>6}")
    for row, seconds in taken.items():
        print(f"{row:28} {min(seconds):6.2f} {statistics.median(seconds):6.2f}")
    limited = ("vitrail predict", "vitrail explain", "vitrail evaluate")
    above = [row for row in limited if row in taken and statistics.median(taken[row]) > LIMIT_S]
    if above:
        sys.exit(f"more than {LIMIT_S:g} s: {', '.join(above)}")


if __name__ == "__main__":
    main()
