"""Speed of this checkout beside another one's, to show that a change of the code made nothing slower.

Every job runs in a process of its own on each side. The two take turns, burst by burst, and the ratio is
taken round by round: above 1, this checkout is faster. Models have random weights and are accelerated where
the checkout has a function for it.

    python benchmarks/two_checkouts.py path/to/old/checkout --rounds 9
    python benchmarks/two_checkouts.py path/to/old/checkout --jobs 'decode*' --rounds 15
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
IMAGE_MODELS = ("vit_s16", "vit_b16", "swin_t", "pvtv2_b2", "resnet50", "mixer_b16")
JOBS = [
    *(f"forward {name} {precision}" for name in IMAGE_MODELS for precision in ("float32", "bfloat16")),
    "detr float32",
    "detr bfloat16",
    *(f"decode beam {beam} batch {batch}" for beam in (1, 5) for batch in (1, 64)),
    *(f"decode recurrent beam {beam} batch 64" for beam in (1, 5)),
    "train vit",
    "train translator",
]
NUM_TOKENS = 24  # of a source and of what is written for it: random models never end a sentence


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("other", type=Path, help="a checkout of an earlier version")
    parser.add_argument("--jobs", nargs="+", default=["*"], help="patterns, such as 'forward*'")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker)
        return
    print(f"{'':32}{'this, ms':>10}{'other, ms':>11}{'other / this':>14}")
    for job in JOBS:
        if any(fnmatch(job, pattern) for pattern in arguments.jobs):
            print(compare(job, arguments.other.resolve(), arguments.rounds), flush=True)


def compare(job: str, other: Path, rounds: int) -> str:
    """Let both checkouts take turns with a job and return a line of the table."""
    workers = {name: start(job, root) for name, root in (("this", HERE), ("other", other))}
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    for worker in workers.values():
        ask(worker)  # warms up
    for number in range(rounds):
        for name in sorted(workers, reverse=number % 2 == 0):  # neither always comes first
            seconds[name].append(ask(workers[name]))
    for worker in workers.values():
        worker.communicate()
    ratios = [old / new for new, old in zip(seconds["this"], seconds["other"], strict=True)]
    this, that = (1000 * statistics.median(seconds[name]) for name in ("this", "other"))
    spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
    return f"{job:32}{this:10.1f}{that:11.1f}{statistics.median(ratios):8.3f}  {spread}"


def start(job: str, root: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, __file__, "-", "--worker", job]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)


def ask(worker: subprocess.Popen[str]) -> float:
    """Let a worker run its job once; the seconds it took."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()
    line = worker.stdout.readline()
    if not line:
        raise SystemExit(f"a worker stopped with exit code {worker.wait()}: see its message above")
    return float(json.loads(line))


def work(job: str) -> None:
    """Run a job once for every line of standard input and print the seconds."""
    kind, *words = job.split()
    run = {"forward": forward, "detr": detr, "decode": decode, "train": train}[kind](*words)
    for _ in sys.stdin:
        started = time.perf_counter()
        run()
        print(json.dumps(time.perf_counter() - started), flush=True)


def make(name: str, **settings: Any) -> Any:
    """Build a model as this process's checkout runs it on a CPU."""
    import torch

    from vitrail.models import build

    torch.manual_seed(0)
    model = build(name, **settings).eval()
    try:
        from vitrail.engines.cpu import accelerate
    except ImportError:  # before it was there, layers chose their kernels themselves
        return model
    return accelerate(model)


def forward(name: str, precision: str, *, shape: tuple[int, ...] = (8, 3, 224, 224)) -> Callable[[], object]:
    import torch

    images = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    dtype = getattr(torch, precision)
    model, images = make(name).to(dtype), images.to(dtype)

    def run() -> object:
        with torch.inference_mode():
            return model(images)

    return run


def detr(precision: str) -> Callable[[], object]:
    return forward("detr_r50", precision, shape=(1, 3, 800, 1066))


def decode(*words: str) -> Callable[[], object]:
    """Greedy decoding or beam search with a random model, a batch at a time."""
    import torch

    try:
        from vitrail.models.decoding import beam_search
    except ImportError:
        from vitrail.decode import beam_search

    beam, batch = int(words[-3]), int(words[-1])
    # Luong's decoder in either checkout: gru_additive became Bahdanau's.
    name = "rnn_additive" if words[0] == "recurrent" else "transformer_tiny"
    changes = {"cell": "gru"} if words[0] == "recurrent" else {}
    model = make(name, **changes, source_vocabulary_size=8000, target_vocabulary_size=8000)
    source = torch.randint(4, 8000, (batch, NUM_TOKENS), generator=torch.Generator().manual_seed(0))
    lengths = torch.full((batch,), NUM_TOKENS)
    ids = {"begin_id": model.config.begin_id, "end_id": model.config.end_id, "pad_id": model.config.pad_id}
    longest = torch.full_like(lengths, NUM_TOKENS)

    def run() -> None:
        with torch.inference_mode():
            for _ in range(8 if batch == 1 else 1):
                memory = model.start(source, lengths)
                beam_search(model, memory, max_lengths=longest, beam_size=beam, patience=1, **ids)

    return run


def train(what: str) -> Callable[[], object]:
    """Forward, backward and AdamW with a small ViT, or a translator, in bfloat16 autocast."""
    import torch
    from torch.nn import functional as F

    generator = torch.Generator().manual_seed(0)
    if what == "vit":
        model = make("vit_ti16", image_size=(32, 32), patch_size=4, depth=6, num_classes=10).train()
        inputs = (torch.randn(128, 3, 32, 32, generator=generator),)
        targets = torch.randint(0, 10, (128,), generator=generator)
    else:
        sizes = {"source_vocabulary_size": 8000, "target_vocabulary_size": 8000}
        model = make("transformer_tiny", **sizes).train()
        source, targets = torch.randint(4, 8000, (2, 64, NUM_TOKENS), generator=generator)
        inputs = (source, torch.full((64,), NUM_TOKENS), targets)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def run() -> None:
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(*inputs)
            F.cross_entropy(logits.float().flatten(0, -2), targets.flatten()).backward()
            optimiser.step()
            optimiser.zero_grad()

    return run


if __name__ == "__main__":
    main()
