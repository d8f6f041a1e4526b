"""Detection beside transformers' own DETR: same weights and image, interleaved in one run.

Both sides live in one process for each precision and take turns image by image; before timing, their logits
and boxes are compared. In float32 both run as they are built; in bfloat16 transformers' runs under autocast,
ours both with weights of that type and under autocast. Settled is ours with the norms folded into the kernels
once, as a model for inference alone. Time is the median over the rounds, and the ratio is taken round by
round. Memory is measured in a process of its own for each side, which builds nothing else: by how much the
largest resident size exceeds the one before the model was built, and by how much the one after, when weights
were there.

The weights are random: those of transformers' class, with its own ResNet as the backbone, which computes what
timm's does.

    python benchmarks/detection_inference.py --rounds 9
    python benchmarks/detection_inference.py --precisions bfloat16 --size 480x640 --batch 4
"""

from __future__ import annotations

import argparse
import copy
import gc
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
    "float32": ("transformers", "transformers_channels_last", "vitrail", "vitrail_settled"),
    "bfloat16": ("transformers_autocast", "vitrail", "vitrail_settled", "vitrail_autocast"),
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
            row["memory_mib"] = {side: ask({**task, "job": side}) for side in SIDES[precision]}
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
    if task["job"] != "time":
        return measure_memory(task["job"], task["name"], images, task["precision"])
    theirs, ours = build_sides(task["name"])
    forwards = {
        side: forward_of(side, theirs if side.startswith("transformers") else ours, images, task["precision"])
        for side in SIDES[task["precision"]]
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
    from vitrail.models import MODELS as OURS
    from vitrail.models.weights.conversion import convert_to

    config, theirs = OURS[name], build_theirs(name)
    from vitrail.engines.cpu import accelerate

    ours = accelerate(config.build()).eval()
    ours.load_state_dict(convert_to(theirs.state_dict(), source="hf", config=config))
    return theirs, ours


def build_theirs(name: str) -> Any:
    """Return transformers' model with random weights, in evaluation mode."""
    import torch
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    from vitrail.models import MODELS as OURS

    config = OURS[name]
    backbone = ResNetConfig(depths=list(config.backbone_depths), out_features=["stage4"])
    settings = DetrConfig(use_timm_backbone=False, backbone_config=backbone, num_labels=config.num_classes)
    theirs = DetrForObjectDetection(settings).eval()
    with torch.no_grad():
        for tensor_name, tensor in theirs.named_buffers():
            if tensor_name.endswith("normalization.weight"):
                tensor.fill_(0.7)  # as trained networks have them; with ones, random layers would explode
    return theirs


def forward_of(
    side: str, model: Any, images: Any, precision: str, *, shares: bool = True
) -> Callable[[], Any]:
    """Return the forward pass of one side; a model that others share is copied before it is changed."""
    import torch

    from vitrail.engines.cpu import settle_norms

    changes = side.endswith(("channels_last", "settled")) or (side == "vitrail" and precision == "bfloat16")
    if changes and shares:
        model = copy.deepcopy(model)
    if side.endswith("channels_last"):
        images = images.contiguous(memory_format=torch.channels_last)
        model.to(memory_format=torch.channels_last)
    if side in ("vitrail", "vitrail_settled") and precision == "bfloat16":
        model, images = model.bfloat16(), images.bfloat16()
    if side == "vitrail_settled":
        settle_norms(model)
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


def measure_memory(side: str, name: str, images: Any, precision: str) -> dict[str, float]:
    """Build one side alone, and return by how much its peak exceeds what was resident before and after."""
    import torch

    from vitrail.models import MODELS as OURS

    with torch.inference_mode():  # what is loaded at the first product counts for no side
        torch.nn.functional.conv2d(images[:, :, :9, :9], torch.randn(3, 3, 3, 3))
    if side.startswith("transformers"):
        import transformers.models.detr.modeling_detr
        import transformers.models.resnet.modeling_resnet  # noqa: F401

    before = resident_mib()
    from vitrail.engines.cpu import accelerate

    model = build_theirs(name) if side.startswith("transformers") else accelerate(OURS[name].build()).eval()
    forward = forward_of(side, model, images, precision, shares=False)
    after = resident_mib()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # set the peak back to what is resident
    for _ in range(MEMORY_PASSES):
        forward()
    with open("/proc/self/status") as file:
        peak_kib = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    return {"with_weights": peak_kib / 2**10 - before, "without": peak_kib / 2**10 - after}


def resident_mib() -> float:
    """Return the resident size, garbage collected."""
    import psutil

    gc.collect()
    return psutil.Process().memory_info().rss / 2**20


def text_of(row: dict[str, Any]) -> str:
    lines = [f"{row['name']} {row['precision']}, batch {row['batch']}, {row['size'][0]}x{row['size'][1]}"]
    for side, seconds in row["seconds"].items():
        median, low, high = row["ratios"].get(side, (1.0, 1.0, 1.0))
        memory = row["memory_mib"][side]
        lines.append(
            f"  {side:27}{seconds:7.3f} s  ratio {median:.2f} ({low:.2f} to {high:.2f})  "
            f"peak {memory['with_weights']:5.0f} MiB, {memory['without']:5.0f} beside weights  "
            f"difference {max(row['differences'][side]):.0e}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
