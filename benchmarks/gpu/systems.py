"""Training, resuming, exporting and serving on the GPU: what a user does, end to end."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kit import REPOSITORY, Job, Setting, needs_gpu, needs_package, precision_of, ratio, take_turns
from speed import LABELS, our_step, small_vit


def environment(setting: Setting, **others: str) -> dict[str, str]:
    path = os.pathsep.join([str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")])
    hidden = {} if setting.is_gpu else {"CUDA_VISIBLE_DEVICES": ""}
    return {**os.environ, "PYTHONPATH": path, **hidden, **others}


def vitrail(*arguments: object) -> None:
    """Run the command in this process, which has imported what it needs."""
    from vitrail.cli import main

    print("$ vitrail", *arguments, flush=True)
    code = main([str(each) for each in arguments])
    assert code == 0, f"vitrail {arguments[0]}: exit code {code}"


def run(command: list[str], variables: dict[str, str]) -> str:
    print("$", *command, flush=True)
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    print(ended.stdout, ended.stderr, flush=True)
    last = (ended.stderr.strip().splitlines() or [""])[-1]
    assert ended.returncode == 0, f"exit code {ended.returncode}: {last}"
    return ended.stdout


def small_run(setting: Setting) -> Path:
    """Return a run of a few steps on the built-in digits, trained once."""
    folder = setting.output / setting.device / "digits"
    if not (folder / "report.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        vitrail("train", "digits", *small_training(setting, folder))
    return folder


def small_training(setting: Setting, folder: Path, **settings: object) -> list[str]:
    # AdamW, as Muon needs whole matrices, which FSDP does not have.
    chosen = {"train.steps": setting.pick(200, 2), "train.validations": 1, "optim.name": "adamw", **settings}
    sets = [f"--set={name}={value}" for name, value in chosen.items()]
    return ["--output", str(folder.parent), "--name", folder.name, "--seed", "0", *sets]


def trained(setting: Setting) -> dict[str, Any]:
    """Train on the device that is chosen without asking, and read the choices' reasons."""
    folder = small_run(setting)
    record = json.loads((folder / "choices.json").read_text())
    reasons = {each["setting"]: f"{each['value']}: {each['reason']}" for each in record["choices"]}
    report = json.loads((folder / "report.json").read_text())
    used = json.loads((folder / "environment.json").read_text())
    assert bool(used["gpus"]) == setting.is_gpu, f"the run names the GPUs {used['gpus']}"
    return {"shows": f"digits: accuracy {report['scores']['accuracy']:.3f}", "choices": reasons}


def launched(parallel: str) -> Job:
    """Train as the only process of torchrun, sharded or not, and compare with a plain training."""

    def job(setting: Setting) -> dict[str, Any]:
        plain = small_run(setting)
        folder = plain.with_name(f"digits-{parallel}")
        shutil.rmtree(folder, ignore_errors=True)
        config = ["digits", "--config", str(plain / "config.json")]
        given = ["--output", str(folder.parent), "--name", folder.name, "--set", f"train.parallel={parallel}"]
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
        run([*launcher, "-m", "vitrail", "train", *config, *given], environment(setting))
        losses = [last_loss(each) for each in (plain, folder)]
        apart = abs(losses[1] / losses[0] - 1)
        assert apart < 0.1, f"loss {losses[1]:.4f} instead of {losses[0]:.4f}"
        return {"shows": f"last loss {losses[1]:.4f}, plain {losses[0]:.4f}"}

    return Job(job, 60, rehearsed=parallel == "fsdp")


def last_loss(folder: Path) -> float:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return float([line["loss"] for line in lines if line["kind"] == "train"][-1])


def resumed(setting: Setting) -> dict[str, Any]:
    """Load each device's checkpoint on the other one, and take the next step on both."""
    from vitrail.models.checkpoint import state_tensors
    from vitrail.train.checkpoints import Position, Selected, load_training, save_training

    images, labels = torch.randn(8, 3, 32, 32), torch.randint(0, LABELS, (8,))
    root = setting.output / setting.device / "checkpoints"
    shutil.rmtree(root, ignore_errors=True)

    def start(device: str) -> tuple[Any, Any]:
        there = dataclasses.replace(setting, device=device)
        return our_step(small_vit(), images.to(device), labels.to(device), "float32", there)

    apart = 0.0
    for source, target in (("cpu", setting.device), (setting.device, "cpu")):
        (first, batch), (second, there) = start(source), start(target)
        for number in range(3):
            first([batch], number, first.settings)
        position = Position(step=3, elapsed_s=1.0, scores={}, selection=Selected())
        load_training(save_training(root, first, position), second)
        for side in (lambda step: state_tensors(step.model), lambda step: step.optimisers.state()):
            stored, loaded = side(first), side(second)
            assert stored.keys() == loaded.keys()
            changed = [name for name in stored if not torch.equal(stored[name].cpu(), loaded[name].cpu())]
            assert not changed, f"from {source} to {target}: {changed[:5]}"
        losses = []
        for step, given in ((first, batch), (second, there)):
            step.clear_sums()
            step([given], 3, step.settings)
            losses.append(step.means()[0])
        apart = max(apart, abs(losses[1] / losses[0] - 1))
    assert apart < 1e-3, f"the next loss differs by {apart:.1e} of it"
    return {"shows": f"the same tensors; the next loss differs by {apart:.0e} of it"}


def transfers(setting: Setting) -> dict[str, Any]:
    """Look for copies between host and device, and waits, inside a step whose batch is on the device."""
    needs_gpu(setting, "copies between host and device")
    images = torch.randn(64, 3, 32, 32, device="cuda")
    labels = torch.randint(0, LABELS, (64,), device="cuda")
    step, batch = our_step(small_vit(), images, labels, precision_of(setting), setting)
    for number in range(3):
        step([batch], number, step.settings)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as profile:
        for number in range(3, 6):
            step([batch], number, step.settings)
        torch.cuda.synchronize()
    copies: dict[str, int] = {}
    for event in profile.events():
        if re.search(r"Memcpy (HtoD|DtoH)", event.name):
            copies[event.name] = copies.get(event.name, 0) + 1
    torch.cuda.set_sync_debug_mode("error")
    try:
        step([batch], 6, step.settings)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not copies, f"3 steps copied: {copies}"
    return {"shows": "no copy and no wait in 3 steps"}


def out_of_memory(setting: Setting) -> dict[str, Any]:
    """Train with little memory: the step is divided, or the error says what to change."""
    needs_gpu(setting, "limits of a GPU's memory")
    folder = setting.output / "cuda" / "narrow"
    shutil.rmtree(folder, ignore_errors=True)
    share = 3 * 2**30 / torch.cuda.get_device_properties(0).total_memory
    changes = {"train.batch_size": 2048, "data.image_size": "64", "model.patch_size": 8}
    options = {"model": "vit_b16", "budget_s": 40, "output": str(folder.parent), "name": folder.name}
    code = f"""
import torch, vitrail
torch.cuda.set_per_process_memory_fraction({share})
vitrail.train("digits", changes={changes}, **{options})
"""
    run([sys.executable, "-c", code], environment(setting))
    record = json.loads((folder / "choices.json").read_text())
    divided = [each for each in record["choices"] if each["setting"] == "train.accumulate"]
    assert divided, "a step of 2,048 images in 3 GiB was not divided"
    return {"shows": f"train.accumulate {divided[0]['value']}: {divided[0]['reason']}"}


def exported(setting: Setting) -> dict[str, Any]:
    """Export the run as ONNX and compare its answers with the GPU's."""
    needs_package("onnxruntime", "onnxscript")
    import onnxruntime

    from vitrail import Predictor

    folder = small_run(setting)
    package = folder.with_name("digits.onnx")
    shutil.rmtree(package, ignore_errors=True)
    vitrail("export", folder, package, "--format", "onnx")
    images = [image_of(number) for number in range(4)]
    ours = [each.scores for each in Predictor(folder, device=setting.device).predict(images)]
    theirs = [each.scores for each in Predictor(package).predict(images)]
    apart = max(
        abs(a[name] - b[name]) for a, b in zip(map(dict, ours), map(dict, theirs), strict=True) for name in a
    )
    assert apart < 1e-2, f"probabilities differ by {apart:.1e}"
    providers = ", ".join(onnxruntime.get_available_providers())
    return {"shows": f"probabilities differ by {apart:.0e}; ONNX Runtime has {providers}"}


def image_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (8, 8, 3), dtype=np.uint8)


def compiled_ahead(setting: Setting) -> dict[str, Any]:
    """Compile a model ahead of time by AOTInductor, and time it beside the eager one."""
    from vitrail.models import build

    name, changes = setting.pick(("vit_b16", {}), ("vit_nano", {"depth": 1, "width": 12, "num_heads": 3}))
    model = build(name, **changes).to(setting.device).eval()
    (images,) = model.config.example_inputs(setting.pick(32, 1))
    images = images.to(setting.device)
    path = setting.output / setting.device / "model.pt2"
    path.parent.mkdir(parents=True, exist_ok=True)
    with torch.inference_mode():
        program = torch.export.export(model, (images,))
        if setting.quick:  # its compilation takes a minute
            ahead = program.module()
        else:
            torch._inductor.aoti_compile_and_package(program, package_path=str(path))
            ahead = torch._inductor.aoti_load_package(str(path))
        apart = float((ahead(images) - model(images)).abs().max() / model(images).abs().max())
        assert apart < 2e-2, f"the logits differ by {apart:.1e} of the largest"
        calls = {"ahead": lambda: ahead(images), "eager": lambda: model(images)}
        seconds = take_turns(calls, setting, rounds=setting.pick(9, 1))
    return {"shows": f"{ratio(seconds, 'ahead', 'eager')} times as fast as eager in float32"}


def benched(setting: Setting) -> dict[str, Any]:
    """Bench the engines that are installed."""
    folder = small_run(setting)
    options = (
        ["--batch", "1", "--engines", "torch", "--precisions", "float32", "--rounds", "1"]
        if setting.quick
        else []
    )
    figures = folder.parent / "bench.json"
    vitrail("bench", folder, "--json", figures, *options)
    found = json.loads(figures.read_text())["results"]
    ran = [each for each in found if each["images_per_s"]]
    assert ran, f"no engine ran: {found}"
    best = max(ran, key=lambda each: each["images_per_s"])
    named = f"{best['engine']} in {best['precision']}, batch {best['batch']}"
    shown = f"{len(ran)} of {len(found)} ran; fastest {named}: {best['images_per_s']:.0f} images/s"
    return {"shows": shown, "results": found}


def served(setting: Setting) -> dict[str, Any]:
    """Serve the run, and compare its answer with the predictor's; the latency is that of one client."""
    needs_package("fastapi", "uvicorn")
    import io
    import socket

    from PIL import Image

    from vitrail import Predictor

    folder = small_run(setting)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "vitrail",
        "serve",
        str(folder),
        "--port",
        str(port),
        "--engine",
        "torch",
    ]
    server = subprocess.Popen(command, env=environment(setting), start_new_session=True)
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for(f"{address}/readyz", server)
        picture = io.BytesIO()
        Image.fromarray(image_of(0)).save(picture, "png")
        seconds, answer = [], b""
        for _ in range(setting.pick(200, 3)):
            started = time.perf_counter()
            answer = post(f"{address}/predict", picture.getvalue())
            seconds.append(time.perf_counter() - started)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)
    expected = next(iter(Predictor(folder, device=setting.device).predict([image_of(0)]))).label
    assert expected.encode() in answer, f"{answer[:300]!r} has no {expected!r}"
    return {"shows": f"median {1000 * statistics.median(seconds):.1f} ms for one client"}


def wait_for(address: str, server: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        assert server.poll() is None, f"the server ended with exit code {server.returncode}"
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the server did not start within a minute")


def post(address: str, picture: bytes) -> bytes:
    request = urllib.request.Request(address, picture, {"Content-Type": "image/png"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())


JOBS = {
    "trained": Job(trained, 90),
    "ddp": launched("ddp"),
    "fsdp": launched("fsdp"),
    "resumed": Job(resumed, 40),
    "transfers": Job(transfers, 40),
    "out_of_memory": Job(out_of_memory, 90),
    "exported": Job(exported, 60),
    "compiled_ahead": Job(compiled_ahead, 150),
    "benched": Job(benched, 180),
    "served": Job(served, 60),
}
