"""Accuracy after a minute and after five, and the share of the time that reading samples takes."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from kit import Job, Setting, SkipError, wait
from systems import environment, run

SETS = ("fashion-mnist", "cifar10")
BATCHES = 100


def accuracy(name: str, minutes: float, model: str | None = None) -> Job:
    def job(setting: Setting) -> dict[str, Any]:
        data = data_of(name, setting)
        title = "-".join(filter(None, [name, model, f"{minutes:g}m"]))
        folder = setting.output / setting.device / title
        shutil.rmtree(folder, ignore_errors=True)
        budget = ["--set", "train.steps=2"] if setting.quick else ["--budget", f"{minutes:g}m"]
        chosen = ["--model", model] if model else []
        started = time.monotonic()
        place = ["--output", str(folder.parent), "--name", title]
        command = [sys.executable, "-m", "vitrail", "train", str(data), *budget, *chosen, *place]
        run(command, environment(setting))
        took = time.monotonic() - started
        score = json.loads((folder / "report.json").read_text())["scores"]["accuracy"]
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        rates = [line["samples_per_s"] for line in lines if line["kind"] == "train"]
        rate = statistics.median(rates)
        shown = f"accuracy {score:.4f} after {took:.0f} s, {rate:.0f} images/s"
        return {"shows": shown, "accuracy": score, "seconds_of_all": took, "images_per_s": rate}

    return Job(job, 60 * minutes * 1.05 + 30, rehearsed=(name, minutes, model) == (SETS[0], 1, None))


def data_of(name: str, setting: Setting) -> Path | str:
    if setting.quick:
        return "digits"
    if not (setting.data / name).is_dir():
        raise SkipError(f"there is no {setting.data / name}; name the folder of data sets with --data")
    return setting.data / name


def reading(setting: Setting) -> dict[str, Any]:
    """Time steps with batches as they are read, beside steps with one batch again and again."""
    from vitrail.tasks.preparing import prepare
    from vitrail.tasks.request import Request
    from vitrail.train.processes import join_processes
    from vitrail.train.step import TrainStep

    data = data_of("cifar10", setting)
    batches = setting.pick(BATCHES, 2)
    request = Request.from_tree({"source": data, "changes": {"train.steps": 1000}, "output": setting.output})
    with join_processes("cuda" if setting.is_gpu else "cpu") as processes:
        prepared = prepare(request, processes)
        settings = prepared.experiment.train
        step = TrainStep(prepared.parts.objective, prepared.parts.model, prepared.experiment, processes)
        found: dict[str, float] = {}
        for name, part in (("warm", 3), ("read", batches), ("repeated", batches)):
            source = step.batches(prepared.parts.train, 0, part)
            first = next(source)
            wait(setting)
            started = time.perf_counter()
            for number in range(1, part):
                step(first if name == "repeated" else next(source), number, settings)
            wait(setting)
            found[name] = (time.perf_counter() - started) / max(1, part - 1)
    share = max(0.0, 1 - found["repeated"] / found["read"])
    rate = settings.batch_size / found["read"]
    shown = f"reading and augmenting take {share:.0%} of a step of {1000 * found['read']:.1f} ms"
    return {"shows": f"{shown}, {rate:.0f} images/s", "seconds": found, "workers": settings.num_workers}


JOBS = {
    "reading": Job(reading, 60),
    **{f"{name}_{minutes}m": accuracy(name, minutes) for name in SETS for minutes in (1, 5)},
    "cifar10_resnet18_5m": accuracy("cifar10", 5, "resnet18"),
}
