"""What is to be shown on a GPU: one command that can be stopped, goes on, and writes a table as it goes.

Each job runs in a process of its own with a time limit, so that one that fails, hangs or runs out of memory
costs no other. Results are kept in runs/gpu/results.json; jobs that passed are not run again.

    make gpu                           # every part, at most 40 minutes
    make gpu PART=parity MINUTES=9     # one part, and no job that could end after 9 minutes
    make gpu DEVICE=cpu QUICK=1        # the rehearsal, in a minute
    python benchmarks/gpu/kit.py --list
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import signal
import statistics
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
PARTS = ("machine", "parity", "speed", "maps", "systems", "accuracy")
NEARLY_FREE = 0.9  # of the GPU's memory
STOP_S = 10.0  # from the signal to the kill


@dataclass(frozen=True)
class Setting:
    """How a job is to run."""

    device: str
    quick: bool
    """Whether only to show that the job runs: small models, few rounds."""
    data: Path
    """Folder of data sets."""
    output: Path
    """Folder for what the job writes."""

    def pick(self, full: Any, quick: Any) -> Any:
        return quick if self.quick else full

    @property
    def is_gpu(self) -> bool:
        return self.device == "cuda"


class Job(NamedTuple):
    run: Callable[[Setting], dict[str, Any]]
    """Returns figures, and under ``shows`` the sentence of the table; raises what is wrong."""
    limit_s: float
    """On a GPU."""
    rehearsed: bool = True
    """Whether it runs in the rehearsal; not if another job runs the same code."""


class SkipError(Exception):
    """The job cannot run here; its text says why."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--quick", action="store_true", help="only show that every job runs")
    parser.add_argument("--part", nargs="+", default=list(PARTS), help="parts, or jobs such as speed.ceiling")
    parser.add_argument("--minutes", type=float, default=40.0, help="start no job that could end later")
    parser.add_argument("--again", action="store_true", help="also run jobs that passed before")
    parser.add_argument("--data", type=Path, default=REPOSITORY.parent / "shared" / "data")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "runs" / "gpu")
    parser.add_argument("--list", action="store_true", help="list the jobs and their limits in seconds")
    asked = parser.parse_args()
    sys.path[:0] = [str(HERE), str(REPOSITORY / "benchmarks"), str(REPOSITORY / "tests")]
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0" if asked.device == "cuda" else "")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    jobs = {name: job for name, job in all_jobs().items() if is_asked(name, asked.part)}
    if not jobs:
        parser.error(f"there is no part {' '.join(asked.part)}; choose among {', '.join(PARTS)}")
    if asked.list:
        print("\n".join(f"{name:28}{job.limit_s:5.0f} s" for name, job in jobs.items()))
        return
    setting = Setting(asked.device, asked.quick, asked.data.resolve(), asked.output.resolve())
    results = Results(setting)
    machine = results.run("machine.found", all_jobs()["machine.found"])
    for sentence in machine.get("notes", []):
        print(sentence, flush=True)
    if not machine.get("has_device"):
        setting = Setting("cpu", True, setting.data, setting.output)
        results.setting = setting
        print("Each job only shows that it runs, on the CPU.", flush=True)
    ends_at = time.monotonic() + 60 * asked.minutes
    left = []
    for name, job in jobs.items():
        if name == "machine.found" or (results.has_passed(name) and not asked.again):
            continue
        if setting.quick and not job.rehearsed:
            continue
        if time.monotonic() + (0 if setting.quick else job.limit_s) > ends_at:
            left.append(name)
            continue
        results.run(name, job)
    bad = results.bad(jobs)
    here = [
        found["result"] for name, found in results.found.items() if name in jobs and results.is_here(found)
    ]
    counts = ", ".join(f"{number} {result}" for result, number in Counter(here).items())
    print(f"{counts}: {results.table_path}")
    if left:
        print(f"no time for {', '.join(left)}: run the command again, which goes on")
    if bad:
        raise SystemExit(f"failed: {', '.join(bad)}; logs in {setting.output / 'logs'}")


def all_jobs() -> dict[str, Job]:
    import accuracy
    import maps
    import parity
    import speed
    import systems

    modules = {"parity": parity, "speed": speed, "maps": maps, "systems": systems, "accuracy": accuracy}
    jobs = {"machine.found": Job(find_machine, 60)}
    return jobs | {f"{part}.{name}": job for part, each in modules.items() for name, job in each.JOBS.items()}


def is_asked(name: str, parts: list[str]) -> bool:
    return name in parts or name.partition(".")[0] in parts


def find_machine(setting: Setting) -> dict[str, Any]:
    """Say in one sentence each what is the matter with the GPU."""
    from vitrail.train.installation import describe_installation

    found = describe_installation()
    notes = list(found["problems"])
    facts: dict[str, Any] = {"installation": found, "notes": notes, "has_device": not setting.is_gpu}
    facts["shows"] = found["hardware"].get("cpu", "a CPU")
    if not setting.is_gpu:
        return facts
    import torch

    if not torch.cuda.is_available():
        return {**facts, "shows": "no GPU", "notes": notes or ["PyTorch finds no GPU, and no driver of one."]}
    try:
        name = torch.cuda.get_device_name(0)
        free, total = torch.cuda.mem_get_info(0)
        torch.ones(1, device="cuda").add_(1).item()
    except (
        RuntimeError
    ) as error:  # as of a GPU that another process holds alone, or that PyTorch is too new for
        notes.append(f"The GPU cannot be used: {str(error).strip().splitlines()[0]}")
        return {**facts, "shows": "a GPU that cannot be used"}
    if free < NEARLY_FREE * total:
        notes.append(f"{free / 2**30:.0f} of {total / 2**30:.0f} GiB are free: other programs hold the rest.")
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        notes.append(f"{name} has no bfloat16: jobs in bfloat16 run in float32.")
    if (count := len(gpus_of_machine())) > 1:
        notes.append(f"{count} GPUs are here, and one is used: set CUDA_VISIBLE_DEVICES for another.")
    shows = f"{name}, {total / 2**30:.0f} GiB, torch {torch.__version__}"
    return {**facts, "has_device": True, "shows": shows, "free_gib": free / 2**30}


def gpus_of_machine() -> list[str]:
    """Return NVIDIA's GPUs on Linux, also those that CUDA_VISIBLE_DEVICES hides."""
    folder = Path("/proc/driver/nvidia/gpus")
    return sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []


class Results:
    """The results so far, on the disk after each job."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.path, self.table_path = setting.output / "results.json", setting.output / "table.md"
        setting.output.mkdir(parents=True, exist_ok=True)
        (setting.output / "logs").mkdir(exist_ok=True)
        try:
            self.found: dict[str, dict[str, Any]] = json.loads(self.path.read_text())
        except (OSError, ValueError):
            self.found = {}

    def has_passed(self, name: str) -> bool:
        found = self.found.get(name, {})
        return found.get("result") == "passed" and self.is_here(found)

    def is_here(self, found: dict[str, Any]) -> bool:
        return (found.get("device"), found.get("quick")) == (self.setting.device, self.setting.quick)

    def bad(self, jobs: dict[str, Job]) -> list[str]:
        found = {name: self.found.get(name, {}) for name in jobs}
        return [name for name, each in found.items() if each.get("result") in ("failed", "timed out")]

    def run(self, name: str, job: Job) -> dict[str, Any]:
        """Run a job, write its result and the table, and return its figures."""
        started = time.monotonic()
        log = self.setting.output / "logs" / f"{name}.txt"
        result, figures = run_apart(job, self.setting, log)
        took = time.monotonic() - started
        facts = {"result": result, "seconds": round(took, 1), "quick": self.setting.quick}
        self.found[name] = {**facts, "device": self.setting.device, **figures}
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.found, indent=1))
        part.replace(self.path)
        self.table_path.write_text(self.table())
        print(f"{name:28}{result:10}{took:6.1f} s  {figures.get('shows', '')}", flush=True)
        return figures

    def table(self) -> str:
        lines = ["| job | result | seconds | what it shows |", "|---|---|---|---|"]
        for name, found in self.found.items():
            shows = str(found.get("shows", "")).replace("|", "/").replace("\n", " ")
            where = found["device"] + (", quick" if found["quick"] else "")
            lines.append(f"| {name} ({where}) | {found['result']} | {found['seconds']} | {shows} |")
        return "\n".join(lines) + "\n"


def run_apart(job: Job, setting: Setting, log: Path) -> tuple[str, dict[str, Any]]:
    """Run a job in a fork, which has all modules but has not touched the GPU."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(job, setting, log, sending))
    process.start()
    sending.close()
    result, figures = "timed out", {"shows": f"not done after {job.limit_s:.0f} s"}
    try:
        if receiving.poll(job.limit_s):
            result, figures = receiving.recv()
    except EOFError:  # it died without a word
        process.join()
        result, figures = "failed", {"shows": f"the process ended with exit code {process.exitcode}"}
    finally:  # Ctrl-C, too
        stop(process)
    return result, figures


def stop(process: Any) -> None:
    """End a job and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        process.join(STOP_S)
    process.join()


def work(job: Job, setting: Setting, log: Path, sending: Connection) -> None:
    os.setsid()  # a group, so that what it starts ends with it
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            declare_operators()
            outcome = "passed", job.run(setting)
        except SkipError as reason:
            outcome = "skipped", {"shows": str(reason)}
        except BaseException as error:
            traceback.print_exc()
            last = str(error).strip().splitlines() or [""]
            outcome = "failed", {"shows": f"{type(error).__name__}: {last[0][:300]}"}
        sys.stdout.flush()
        sending.send(outcome)
        sending.close()
        os._exit(0)  # whatever threads a library has left


def declare_operators() -> None:
    """Let timm and transformers import a torchvision that does not fit a CPU build of torch."""
    import torch

    if torch.version.cuda is None and importlib.util.find_spec("torchvision") is not None:
        from reference_models import import_timm

        import_timm()


def needs_gpu(setting: Setting, what: str) -> None:
    if not setting.is_gpu:
        raise SkipError(f"{what} need a GPU")


def needs_package(*names: str) -> None:
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise SkipError(f"{name} is not installed")


def precision_of(setting: Setting) -> str:
    """Return bfloat16 where the GPU has it, else float32."""
    import torch

    if setting.is_gpu and not torch.cuda.is_bf16_supported(including_emulation=False):
        return "float32"
    return "bfloat16"


def autocast(setting: Setting, precision: str) -> Any:
    import torch

    return torch.autocast(setting.device, torch.bfloat16, enabled=precision == "bfloat16")


def wait(setting: Setting) -> None:
    if setting.is_gpu:
        import torch

        torch.cuda.synchronize()


def take_turns(
    sides: dict[str, Callable[[], Any]], setting: Setting, *, rounds: int, bursts: int = 1
) -> dict[str, list[float]]:
    """Time all sides in turns, after two bursts each; returns seconds per call, by round."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(-2, rounds):
        for name, call in sides.items():
            wait(setting)
            started = time.perf_counter()
            for _ in range(bursts):
                call()
            wait(setting)
            if number >= 0:
                seconds[name].append((time.perf_counter() - started) / bursts)
    return seconds


def ratio(seconds: dict[str, list[float]], side: str, other: str) -> str:
    """Return by how much one side is faster than the other: median and range over the rounds."""
    pairs = [theirs / ours for ours, theirs in zip(seconds[side], seconds[other], strict=True)]
    return f"{statistics.median(pairs):.2f} ({min(pairs):.2f} to {max(pairs):.2f})"


def fastest(seconds: dict[str, list[float]], side: str) -> str:
    """Return the fastest mode of a side, by median."""
    modes = [name for name in seconds if name.startswith(side)]
    return min(modes, key=lambda name: statistics.median(seconds[name]))


if __name__ == "__main__":
    import kit  # the jobs import it by this name, too

    kit.main()
