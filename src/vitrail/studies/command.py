"""A training in its own process: start, follow, interrupt, and explain its failure."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from vitrail.train.interrupt import EXIT_CODE as EXIT_INTERRUPTED
from vitrail.train.interrupt import deferred_interrupts

ERROR_PREFIX = "vitrail: error: "
PROGRESS_PREFIX = "step "
STOP_S = 60.0  # ample for a step and a checkpoint; then the process is killed
POLL_S = 0.2
KEPT_LINES = 60


class CommandError(Exception):
    """A command failed; the text is its error message."""


def run_to_the_end(command: Sequence[str], log: Path, on_progress: Callable[[str], None]) -> None:
    """Run a training command and wait for its end.

    It has its own process group, so that a Ctrl-C at the terminal reaches it once, passed on from here: it
    saves its state and stops.

    Args:
        log: file for the output of the command.
        on_progress: called with the lines about its steps.

    Raises:
        CommandError: it failed.
        KeyboardInterrupt: this process or the command was interrupted.
    """
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment.pop("FORCE_COLOR", None)
    lines: deque[str] = deque(maxlen=KEPT_LINES)
    with (
        deferred_interrupts() as stop_asked,
        log.open("w", encoding="utf-8") as written,
        log.open(encoding="utf-8", errors="replace") as reader,
        subprocess.Popen(
            command, stdout=written, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        ) as process,
    ):
        try:
            for line in _follow(process, reader, stop_asked):
                lines.append(line)
                if line.startswith(PROGRESS_PREFIX):
                    on_progress(line)
        finally:
            if process.poll() is None:
                process.kill()
    if stop_asked.is_set() or process.returncode == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if process.returncode != 0:
        raise CommandError(_explain(process.returncode, lines))


def _follow(process: subprocess.Popen[bytes], reader: TextIO, stop_asked: threading.Event) -> Iterator[str]:
    """Yield the output lines of a process; an interruption is passed on to it once."""
    pending, ends_at = "", float("inf")
    while True:
        has_ended = process.poll() is not None
        *whole, pending = (pending + reader.read()).split("\n")
        yield from whole
        if has_ended or time.monotonic() > ends_at:
            return
        if stop_asked.is_set() and ends_at == float("inf"):
            process.send_signal(signal.SIGINT)
            ends_at = time.monotonic() + STOP_S
        time.sleep(POLL_S)


def _explain(code: int, lines: Sequence[str]) -> str:
    """Return the last words of a failed command."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}, as the system does when memory runs out"
    text = "\n".join(lines)
    if ERROR_PREFIX in text:
        return " ".join(text.rpartition(ERROR_PREFIX)[2].split())
    spoken = [line.strip() for line in lines if line.strip()]
    return spoken[-1] if spoken else f"ended with code {code}"
