"""Training throughput of one ViT: vitrail beside timm, interleaved in one run, each in its best mode.

The model is the same on both sides: width 192, 6 blocks, 3 heads, patch 4, 32x32 pixels, class token,
10 classes, batch 256, AdamW. Every mode lives in a process of its own, which keeps the allocator and the
compiler's state of one from touching another; the processes take turns, one short burst each a round.

    make bench-env
    .venv-bench/bin/python benchmarks/train_step.py --rounds 7
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

MODES = (
    "timm eager float32",
    "timm eager bfloat16",
    "timm compiled float32",
    "timm compiled bfloat16",
    "vitrail float32",
    "vitrail bfloat16",
)
BATCH = 256
STEPS_PER_BURST = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="bursts per mode")
    parser.add_argument("--modes", nargs="*", default=list(MODES), help="default: all")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        serve(arguments.worker)
        return
    rates = measure(arguments.modes, arguments.rounds)
    report(rates)


def measure(modes: list[str], rounds: int) -> dict[str, list[float]]:
    """Return samples per second of every burst, the modes interleaved."""
    workers = {
        mode: subprocess.Popen(
            [sys.executable, __file__, "--worker", mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for mode in modes
    }
    for mode, worker in workers.items():
        print(f"warming up {mode}: {ask(worker)['seconds']:.1f} s", file=sys.stderr)
    rates: dict[str, list[float]] = {mode: [] for mode in modes}
    for _ in range(rounds):
        for mode, worker in workers.items():
            rates[mode].append(BATCH * STEPS_PER_BURST / ask(worker)["seconds"])
    for worker in workers.values():
        worker.communicate()
    return rates


def ask(worker: subprocess.Popen[str]) -> dict[str, float]:
    """Let a worker run one burst and return what it says."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()
    line = worker.stdout.readline()
    if not line:
        raise SystemExit(f"a worker stopped with exit code {worker.wait()}: see its message above")
    return json.loads(line)


def serve(mode: str) -> None:
    """Run one burst of steps for every line of standard input."""
    step = vitrail_step(mode.split()[-1]) if mode.startswith("vitrail") else timm_step(*mode.split()[1:])
    first = True
    for _ in sys.stdin:
        started = time.perf_counter()
        for _ in range(STEPS_PER_BURST):
            step()
        if first:
            first = False
            step()
        print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)


def random_batch():
    import torch

    generator = torch.Generator().manual_seed(0)
    images = torch.randn(BATCH, 3, 32, 32, generator=generator)
    return images, torch.randint(0, 10, (BATCH,), generator=generator)


def timm_step(mode: str, precision: str):
    """One optimiser step of timm's model, as its training script does it."""
    import torch

    from reference_models import import_timm

    import_timm()
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(img_size=32, patch_size=4, embed_dim=192, depth=6, num_heads=3, num_classes=10)
    model.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    forward = torch.compile(model) if mode == "compiled" else model
    images, labels = random_batch()

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            logits = forward(images)
        torch.nn.functional.cross_entropy(logits.float(), labels).backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def vitrail_step(precision: str):
    """One optimiser step of the same model by the library's own training step."""
    import torch

    from vitrail.data.preprocessing import Preprocessing
    from vitrail.engines.cpu import accelerate
    from vitrail.models import build, model_settings
    from vitrail.tasks.classification.objective import ClassificationObjective, ImageBatch
    from vitrail.tasks.classification.settings import ClassificationExperiment, ImageDataSettings
    from vitrail.train.machine import keep_freed_memory
    from vitrail.train.processes import single_process
    from vitrail.train.settings import OptimSettings, TrainSettings
    from vitrail.train.step import TrainStep

    keep_freed_memory()
    changes = {"image_size": (32, 32), "patch_size": 4, "width": 192, "depth": 6, "num_heads": 3}
    settings = model_settings("vit_ti16", num_classes=10, **changes)
    experiment = ClassificationExperiment(
        data=ImageDataSettings(source="random", image_size=(32, 32)),
        model=settings,
        optim=OptimSettings(name="adamw", clip_norm=0, ema_fraction=0),
        train=TrainSettings(steps=1000, batch_size=BATCH, precision=precision),
    )
    model = accelerate(build(settings.pop("name"), **settings))
    task = ClassificationObjective(10, Preprocessing(image_size=(32, 32)))
    train_step = TrainStep(task, model, experiment, single_process())
    images, labels = random_batch()
    batch = ImageBatch(
        images=images,
        targets=torch.nn.functional.one_hot(labels, 10).float(),
        labels=labels,
        indices=torch.arange(BATCH),
    )

    def step() -> None:
        train_step([batch], 0, experiment.train)

    return step


def report(rates: dict[str, list[float]]) -> None:
    """Print a table and the ratio of the best sides, paired by round."""
    import torch

    print(
        f"torch {torch.__version__}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, batch {BATCH}"
    )
    print(f"{'mode':26}{'samples/s: median':>18}{'min':>8}{'max':>8}")
    for mode, values in rates.items():
        print(f"{mode:26}{statistics.median(values):18.0f}{min(values):8.0f}{max(values):8.0f}")
    sides = {side: [mode for mode in rates if mode.startswith(side)] for side in ("timm", "vitrail")}
    if all(sides.values()):
        best = {
            side: max(modes, key=lambda mode: statistics.median(rates[mode])) for side, modes in sides.items()
        }
        pairs = [
            ours / theirs for ours, theirs in zip(rates[best["vitrail"]], rates[best["timm"]], strict=True)
        ]
        print(
            f"ratio {best['vitrail']} / {best['timm']}: median {statistics.median(pairs):.2f}, "
            f"from {min(pairs):.2f} to {max(pairs):.2f} over {len(pairs)} rounds"
        )


if __name__ == "__main__":
    main()
