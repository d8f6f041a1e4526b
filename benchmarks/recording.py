"""What recording attention costs: a plain forward pass, one that records, and one that follows relevance.

All take turns batch by batch in one process; the ratio is taken round by round, to the plain pass of the same
round. Limits of the project: every head of the last layer 1.10, the class token's row of every layer 1.15.

    python benchmarks/recording.py --rounds 15
    python benchmarks/recording.py --models vit_s16 --batch 1 --precisions float32
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

LIMITS = {"last layer, all heads": 1.10, "class token, all layers": 1.15}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["vit_b16"])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    import torch

    for name in arguments.models:
        for precision in arguments.precisions:
            for batch in arguments.batch:
                measure(name, precision, batch, arguments.rounds)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")


def measure(name: str, precision: str, batch: int, rounds: int) -> None:
    """Time all passes of one model in turns, and print their ratios to the plain one."""
    import torch

    from vitrail.engines.cpu import accelerate
    from vitrail.models import build

    torch.manual_seed(0)
    model = accelerate(build(name)).eval()
    images = torch.randn(batch, 3, *model.config.image_size)
    passes = make_passes(model, images, precision)
    seconds: dict[str, list[float]] = {each: [] for each in passes}
    for run in passes.values():
        run()
    for _ in range(rounds):
        for each, run in passes.items():
            started = time.perf_counter()
            run()
            seconds[each].append(time.perf_counter() - started)
    plain = seconds["plain"]
    print(f"{name} {precision} batch {batch}: plain {1000 * statistics.median(plain):.0f} ms", flush=True)
    for each, times in seconds.items():
        if each == "plain":
            continue
        ratios = [own / without for own, without in zip(times, plain, strict=True)]
        limit = LIMITS.get(each)
        judged = "" if limit is None else f"  limit {limit:.2f}"
        least = min(times) / min(plain)
        print(
            f"  {each:32} {statistics.median(ratios):.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f}; minima {least:.3f}){judged}",
            flush=True,
        )


def make_passes(model: Any, images: Any, precision: str) -> dict[str, Callable[[], Any]]:
    """Return what is timed, by name."""
    import torch

    from vitrail.interpret import record_attention
    from vitrail.interpret.relevance import class_relevance

    narrow = precision == "bfloat16"
    labels = torch.zeros(len(images), dtype=torch.long)

    def forward() -> Any:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            return model(images)

    def last_layer() -> Any:
        with record_attention(model, layers=-1) as maps:
            forward()
        return maps

    def class_rows() -> Any:
        with record_attention(model, queries=[0]) as maps:
            forward()
        return maps

    def all_layers() -> Any:
        with record_attention(model) as maps:
            forward()
        return maps

    def relevance() -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            return class_relevance(model, images, labels)

    return {
        "plain": forward,
        "last layer, all heads": last_layer,
        "class token, all layers": class_rows,
        "all layers, all heads": all_layers,
        "class relevance": relevance,
    }


if __name__ == "__main__":
    main()
