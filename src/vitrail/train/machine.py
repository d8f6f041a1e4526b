"""What this machine offers to a training: processors, memory, accelerator, and how fast it multiplies."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import psutil
import torch

from vitrail.train.precision import Precision, autocast, best_precision


@dataclass(frozen=True)
class Machine:
    """The part of the machine that this process may use."""

    device: torch.device
    """Where the model is trained."""
    device_name: str
    """What a person calls it."""
    num_cores: int
    """Processor cores this process may run on."""
    free_memory_bytes: int
    """Main memory that can still be taken."""
    precision: Precision
    """Number type of the matrix products that pays here."""


def inspect_machine() -> Machine:
    """Look at the machine: the first CUDA device, Apple's GPU, or the processor."""
    device = _best_device()
    return Machine(
        device=device,
        device_name=_name_of(device),
        num_cores=count_cores(),
        free_memory_bytes=psutil.virtual_memory().available,
        precision=best_precision(device),
    )


def count_cores() -> int:
    """Return the number of cores that this process may use, which a container may have limited."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measure_matrix_products(machine: Machine, *, seconds: float = 0.3) -> float:
    """Return the rate of matrix products of a small transformer's shape, in FLOP/s.

    Args:
        machine: where, and in which precision.
        seconds: how long to measure; the fastest repetition counts.
    """
    tokens, width = 8192, 192
    x = torch.randn(tokens, width, device=machine.device)
    weight = torch.randn(4 * width, width, device=machine.device)
    best, deadline = float("inf"), time.perf_counter() + seconds
    with torch.inference_mode(), autocast(machine.precision, machine.device):
        while time.perf_counter() < deadline:
            started = time.perf_counter()
            torch.nn.functional.linear(x, weight).sum().item()
            best = min(best, time.perf_counter() - started)
    return 2 * tokens * width * 4 * width / best


def _name_of(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return {"mps": "Apple GPU"}.get(device.type, "the processor")


def _best_device() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")
