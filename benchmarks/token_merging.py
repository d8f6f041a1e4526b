"""Accuracy against speed of token merging (Bolya et al. 2023), of a trained ViT on the data it suits.

Every model is scored on the whole split; then all take turns batch by batch in one process, and the ratio of
rates is taken round by round to the model without merging. The numbers at the points are tokens merged in
each block.

    vitrail train imagenette-224 --model vit_ti16 --name vit --budget 2h
    python benchmarks/token_merging.py runs/vit imagenette-224 --counts 0 2 4 8 12 16 -o token_merging.png
    python benchmarks/token_merging.py runs/vit imagenette-224 --schedules constant decreasing

Without a run, the speed alone of models with random weights, in turns:

    python benchmarks/token_merging.py --models vit_ti16 vit_s16 vit_b16 --counts 4 8 13 16 --batch 8
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("data", nargs="?")
    parser.add_argument("--models", nargs="+", help="names of models, in the place of a run and its data")
    parser.add_argument("--counts", nargs="+", type=int, default=[0, 2, 4, 8, 12, 16])
    parser.add_argument("--schedules", nargs="+", default=["constant"], choices=["constant", "decreasing"])
    parser.add_argument("--split", default="test")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", "-o", type=Path, default=Path("token_merging.png"))
    parser.add_argument("--json", type=Path, help="write the points here, too")
    arguments = parser.parse_args()
    if arguments.models:
        for name in arguments.models:
            time_model(name, arguments)
        return
    if arguments.data is None:
        parser.error("name a run and its data, or --models")

    from vitrail.studies.merging import merging_png, token_merging_curve

    points = token_merging_curve(
        arguments.run,
        arguments.data,
        counts=arguments.counts,
        schedules=arguments.schedules,
        split=arguments.split,
        batch_size=arguments.batch,
        rounds=arguments.rounds,
        on_point=lambda what: print(what, flush=True),
    )
    print(f"{'merged':>6}  {'schedule':10}  {'accuracy':>8}  {'images/s':>9}  speed (least to greatest)")
    for point in points:
        low, high = point.speed_range
        print(
            f"{point.num_merged:6}  {point.schedule:10}  {point.accuracy:8.2%}  {point.images_per_s:9.1f}  "
            f"{point.speed:.2f} ({low:.2f} to {high:.2f})"
        )
    plain = points[0]
    curves = {
        schedule: [
            (point.speed, point.accuracy, point.num_merged)
            for point in (plain, *points[1:])
            if point is plain or point.schedule == schedule
        ]
        for schedule in arguments.schedules
    }
    arguments.output.write_bytes(merging_png(curves, title=f"Token merging: {arguments.run.name}"))
    print(arguments.output)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([point._asdict() for point in points], indent=2) + "\n")


def time_model(name: str, arguments: argparse.Namespace) -> None:
    """Time a model with random weights and without gradients, with each count in turn, and print ratios."""
    import torch

    from vitrail.engines.cpu import accelerate
    from vitrail.models import build
    from vitrail.models.merged import merge_tokens

    torch.manual_seed(0)
    model = accelerate(build(name)).eval()
    images = torch.randn(arguments.batch, 3, *model.config.image_size)  # type: ignore[misc, union-attr]
    sides = {0: model, **{count: merge_tokens(model, count) for count in arguments.counts if count}}
    seconds: dict[int, list[float]] = {count: [] for count in sides}
    with torch.inference_mode():
        for side in sides.values():
            side(images)
        for _ in range(arguments.rounds):
            for count, side in sides.items():
                began = time.perf_counter()
                side(images)
                seconds[count].append(time.perf_counter() - began)
    for count, own in seconds.items():
        ratios = [plain / merged for plain, merged in zip(seconds[0], own, strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{name}  {count:2} merged  {statistics.median(ratios):.2f} ({spread})", flush=True)


if __name__ == "__main__":
    main()
