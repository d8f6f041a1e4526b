"""Detection beside transformers' own DETR: same weights and image, interleaved in one run.

Both sides live in one process for each precision and take turns image by image; before timing, their logits
and boxes are compared. In float32 both run as they are built. In bfloat16 transformers' runs under autocast;
ours both with weights of that type and under autocast. Time is the median over the rounds, and the ratio is
taken round by round. Memory is the growth of the process's peak resident size during a side's first forward
passes, in a process of its own for each side, weights not counted.

The weights are random: those of transformers' class, with its own ResNet as the backbone, which computes what
timm's does.

    python benchmarks/detection_inference.py --rounds 9
    python benchmarks/detection_inference.py --precisions bfloat16 --size 480x640 --batch 4
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

MODELS = ("detr_r50", "detr_r101")
SIDES = {  # the first one is what the others are compared with
    "float32": ("transformers", "transformers_channels_last", "vitrail"),
    "bfloat16": ("transformers_autocast", "vitrail", "vitrail_autocast"),
}
TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2}  # of logits beside the largest, and of boxes
MEMORY_PASSES = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["detr_r50"], choices=MODELS)
    parser.add_argument("--precisions", nargs="+", default=list(SIDES), choices=list(SIDES))
    parser.add_argument("--size", default="800x1066", help="height and width in pixels")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", help="file to write the figures to")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(work(json.loads(arguments.worker))))
        return
    rows = []
    for name in arguments.models:
        for precision in arguments.precisions:
            task = {
                "name": name,
                "precision": precision,
                "size": [int(length) for length in arguments.size.split("x")],
                "batch": arguments.batch,
                "rounds": arguments.rounds,
            }
            row = {**task, **ask({**task, "job": "time"})}
            row["memory_mib"] = {side: ask({**task, "job": side})["mib"] for side in SIDES[precision]}
            rows.append(row)
            print(text_of(row), flush=True)
    import torch
    import transformers

    machine = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"command": sys.argv, **machine, "rows": rows}, file, indent=2)


def ask(task: dict[str, Any]) -> dict[str, Any]:
    """Let a process of its own do one job."""
    command = [sys.executable, __file__, "--worker", json.dumps(task)]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(finished.stdout.splitlines()[-1])


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Do one job: time all sides, or measure the memory of one."""
    import torch

    torch.manual_seed(0)
    images = torch.randn(task["batch"], 3, *task["size"])
    theirs, ours = build_sides(task["name"])
    if task["job"] != "time":
        return {"mib": growth_mib(forward_of(task["job"], theirs, ours, images, task["precision"]))}
    forwards = {
        side: forward_of(side, theirs, ours, images, task["precision"]) for side in SIDES[task["precision"]]
    }
    differences = {
        side: difference(forward(), theirs, images, TOLERANCE[task["precision"]])
        for side, forward in forwards.items()
    }
    seconds: dict[str, list[float]] = {side: [] for side in forwards}
    for _ in range(task["rounds"]):
        for side, forward in forwards.items():
            started = time.perf_counter()
            forward()
            seconds[side].append(time.perf_counter() - started)
    first, *others = forwards
    ratios = {
        side: [theirs_s / own_s for theirs_s, own_s in zip(seconds[first], seconds[side], strict=True)]
        for side in others
    }
    return {
        "differences": differences,
        "seconds": {side: statistics.median(values) for side, values in seconds.items()},
        "ratios": {
            side: [statistics.median(values), min(values), max(values)] for side, values in ratios.items()
        },
    }


def build_sides(name: str) -> tuple[Any, Any]:
    """Return transformers' model and ours with its weights, in evaluation mode."""
    import torch
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    from vitrail.models import MODELS as OURS
    from vitrail.weights.conversion import convert_to

    config = OURS[name]
    backbone = ResNetConfig(depths=list(config.backbone_depths), out_features=["stage4"])
    settings = DetrConfig(use_timm_backbone=False, backbone_config=backbone, num_labels=config.num_classes)
    theirs = DetrForObjectDetection(settings).eval()
    with torch.no_grad():
        for tensor_name, tensor in theirs.named_buffers():
            if tensor_name.endswith("normalization.weight"):
                tensor.fill_(0.7)  # as trained networks have them; with ones, random layers would explode
    ours = config.build().eval()
    ours.load_state_dict(convert_to(theirs.state_dict(), source="hf", config=config))
    return theirs, ours


def forward_of(side: str, theirs: Any, ours: Any, images: Any, precision: str) -> Callable[[], Any]:
    """Return the forward pass of one side."""
    import torch

    model = theirs if side.startswith("transformers") else ours
    if side.endswith("channels_last"):
        images = images.contiguous(memory_format=torch.channels_last)
        model = copy.deepcopy(model).to(memory_format=torch.channels_last)
    if side == "vitrail" and precision == "bfloat16":
        model, images = copy.deepcopy(model).bfloat16(), images.bfloat16()
    autocasts = side.endswith("autocast")

    def forward() -> Any:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=autocasts):
            return model(images)

    return forward


def difference(output: Any, theirs: Any, images: Any, tolerance: float) -> list[float]:
    """Return how far logits, of the largest, and boxes are from those of transformers in float32."""
    import torch

    with torch.inference_mode():
        expected = theirs(images)
    boxes = output.boxes if hasattr(output, "boxes") else output.pred_boxes
    logits_apart = (output.logits - expected.logits).abs().max() / expected.logits.abs().max()
    apart = [logits_apart.item(), (boxes - expected.pred_boxes).abs().max().item()]
    if not max(apart) <= tolerance:
        raise SystemExit(f"logits and boxes differ by {apart}")
    return apart


def growth_mib(forward: Callable[[], Any]) -> float:
    """Return by how much the peak resident size grows beyond what is resident now."""
    import psutil

    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # set the peak back to what is resident
    before = psutil.Process().memory_info().rss
    for _ in range(MEMORY_PASSES):
        forward()
    with open("/proc/self/status") as file:
        peak_kib = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    return (peak_kib * 1024 - before) / 2**20


def text_of(row: dict[str, Any]) -> str:
    lines = [f"{row['name']} {row['precision']}, batch {row['batch']}, {row['size'][0]}x{row['size'][1]}"]
    for side, seconds in row["seconds"].items():
        median, low, high = row["ratios"].get(side, (1.0, 1.0, 1.0))
        lines.append(
            f"  {side:27}{seconds:7.3f} s  ratio {median:.2f} ({low:.2f} to {high:.2f})  "
            f"{row['memory_mib'][side]:5.0f} MiB  difference {max(row['differences'][side]):.0e}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
