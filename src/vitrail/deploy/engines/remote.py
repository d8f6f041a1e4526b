"""An engine in a process of its own, asked by messages."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from vitrail.deploy.engines.cell_process import read_inputs, write_inputs
from vitrail.deploy.engines.contract import Inputs, Outputs
from vitrail.errors import ConfigError

PROCESS = "vitrail.deploy.engines.cell_process"
NUM_LAST_LINES = 1  # of what a process that died wrote, for the reason


class CellError(ConfigError):
    """An engine in another process failed; the message is its own."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, expected="an engine that runs", remedy="Leave it out")
        self.reason = reason


class RemoteCell:
    """An engine in a process of its own; ends with its context.

    Args:
        factory: ``module:function`` that returns the engine.
        arguments: of the function; plain JSON values.
        threads: how many the engine may use.
        python: the interpreter.
        folders: further places of modules.

    Raises:
        CellError: the engine does not start.
    """

    def __init__(
        self,
        factory: str,
        arguments: dict[str, Any],
        *,
        threads: int,
        python: str = sys.executable,
        folders: Sequence[str] = (),
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._notes = Path(self._folder.name) / "notes.txt"
        self._counter = 0
        with self._notes.open("wb") as notes:
            self._process = subprocess.Popen(
                [python, "-m", PROCESS],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=notes,
                text=True,
                encoding="utf-8",
            )
        try:
            self._ask(
                do="start", factory=factory, arguments=arguments, threads=threads, folders=list(folders)
            )
        except CellError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, inputs: Inputs) -> Outputs:
        """Return what the engine answers, as ``Engine.run``.

        Raises:
            CellError: it fails.
        """
        given, answered = self._file("given"), self._file("answered")
        write_inputs(given, inputs)
        self._ask(do="answer", file=str(given), output=str(answered))
        outputs = read_inputs(answered)
        given.unlink()
        answered.unlink()
        return outputs

    def hold(self, name: str, inputs: Inputs) -> None:
        """Give the engine a batch to be timed with, which it runs once.

        Raises:
            CellError: it fails.
        """
        file = self._file("held")
        write_inputs(file, inputs)
        self._ask(do="hold", name=name, file=str(file))
        file.unlink()

    def time(self, name: str, passes: int) -> list[float]:
        """Return the seconds of each of some passes of a batch that it holds.

        Raises:
            CellError: it fails.
        """
        return list(self._ask(do="time", name=name, passes=passes)["seconds"])

    def peak_mib(self) -> float:
        """Return the most memory of the process since it was last given a batch to hold."""
        return float(self._ask(do="peak")["mib"])

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._folder.cleanup()

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise CellError(self._why_it_died())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise CellError(answer["error"])
        return answer

    def _why_it_died(self) -> str:
        code = self._process.wait()
        lines = self._notes.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        said = f": {lines[-NUM_LAST_LINES]}" if lines else ""
        return f"the process ended with code {code}{said}"

    def _file(self, name: str) -> Path:
        self._counter += 1
        return Path(self._folder.name) / f"{name}-{self._counter}.safetensors"
