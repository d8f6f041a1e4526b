"""Inference of four models by our engines and by other libraries, in one interleaved run on a CPU.

Every side is a process of its own with its own libraries and threads. In each round all take their turn, the
machine's fastest matrix product of the model's shape first; ratios and shares are taken round by round. A
side that cannot run stays in the table with the reason. Memory is the peak resident size of the side's
process in a pass, weights, libraries and what is left of exporting included.

    make bench-env
    .venv-bench/bin/python benchmarks/inference.py --rounds 9 --json inference.json
    .venv-bench/bin/python benchmarks/inference.py --models vit_b16 --batch 1 --precisions float32

What is compared: vitrail's torch, compiled, onnxruntime and openvino; timm eager (weights of the precision;
int8 by torch's dynamic quantisation), under autocast, and compiled; transformers; torchvision; plain ONNX
Runtime and plain OpenVINO, of timm's model, of DETR transformers', exported as their documentation says.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from inference_peers import PEERS
from vitrail.engines.bench import count_gmacs, make_batch, summarise
from vitrail.engines.choice import describe_machine
from vitrail.engines.contract import ENGINES, PRECISIONS
from vitrail.engines.remote import EngineError, RemoteEngine
from vitrail.engines.turns import Contender, find_versions, shape_for, start_products, take_turns
from vitrail.studies.benching import build_named
from vitrail.train.machine import count_cores

MODELS = ("vit_b16", "swin_t", "mvitv2_t", "detr_r50")
FOLDER = Path(__file__).resolve().parent
LIBRARIES = ("torch", "timm", "transformers", "torchvision", "onnxruntime", "openvino", "nncf")
OURS = tuple(f"vitrail {engine}" for engine in ENGINES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--sides", nargs="+", default=[*OURS, *PEERS], choices=[*OURS, *PEERS])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=count_cores())
    parser.add_argument("--size", help="height and width of images; 224x224, of detectors 800x1066")
    parser.add_argument("--apart", action="store_true", help="one precision after the other, to save memory")
    parser.add_argument("--json", help="file to write the figures to")
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")])  # for peers
    print(f"{describe_machine()}, {arguments.threads} threads; {find_versions(LIBRARIES)}")
    rows = []
    for model in arguments.models:
        groups = [[each] for each in arguments.precisions] if arguments.apart else [arguments.precisions]
        for precisions in groups:
            rows += measure(model, precisions, arguments)
    if arguments.json:
        about = {"command": sys.argv, "machine": describe_machine(), "versions": find_versions(LIBRARIES)}
        Path(arguments.json).write_text(json.dumps({**about, "rows": rows}, indent=2) + "\n")


def measure(model: str, precisions: list[str], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all sides of a model, and print the table."""
    usual = "800x1066" if model.startswith("detr") else "224x224"
    size = [int(length) for length in (arguments.size or usual).split("x")]
    loaded = build_named(model)
    loaded = loaded._replace(preprocessing={**loaded.preprocessing, "image_size": size})
    shape, gflops = shape_for(loaded.model), 2 * count_gmacs(loaded)
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        products = start_products(shape, precisions, stack, threads=arguments.threads)
        contenders: dict[int, Contender] = {}
        for precision in precisions:
            for side in arguments.sides:
                started = start(side, model, precision, size, arguments.threads, stack)
                for batch in arguments.batch:
                    row = {"model": model, "size": size, "side": side, "precision": precision, "batch": batch}
                    if isinstance(started, str):
                        row["reason"] = started
                    else:
                        contenders[len(rows)] = Contender(started, batch, f"{side} in {precision}")
                    rows.append(row)
        ceilings = take_turns(
            list(contenders.values()),
            products,
            shape=shape,
            make_batch=lambda batch: make_batch(loaded, batch),
            rounds=arguments.rounds,
            on_stage=lambda stage: print(stage, file=sys.stderr, flush=True),
        )
    fill(rows, contenders, ceilings, gflops)
    for precision, rates in ceilings.items():
        print(f"ceiling in {precision}: {statistics.median(rates):,.0f} GFLOP/s, {tuple(shape)}")
    add_ratios(rows)
    for batch in arguments.batch:
        print_table([row for row in rows if row["batch"] == batch])
    return rows


def start(
    side: str, model: str, precision: str, size: list[int], threads: int, stack: ExitStack
) -> RemoteEngine | str:
    """Start the process of a side; return why it cannot, where it cannot."""
    settings = {"model": model, "precision": precision, "size": size}
    function, name = ("build_ours", "engine") if side in OURS else ("build_peer", "side")
    settings[name] = side.removeprefix("vitrail ")
    print(f"starting {side}, {model} in {precision}", file=sys.stderr, flush=True)
    try:
        remote = RemoteEngine(f"inference_peers:{function}", settings, threads=threads)
    except EngineError as error:
        return error.reason
    return stack.enter_context(remote)


def fill(
    rows: list[dict[str, Any]],
    contenders: dict[int, Contender],
    ceilings: dict[Any, list[float]],
    gflops: float,
) -> None:
    """Write the figures of those that took turns into their rows, or why there are none."""
    for index, contender in contenders.items():
        row = rows[index]
        if contender.reason is not None:
            row["reason"] = contender.reason
            continue
        figures = summarise(
            contender.seconds,
            batch=row["batch"],
            gflops=gflops,
            ceilings=ceilings.get(row["precision"]),
        )
        row.update(figures)
        row["peak_mib"] = contender.peak_mib
        row["rates"] = [row["batch"] * len(each) / sum(each) for each in contender.seconds]


def add_ratios(rows: list[dict[str, Any]]) -> None:
    """Write into each row its rate over that of the fastest other library, round by round."""
    for row in rows:
        others = [
            other
            for other in rows
            if other["side"] in PEERS
            and "rates" in other
            and (other["precision"], other["batch"]) == (row["precision"], row["batch"])
        ]
        if not others or "rates" not in row:
            continue
        best = max(others, key=lambda other: other["images_per_s"])
        ratios = [own / theirs for own, theirs in zip(row["rates"], best["rates"], strict=True)]
        row["ratio"] = [statistics.median(ratios), min(ratios), max(ratios)]
        row["fastest_peer"] = best["side"]


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print the rows of one batch size as a table."""
    first = rows[0]
    height, width = first["size"]
    print(f"\n{first['model']}, {height}x{width}, batch {first['batch']}\n")
    print("| side | precision | images/s | p50 / p99 ms | MiB | of ceiling | to the fastest peer |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        label = f"| {row['side']} | {row['precision']} |"
        if "rates" not in row:
            print(f"{label} {row['reason']} | | | | |")
            continue
        share = "" if row["ceiling_share"] is None else f"{row['ceiling_share']:.2f}"
        ratio = ""
        if "ratio" in row:
            median, least, most = row["ratio"]
            ratio = f"{median:.2f} ({least:.2f} to {most:.2f}; {row['fastest_peer']})"
        print(
            f"{label} {row['images_per_s']:.2f} | {row['p50_ms']:.1f} / {row['p99_ms']:.1f} "
            f"| {row['peak_mib']:.0f} | {share} | {ratio} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
