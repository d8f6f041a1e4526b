"""Serve a model, load the server, and compare it with the engine alone: throughput, latency, errors, memory.

    python benchmarks/serving.py --model vit_b16 --requests 10000

A server is started as a process of its own; the load comes from this one, on the same cores. Throughput of
engine and server is measured in turn, round by round. The last part mixes malformed requests with good ones.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import itertools
import json
import math
import os
import random
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import psutil
import torch
from PIL import Image

from http_load import Reply, Request, ask_closed, ask_open
from vitrail.data.preprocessing import Preprocessing
from vitrail.models import build, model_settings
from vitrail.models.checkpoint import LoadedModel
from vitrail.tasks.classification.predictor import Predictor

PROBABILITY_TOLERANCE = 1e-3  # batches of other sizes add in another order
SHARE_OF_SATURATION = 0.7
WARM_UP_SHARE = 0.2  # of the long run, before memory is compared
CLIENTS_PER_BATCH = 3  # at saturation: enough that a batch waits whenever one is done


def main() -> None:
    """Measure and print."""
    options = read_options()
    images = read_images(options.images, options.size)
    with tempfile.TemporaryDirectory() as folder:
        source = options.run or save_untrained(options.model, Path(folder))
        predictor = Predictor(source, device="cpu", batch_size=options.max_batch)
        expected = [dict(predict(predictor, image)) for image in images]
        server, host, port = start_server(source, options)
        place = (host, port, f"/predict?top={options.top}")
        try:
            found = measure(predictor, images, expected, place, server.pid, options)
        finally:
            server.terminate()
            exit_code = server.wait(60)
    assert exit_code == 0, f"the server ended with {exit_code}"
    print(json.dumps({**found, **vars(options)}, default=str))


def measure(
    predictor: Predictor,
    images: list[bytes],
    expected: list[dict[str, float]],
    place: tuple[str, int, str],
    server: int,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Run all parts, print each, and return the figures."""
    good = [Request("image/jpeg", image, place) for place, image in enumerate(images)]
    clients = CLIENTS_PER_BATCH * options.max_batch
    asyncio.run(ask_closed(place, itertools.cycle(good), clients, min(options.seconds, 5)))  # warm

    engine, served = [], []
    for _ in range(options.rounds):
        engine.append(engine_throughput(predictor, images, options.seconds))
        replies, seconds = asyncio.run(ask_closed(place, itertools.cycle(good), clients, options.seconds))
        check(replies, expected)
        served.append(len(replies) / seconds)
    ratio = statistics.median(one / other for one, other in zip(served, engine, strict=True))
    print(f"throughput, batches of {options.max_batch}, median of {options.rounds} rounds")
    print(f"  engine alone, decoding counted   {statistics.median(engine):9.2f} images/s")
    print(f"  server at saturation             {statistics.median(served):9.2f} images/s   ratio {ratio:.3f}")

    rate = SHARE_OF_SATURATION * statistics.median(served)
    alone = engine_latency(predictor, images, options.singles)
    one, _ = asyncio.run(ask_closed(place, iter(good[i % len(good)] for i in range(options.singles)), 1))
    served_alone = statistics.median(reply.seconds for reply in one)
    print(f"latency of one: engine {1000 * alone:.1f} ms, server {1000 * served_alone:.1f} ms")
    count = max(int(rate * options.seconds * 2), 20)
    figures: dict[str, Any] = {}
    for arrivals in ("even", "random"):
        gaps = arrival_gaps(arrivals, rate, count)
        replies = asyncio.run(ask_open(place, [good[i % len(good)] for i in range(count)], gaps))
        check(replies, expected)
        p50, p99 = (percentile([reply.seconds for reply in replies], share) for share in (0.5, 0.99))
        figures[arrivals] = {"p50_ms": 1000 * p50, "p99_ms": 1000 * p99, "p99_over_engine": p99 / alone}
        print(
            f"  {arrivals:6} arrivals at {rate:.2f}/s, {count} requests: p50 {1000 * p50:.1f} ms, "
            f"p99 {1000 * p99:.1f} ms, {p99 / alone:.2f} times the engine's one, "
            f"{p99 / served_alone:.2f} times the server's"
        )
    mixture = measure_mixture(place, good, expected, server, clients, options)
    return {
        "engine_per_s": engine,
        "served_per_s": served,
        "ratio": ratio,
        "engine_one_ms": 1000 * alone,
        "served_one_ms": 1000 * served_alone,
        "at_70_percent": figures,
        "mixture": mixture,
    }


def measure_mixture(
    place: tuple[str, int, str],
    good: list[Request],
    expected: list[dict[str, float]],
    server: int,
    clients: int,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Send good and malformed requests, check every answer, and watch the memory of the server."""
    chooser = random.Random(0)
    bad = malformed(good[0].body)
    requests = [
        chooser.choice(bad) if chooser.random() < options.bad else chooser.choice(good)
        for _ in range(options.requests)
    ]
    process = psutil.Process(server)
    resident: list[float] = []

    def watched() -> Iterator[Request]:
        for number, request in enumerate(requests):
            if number % max(len(requests) // 100, 1) == 0:
                resident.append(process.memory_info().rss / 2**20)
            yield request

    replies, seconds = asyncio.run(ask_closed(place, watched(), clients))
    resident.append(process.memory_info().rss / 2**20)
    check(replies, expected)
    statuses = Counter((reply.request.kind, reply.status) for reply in replies)
    warm = resident[int(len(resident) * WARM_UP_SHARE) :]
    half = len(warm) // 2
    growth = statistics.mean(warm[half:]) - statistics.mean(warm[:half])
    print(f"{len(replies)} requests in {seconds:.0f} s, all answered as they should be:")
    for (kind, status), count in sorted(statuses.items()):
        print(f"  {kind:24} {status}  {count:6}")
    print(
        f"  memory after warm-up {warm[0]:.0f} MiB, at the end {warm[-1]:.0f} MiB, largest {max(warm):.0f} "
        f"MiB; second half less first {growth:+.1f} MiB"
    )
    return {
        "requests": len(replies),
        "statuses": {f"{kind} {status}": count for (kind, status), count in statuses.items()},
        "resident_mib": [round(each, 1) for each in resident],
        "growth_mib": growth,
    }


def check(replies: list[Reply], expected: list[dict[str, float]]) -> None:
    """See that every good request has the engine's answer, and every malformed one a 4xx that says why."""
    for reply in replies:
        if reply.request.expected is None:
            assert 400 <= reply.status < 500, (reply.request.kind, reply.status, reply.tree)
            assert reply.tree["error"]["remedy"], reply.tree
            continue
        assert reply.status == 200, (reply.status, reply.tree)
        scores = {each["class"]: each["probability"] for each in reply.tree["results"][0]["scores"]}
        wanted = dict(expected[reply.request.expected])
        worst = max(abs(score - wanted.pop(name)) for name, score in scores.items())
        assert worst <= PROBABILITY_TOLERANCE, (reply.request.expected, worst)
        missed = max(wanted.values(), default=0.0) - min(scores.values())
        assert missed <= PROBABILITY_TOLERANCE, (reply.request.expected, missed)


def malformed(image: bytes) -> list[Request]:
    """Return requests with which something is wrong."""
    encoded = base64.b64encode(image).decode()
    form = "multipart/form-data; boundary=b"
    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n"
    for name, content in ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(99)))):
        checked = name + content
        bomb += struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))
    return [
        Request("image/jpeg", image[: len(image) // 3], kind="cut off"),
        Request("image/jpeg", b"no image at all", kind="no image"),
        Request("image/png", bomb, kind="bomb"),
        Request("text/html", image, kind="other content type"),
        Request("application/json", b'{"image": "' + encoded.encode()[:-7], kind="broken JSON"),
        Request("application/json", json.dumps({"image": "%" + encoded}).encode(), kind="broken base64"),
        Request("application/json", json.dumps({"image": encoded, "top": -1}).encode(), kind="bad option"),
        Request("application/json", json.dumps({"image": encoded, "model": "?"}).encode(), kind="no model"),
        Request(form, b"--b\r\nContent-Disposition: form-data\r\n\r\n", kind="broken form"),
        Request("application/json", b"[" * 100_000, kind="deep JSON"),
        Request("image/jpeg", b"", kind="nothing"),
    ]


def engine_throughput(predictor: Predictor, images: list[bytes], seconds: float) -> float:
    """Return images per second of the engine in full batches, decoded in the same thread."""
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        batch = [images[(count + i) % len(images)] for i in range(predictor.batch_size)]
        classify(predictor, batch)
        count += len(batch)
    return count / (time.perf_counter() - began)


def engine_latency(predictor: Predictor, images: list[bytes], count: int) -> float:
    """Return the median seconds that the engine takes for one image."""
    taken = []
    for number in range(count):
        began = time.perf_counter()
        classify(predictor, [images[number % len(images)]])
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def predict(predictor: Predictor, image: bytes) -> tuple[tuple[str, float], ...]:
    """Return all probabilities of an encoded image, read as a file is."""
    with tempfile.NamedTemporaryFile(suffix=".jpg") as file:
        file.write(image)
        file.flush()
        (prediction,) = predictor.predict(file.name, top=len(predictor.class_names))
    assert prediction.error is None, prediction.error
    return prediction.scores


def classify(predictor: Predictor, images: list[bytes]) -> None:
    """Decode images as the server does, and classify them together."""
    predictor.classify(torch.stack([predictor.preprocessing.read(image) for image in images]))


def arrival_gaps(arrivals: str, rate: float, count: int) -> list[float]:
    """Return seconds between requests: all alike, or those of a Poisson process."""
    chooser = random.Random(1)
    return [1 / rate if arrivals == "even" else chooser.expovariate(rate) for _ in range(count)]


def percentile(values: list[float], share: float) -> float:
    """Return the value that so large a share of all does not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def read_images(folder: Path | None, size: int) -> list[bytes]:
    """Return JPEG files of a folder, or generated ones of some size."""
    if folder is not None:
        files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in (".jpg", ".jpeg"))
        return [file.read_bytes() for file in files[:: max(len(files) // 64, 1)]][:64]
    images = []
    for seed in range(16):
        coarse = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), dtype=np.uint8)
        encoded = io.BytesIO()
        picture = Image.fromarray(coarse).resize((size * 4 // 3, size), Image.Resampling.BICUBIC)
        picture.save(encoded, format="JPEG")
        images.append(encoded.getvalue())
    return images


def save_untrained(name: str, folder: Path) -> str:
    """Save a model with random weights, which takes as long as a trained one."""
    model = build(name)
    config: Any = model.config
    LoadedModel(
        model,
        model_settings=model_settings(name),
        preprocessing=Preprocessing(image_size=config.image_size).model_dump(mode="json"),
        class_names=[f"class {label}" for label in range(config.num_classes)],
        about={},
    ).save(folder / "untrained")
    return str(folder / "untrained")


def start_server(source: str, options: argparse.Namespace) -> tuple[subprocess.Popen[str], str, int]:
    """Start the command in a process of its own and wait until its model is ready."""
    command = [sys.executable, "-m", "vitrail", "serve", f"model={source}", "--port", "0", "--timeout", "600"]
    command += ["--max-batch", str(options.max_batch), "--max-wait-ms", str(options.max_wait_ms)]
    command += ["--queue", str(16 * CLIENTS_PER_BATCH * options.max_batch)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    assert server.stdout is not None
    found = re.search(r"http://([\d.]+):(\d+)", server.stdout.readline())
    assert found, "the server did not start"
    while not server.stdout.readline().startswith("ready"):
        assert server.poll() is None, "the server stopped"
    with urlopen(f"{found[0]}/readyz", timeout=60) as answer:
        assert answer.status == 200
    return server, found[1], int(found[2])


def read_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", help="a run directory of a classifier")
    parser.add_argument("--model", default="vit_b16", help="a model with random weights, without --run")
    parser.add_argument("--images", type=Path, help="a folder of JPEG files; generated ones without it")
    parser.add_argument("--size", type=int, default=256, help="height of generated images")
    parser.add_argument("--requests", type=int, default=10_000, help="of the mixture")
    parser.add_argument("--top", type=int, default=5, help="classes that a request asks for")
    parser.add_argument("--bad", type=float, default=0.05, help="share of them that is malformed")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--singles", type=int, default=30, help="requests for the latency of one")
    parser.add_argument("--max-batch", type=int, default=8)
    parser.add_argument("--max-wait-ms", type=float, default=2.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
