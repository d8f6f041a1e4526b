"""A process that runs one engine on demand, so that engines share neither memory nor threads.

It reads and answers one JSON object per line; tensors are passed as safetensors files. Started as ``python -m
vitrail.engines.cell_process``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import safetensors.torch
import torch

from vitrail.core.durable import atomic_write
from vitrail.engines.contract import Inputs

RESET_PEAK = "5"  # written to clear_refs, resets the peak resident size


class CellServer:
    """Serves the requests of ``remote.RemoteCell``."""

    def __init__(self) -> None:
        self.engine: Any = None
        self.held: dict[str, Inputs] = {}

    def start(
        self, factory: str, arguments: dict[str, Any], threads: int, folders: list[str]
    ) -> dict[str, Any]:
        """Build the engine: ``module:function`` called with the arguments."""
        torch.set_num_threads(threads)
        sys.path[:0] = folders
        module, _, function = factory.partition(":")
        self.engine = getattr(importlib.import_module(module), function)(**arguments)
        return {}

    def hold(self, name: str, file: str) -> dict[str, Any]:
        """Keep a batch for timing, and run it once."""
        self.held[name] = read_inputs(Path(file))
        self.engine.run(self.held[name])
        _reset_peak()  # exclude memory used by compilation
        return {}

    def time(self, name: str, passes: int) -> dict[str, Any]:
        """Return the seconds of each pass of a kept batch."""
        inputs, seconds = self.held[name], []
        for _ in range(passes):
            started = time.perf_counter()
            self.engine.run(inputs)
            seconds.append(time.perf_counter() - started)
        return {"seconds": seconds}

    def peak(self) -> dict[str, Any]:
        """Return the peak resident memory in MiB since the last batch was kept and run once."""
        return {"mib": _peak_mib()}

    def answer(self, file: str, output: str) -> dict[str, Any]:
        """Run a batch from a file, and write the outputs into another."""
        outputs = self.engine.run(read_inputs(Path(file)))
        write_inputs(Path(output), outputs)
        return {}


def main() -> None:
    """Answer requests until there are no more."""
    # Libraries may write to standard output; responses use a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    server = CellServer()
    for line in sys.stdin:
        _tell(answers, _answer(server, json.loads(line)))


def read_inputs(path: Path) -> Inputs:
    """Read tensors in the order in which they were written."""
    tensors = safetensors.torch.load(path.read_bytes())
    return tuple(tensors[name] for name in sorted(tensors))


def write_inputs(path: Path, tensors: Inputs) -> None:
    """Write tensors, in order."""
    named = {f"{place:03}": tensor.contiguous() for place, tensor in enumerate(tensors)}
    atomic_write(path, safetensors.torch.save(named))


def _answer(server: CellServer, request: dict[str, Any]) -> dict[str, Any]:
    try:
        answered: dict[str, Any] = getattr(server, request.pop("do"))(**request)
        return answered
    except Exception as error:  # whatever an engine raises is shown as its reason
        text = " ".join(str(error).split())
        return {"error": text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"}


def _tell(answers: TextIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _reset_peak() -> None:
    path = Path("/proc/self/clear_refs")
    if path.exists():
        path.write_text(RESET_PEAK)


def _peak_mib() -> float:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:  # not Linux: the peak since the start, in KiB or, on macOS, bytes
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


if __name__ == "__main__":
    main()
