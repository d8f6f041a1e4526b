"""Forward pass of six models beside timm's own: same weights, images and precision, interleaved in one run.

Both sides live in one process for each model and precision and take turns image batch by image batch; before
timing, their logits are compared. Time is the minimum and the median over the rounds, and the ratio is taken
round by round. Memory is the growth of the process's peak resident size during a side's first forward passes,
in a process of its own for each side, weights not counted.

    make bench-env
    .venv-bench/bin/python benchmarks/forward.py --rounds 9
    .venv-bench/bin/python benchmarks/forward.py --models swin_t --precisions bfloat16 --compile
    .venv-bench/bin/python benchmarks/forward.py --device cuda --batch 64 --precisions bfloat16
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

PAIRS = {  # ours: timm's
    "vit_s16": "vit_small_patch16_224",
    "vit_b16": "vit_base_patch16_224",
    "swin_t": "swin_tiny_patch4_window7_224",
    "pvtv2_b2": "pvt_v2_b2",
    "mixer_b16": "mixer_b16_224",
    "resnet50": "resnet50",
}
SIDES = ("timm", "vitrail")
TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2}  # of the largest logit
MEMORY_PASSES = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(PAIRS), choices=list(PAIRS))
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"], choices=list(TOLERANCE))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true", help="compile both sides with torch.compile")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(work(json.loads(arguments.worker))))
        return
    rows = []
    for precision in arguments.precisions:
        for name in arguments.models:
            task = {
                "name": name,
                "precision": precision,
                "batch": arguments.batch,
                "rounds": arguments.rounds,
                "device": arguments.device,
                "compile": arguments.compile,
            }
            row = {**task, **ask({**task, "job": "time"})}
            if arguments.device == "cpu":
                row["memory_mib"] = {side: ask({**task, "job": side})["mib"] for side in SIDES}
            rows.append(row)
            print(line_of(row), flush=True)
    for precision in arguments.precisions:
        ratios = [row["ratio"] for row in rows if row["precision"] == precision]
        mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
        print(f"{precision}: geometric mean {mean:.2f} over {len(ratios)} models, least {min(ratios):.2f}")
    import torch

    print(f"torch {torch.__version__}, {os.cpu_count()} cores, {torch.get_num_threads()} threads")


def ask(task: dict[str, Any]) -> dict[str, Any]:
    """Let a process of its own do one job."""
    command = [sys.executable, __file__, "--worker", json.dumps(task)]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(finished.stdout.splitlines()[-1])


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Do one job: time both sides, or measure the memory of one."""
    import torch

    torch.manual_seed(0)
    images = torch.randn(task["batch"], 3, 224, 224, device=task["device"])
    sides = build_sides(task["name"])
    if task["job"] in SIDES:
        return {"mib": growth_mib(forward_of(sides[task["job"]], images, task))}
    forwards = {side: forward_of(model, images, task) for side, model in sides.items()}
    expected, ours = forwards["timm"]().float(), forwards["vitrail"]().float()
    difference = ((expected - ours).abs().max() / expected.abs().max()).item()
    if not difference <= TOLERANCE[task["precision"]]:
        raise SystemExit(f"{task['name']}: the logits differ by {difference:.1e} of the largest")
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(task["rounds"]):
        for side, forward in forwards.items():
            started = time.perf_counter()
            forward()
            if images.is_cuda:
                torch.cuda.synchronize()
            seconds[side].append(time.perf_counter() - started)
    ratios = [theirs / own for theirs, own in zip(seconds["timm"], seconds["vitrail"], strict=True)]
    return {
        "difference": difference,
        "ratio": statistics.median(ratios),
        "ratios": [min(ratios), max(ratios)],
        "best_ratio": min(seconds["timm"]) / min(seconds["vitrail"]),
        "images_per_s": {side: task["batch"] / statistics.median(values) for side, values in seconds.items()},
    }


def build_sides(name: str) -> dict[str, Any]:
    """Return timm's model and ours with its weights, in evaluation mode."""
    from reference_models import import_timm

    import_timm()
    import timm
    import torch

    from vitrail.engines.cpu import accelerate
    from vitrail.models import build
    from vitrail.models.weights.conversion import convert

    theirs = timm.create_model(PAIRS[name], num_classes=1000).eval()
    for parameter in theirs.parameters():  # a head of zeros would make all logits equal
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)
    ours = accelerate(build(name)).eval()
    ours.load_state_dict(convert(theirs.state_dict(), source="timm", model=name))
    return {"timm": theirs, "vitrail": ours}


def forward_of(model: Any, images: Any, task: dict[str, Any]) -> Callable[[], Any]:
    """Return a forward pass in the wanted precision."""
    import torch

    model = model.to(images.device)
    if task["compile"]:
        model = torch.compile(model)

    def forward() -> Any:
        narrow = task["precision"] == "bfloat16"
        with torch.inference_mode(), torch.autocast(images.device.type, torch.bfloat16, enabled=narrow):
            return model(images)

    forward()
    return forward


def growth_mib(forward: Callable[[], Any]) -> float:
    """Return by how much the peak resident size grows beyond what is resident now."""
    import psutil

    status = "/proc/self/clear_refs"
    with open(status, "w") as file:
        file.write("5")  # set the peak back to what is resident
    before = psutil.Process().memory_info().rss
    for _ in range(MEMORY_PASSES):
        forward()
    with open("/proc/self/status") as file:
        peak_kib = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    return (peak_kib * 1024 - before) / 2**20


def line_of(row: dict[str, Any]) -> str:
    rates, low_high = row["images_per_s"], row["ratios"]
    memory = row.get("memory_mib")
    text = (
        f"{row['name']:10}{row['precision']:9} batch {row['batch']:3}  "
        f"timm {rates['timm']:6.1f}  vitrail {rates['vitrail']:6.1f} images/s  "
        f"ratio {row['ratio']:.2f} ({low_high[0]:.2f} to {low_high[1]:.2f}; minima {row['best_ratio']:.2f})  "
        f"difference {row['difference']:.0e}"
    )
    return text + (f"  MiB {memory['timm']:.0f} / {memory['vitrail']:.0f}" if memory else "")


if __name__ == "__main__":
    main()
