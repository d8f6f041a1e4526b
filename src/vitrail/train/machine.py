"""The machine's resources for training: CPU cores, memory, accelerator, and measured FLOP/s."""

from __future__ import annotations

import ctypes
import itertools
import os
import platform
import statistics
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import psutil
import torch

from vitrail.core.errors import ConfigError

Precision = Literal["float32", "bfloat16"]

# CPU features with which oneDNN multiplies bfloat16 in hardware, as Linux names them.
_FAST_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "amx_tile"})


def best_precision(device: torch.device) -> Precision:
    """Return the fastest precision that trains well on a device.

    bfloat16 where the hardware supports it: CUDA from Ampere on, CPUs with AVX512_BF16 or AMX. Elsewhere it
    is emulated and slower than float32. On 2 cores of a Zen 4 server CPU, matrix products ran at 930 GFLOP/s
    against 440 in float32.
    """
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.get_device_capability(device) >= (8, 0) else "float32"
    if device.type == "cpu" and _FAST_BFLOAT16.intersection(cpu_facts().get("flags", "").split()):
        return "bfloat16"
    return "float32"


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return the autocast context of a precision; weights stay float32."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def cpu_facts(source: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Return what Linux tells about the last CPU, such as ``model name`` and ``flags``; empty elsewhere."""
    try:
        pairs = (line.partition(":") for line in source.read_text(errors="replace").splitlines())
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in pairs}


def cpu_name() -> str:
    """Return the CPU's model, as far as the system tells it."""
    return cpu_facts().get("model name") or platform.processor() or platform.machine()


@dataclass(frozen=True)
class Machine:
    """The resources available to this process."""

    device: torch.device
    device_name: str
    """Human-readable name."""
    num_cores: int
    """CPU cores available to this process."""
    free_memory_bytes: int
    """Free main memory."""
    precision: Precision
    """Fastest precision for training here."""


def inspect_machine() -> Machine:
    """Inspect the machine: the first CUDA device, Apple's GPU, or the CPU."""
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        name = torch.cuda.get_device_name(device)
    elif torch.backends.mps.is_available():
        device, name = torch.device("mps"), "Apple GPU"
    else:
        device, name = torch.device("cpu"), "the CPU"
    return Machine(
        device=device,
        device_name=name,
        num_cores=count_cores(),
        free_memory_bytes=psutil.virtual_memory().available,
        precision=best_precision(device),
    )


def count_cores() -> int:
    """Return the number of cores available to this process, respecting container limits."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def measure_matrix_products(device: torch.device, precision: Precision) -> float:
    """Measure matrix products, in FLOP/s; the fastest repetition counts. Measured once in a process.

    On a CPU one thread is timed, times the cores: threads that wait for each other measure the other programs
    of a machine (with a load of 11 on 2 cores, 25 GFLOP/s where 700 can be reached; docs/log.md).
    """
    if device.type != "cpu":
        return max(_product_rates(device, precision))
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rate = max(_product_rates(device, precision))
    torch.set_num_threads(num_threads)
    return rate * num_threads


def choose_threads(precision: Precision) -> None:
    """Keep to one thread where several are slower, as each waits while another program has the other's core.

    With a load of 13 on 2 cores, a training step took 0.063 s with one thread and 7.9 s with two.
    """
    num_threads, device = torch.get_num_threads(), torch.device("cpu")
    usual = statistics.median(_product_rates(device, precision))
    torch.set_num_threads(1)
    if usual > statistics.median(_product_rates(device, precision)):
        torch.set_num_threads(num_threads)


def _product_rates(device: torch.device, precision: Precision, seconds: float = 0.3) -> list[float]:
    """Return the FLOP/s of matrix products, one after the other."""
    tokens, width = (512, 512) if device.type == "cpu" else (8192, 4096)  # a GPU is idle with small ones
    x = torch.randn(tokens, width, device=device)
    weight = torch.randn(4 * width, width, device=device)
    moments = [time.perf_counter()]
    with torch.inference_mode(), autocast(precision, device):
        while moments[-1] < moments[0] + seconds:
            torch.nn.functional.linear(x, weight).sum().item()
            moments.append(time.perf_counter())
    return [2 * tokens * width * 4 * width / (end - start) for start, end in itertools.pairwise(moments)]


def memory_is_full(remedy: str) -> ConfigError:
    """Return the error for a GPU whose memory is too small for what was tried."""
    given = "the memory of the GPU is full"
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        others = (total - free - torch.cuda.memory_reserved()) / 2**30
        given = f"the {total / 2**30:.0f} GiB of {torch.cuda.get_device_name()} are full"
        given += f", {others:.0f} GiB of other programs" if others >= 1 else ""
    return ConfigError(given, expected="a step or an input that fits", remedy=remedy)


# Option numbers of glibc's malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_LARGEST_TRIM = 2**31 - 1
_LARGEST_MMAP = 2**31 - 4097  # the largest C int that is still a whole number of pages less one
_LARGEST_MMAP_OLD = 32 * 2**20  # glibc before 2.35 refuses more


def keep_freed_memory() -> bool:
    """Ask glibc to reuse large freed blocks, and return whether it agreed.

    By default glibc maps every large tensor anew and unmaps it when freed, so each step touches fresh pages
    that the kernel zeroes again. No effect with another C library or allocator (jemalloc and tcmalloc keep
    memory by themselves). A step of the chosen small model took 15 % less (docs/log.md).
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    mapped = any(mallopt(_MMAP_THRESHOLD, limit) for limit in (_LARGEST_MMAP, _LARGEST_MMAP_OLD))
    return bool(mallopt(_TRIM_THRESHOLD, _LARGEST_TRIM)) and mapped


def peak_memory_mib(device: torch.device) -> float | None:
    """Return the peak memory of this process in MiB; None where unknown.

    On a CUDA device, the peak of allocated tensors; elsewhere the resident memory of the whole process,
    including libraries and cached images. Use one process per training to compare trainings.
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
