"""An engine in a process of its own, so that engines share neither memory nor threads.

``RemoteEngine`` starts ``python -m vitrail.engines.remote``, which reads one JSON request per line and writes
one response for each; tensors are passed as safetensors files.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import safetensors.torch
import torch

from vitrail.core.durable import atomic_write
from vitrail.core.errors import ConfigError
from vitrail.engines.contract import Engine, Inputs, Outputs, build_engine
from vitrail.engines.export.package import Package
from vitrail.models.checkpoint import load_model
from vitrail.train.machine import peak_memory_mib

RESET_PEAK = "5"  # written to clear_refs, resets the peak resident size


class EngineError(ConfigError):
    """An engine in another process failed; the message is its own."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, expected="an engine that runs", remedy="Leave it out")
        self.reason = reason


class RemoteEngine:
    """An engine in a process of its own; ends with its context. Every method raises EngineError if it fails.

    Args:
        factory: ``module:function``, called with the arguments in the process.
    """

    def __init__(self, factory: str, arguments: dict[str, Any], *, threads: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._held: set[str] = set()
        self._settings = {"factory": factory, "arguments": arguments, "threads": threads}
        try:
            self._start()
        except EngineError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, inputs: Inputs) -> Outputs:
        output = self._path("output.safetensors")
        self._ask(do="run", file=self._write(inputs), output=str(output))
        return read_inputs(output)

    def hold(self, name: str, make: Callable[[], Inputs]) -> None:
        """Give the engine a batch, and run it once, unless it has it."""
        if name not in self._held:
            self._ask(do="hold", name=name, file=self._write(make()))
            self._held.add(name)

    def time(self, name: str, passes: int) -> list[float]:
        """Return the seconds of each pass of a kept batch."""
        return list(self._ask(do="time", name=name, passes=passes)["seconds"])

    def peak_mib(self) -> float:
        return float(self._ask(do="peak")["mib"])

    def revive(self) -> None:
        """Restart the engine if its process has died; it keeps no batch then."""
        if self._process.poll() is not None:
            self._held.clear()
            self._end()
            self._start()

    def close(self) -> None:
        """End the process, if it has not ended by itself."""
        self._end()
        self._folder.cleanup()

    def _start(self) -> None:
        with self._path("log.txt").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "vitrail.engines.remote"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
            )
        try:
            self._ask(do="start", **self._settings)
        except EngineError:
            self._process.kill()  # so that it is restarted for the next batch
            raise

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # unsent data has no reader if the process has died
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line.endswith("\n"):
            raise EngineError(self._why_it_died())
        response: dict[str, Any] = json.loads(line)
        if "error" in response:
            raise EngineError(response["error"])
        return response

    def _why_it_died(self) -> str:
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return "the process was killed, as it is when memory runs out"
        lines = self._path("log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"the process ended with code {code}" + (f": {lines[-1]}" if lines else "")

    def _write(self, inputs: Inputs) -> str:
        path = self._path("input.safetensors")
        write_inputs(path, inputs)
        return str(path)

    def _path(self, name: str) -> Path:
        return Path(self._folder.name) / name


class EngineServer:
    """Serves the requests of ``RemoteEngine`` in its process."""

    def __init__(self) -> None:
        self.engine: Any = None
        self.held: dict[str, Inputs] = {}

    def start(self, factory: str, arguments: dict[str, Any], threads: int) -> dict[str, Any]:
        torch.set_num_threads(threads)
        module, _, function = factory.partition(":")
        self.engine = getattr(importlib.import_module(module), function)(**arguments)
        return {}

    def run(self, file: str, output: str) -> dict[str, Any]:
        write_inputs(Path(output), self.engine.run(read_inputs(Path(file))))
        return {}

    def hold(self, name: str, file: str) -> dict[str, Any]:
        self.held[name] = read_inputs(Path(file))
        self.engine.run(self.held[name])
        path = Path("/proc/self/clear_refs")
        if path.exists():
            path.write_text(RESET_PEAK)  # exclude memory used by compilation
        return {}

    def time(self, name: str, passes: int) -> dict[str, Any]:
        inputs, seconds = self.held[name], []
        for _ in range(passes):
            started = time.perf_counter()
            self.engine.run(inputs)
            seconds.append(time.perf_counter() - started)
        return {"seconds": seconds}

    def peak(self) -> dict[str, Any]:
        """Return the peak memory since a batch was last kept and run once; outside Linux, since the start."""
        return {"mib": peak_memory_mib(torch.device("cpu")) or math.nan}


def build_engine_of(
    model: str, *, engine: str, precision: str, package: str | None = None, calibration: Sequence[str] = ()
) -> Engine:
    """Build an engine on the CPU, from paths.

    Args:
        package: folder of the exported model; None if the engine takes the model itself.
        calibration: files of batches for int8 calibration.
    """
    source = load_model(Path(model)) if package is None else Package.read(package)
    batches = [read_inputs(Path(file)) for file in calibration]
    return build_engine(source, engine=engine, precision=precision, device="cpu", calibration=batches)


def read_inputs(path: Path) -> Inputs:
    """Read tensors in the order in which they were written."""
    tensors = safetensors.torch.load(path.read_bytes())
    return tuple(tensors[name] for name in sorted(tensors))


def write_inputs(path: Path, tensors: Inputs) -> None:
    """Write tensors, in order."""
    named = {f"{index:03}": tensor.contiguous() for index, tensor in enumerate(tensors)}
    atomic_write(path, safetensors.torch.save(named))


def main() -> None:
    """Respond to requests until there are no more."""
    # Libraries may write to standard output; responses use a descriptor of their own.
    responses = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    server = EngineServer()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            response = getattr(server, request.pop("do"))(**request)
        except Exception as error:  # whatever an engine raises is shown as its reason
            text = " ".join(str(error).split())
            response = {"error": text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"}
        responses.write(json.dumps(response) + "\n")
        responses.flush()


if __name__ == "__main__":
    main()
