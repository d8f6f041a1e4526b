"""An engine in a process of its own, asked by messages."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from vitrail.core.errors import ConfigError
from vitrail.engines.cell_process import read_inputs, write_inputs
from vitrail.engines.contract import Inputs, Outputs

PROCESS = "vitrail.engines.cell_process"
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
        self._held: set[str] = set()
        self._command = [python, "-m", PROCESS]
        self._start = {
            "factory": factory,
            "arguments": arguments,
            "threads": threads,
            "folders": list(folders),
        }
        self._process = self._open_process()
        try:
            self._ask(do="start", **self._start)
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
        self._held.add(name)
        file.unlink()

    def holds(self, name: str) -> bool:
        """Tell whether the engine has a batch of that name."""
        return name in self._held

    def revive(self) -> None:
        """Start the engine anew where its process has died; it holds no batch then.

        Raises:
            CellError: it does not start.
        """
        if self._process.poll() is None:
            return
        self._held.clear()
        self._end_process()
        self._process = self._open_process()
        try:
            self._ask(do="start", **self._start)
        except CellError:
            self._process.kill()  # so that it is started again, and not asked, for the next batch
            raise

    def time(self, name: str, passes: int) -> list[float]:
        """Return the seconds of each of some passes of a batch that it holds.

        Raises:
            CellError: it fails.
        """
        return list(self._ask(do="time", name=name, passes=passes)["seconds"])

    def peak_mib(self) -> float:
        """Return the most memory of the process since it last was given a batch, and had run it once.

        Raises:
            CellError: it fails.
        """
        return float(self._ask(do="peak")["mib"])

    def close(self) -> None:
        """End the process, if it has not ended by itself."""
        self._end_process()
        self._folder.cleanup()

    def _open_process(self) -> subprocess.Popen[str]:
        with self._notes.open("wb") as notes:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=notes,
                text=True,
                encoding="utf-8",
            )

    def _end_process(self) -> None:
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # what was not sent has no reader where the process has died
                self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
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
            raise CellError(self._why_it_died())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise CellError(answer["error"])
        return answer

    def _why_it_died(self) -> str:
        code = self._process.wait()
        lines = self._notes.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        said = f": {lines[-NUM_LAST_LINES]}" if lines else ""
        if code == -signal.SIGKILL:
            return "the process was killed, as it is when memory runs out"
        return f"the process ended with code {code}{said}"

    def _file(self, name: str) -> Path:
        self._counter += 1
        return Path(self._folder.name) / f"{name}-{self._counter}.safetensors"
