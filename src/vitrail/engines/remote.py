"""An engine in a process of its own, driven by messages."""

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
NUM_LAST_LINES = 1  # of a dead process's output, for the reason


class CellError(ConfigError):
    """An engine in another process failed; the message is its own."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, expected="an engine that runs", remedy="Leave it out")
        self.reason = reason


class RemoteCell:
    """An engine in a process of its own; ends with its context.

    Args:
        threads: of the engine.
        folders: added to the module search path.

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
        """Run one batch, as ``Engine.run``.

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
        """Keep a batch for timing, and run it once.

        Raises:
            CellError: it fails.
        """
        file = self._file("held")
        write_inputs(file, inputs)
        self._ask(do="hold", name=name, file=str(file))
        self._held.add(name)
        file.unlink()

    def holds(self, name: str) -> bool:
        """Return whether the engine keeps a batch of that name."""
        return name in self._held

    def revive(self) -> None:
        """Restart the engine if its process has died; it keeps no batch then.

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
            self._process.kill()  # so that it is restarted for the next batch
            raise

    def time(self, name: str, passes: int) -> list[float]:
        """Return the seconds of each pass of a kept batch.

        Raises:
            CellError: it fails.
        """
        return list(self._ask(do="time", name=name, passes=passes)["seconds"])

    def peak_mib(self) -> float:
        """Return the process's peak memory since the last batch was kept and run once.

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
            with suppress(BrokenPipeError):  # unsent data has no reader if the process has died
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
