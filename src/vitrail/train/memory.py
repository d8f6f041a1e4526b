"""How much memory a training has needed."""

from __future__ import annotations

import sys
from pathlib import Path

import torch


def peak_memory_mib(device: torch.device) -> float | None:
    """Return the most memory that this process has held so far, in MiB; None where nobody counts it.

    On a CUDA device it is what tensors held there; elsewhere the resident memory of the whole process, the
    libraries and the cached images included. What the process did before the training counts too, so
    that trainings are compared by one process for each.

    Args:
        device: where the training runs.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    try:
        # The system call getrusage would count what the parent held when it started this process.
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 2**10
    except (OSError, StopIteration):
        return _resource_peak_mib()


def _resource_peak_mib() -> float | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
