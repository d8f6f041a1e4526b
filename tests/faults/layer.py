"""Commands run again and again in forked processes, above the fault layer of ``layer.c``.

``Commands`` starts this file as a script, which imports everything once; each command then takes as long as
its own work does.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

SOURCE = Path(__file__).with_name("layer.c")
KILL, POWER_FAILURE = -1, -2
ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES)
LONGEST_S = 100.0
"""A command that takes longer hangs."""


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    """Its exit code, or the negative number of the signal that killed it."""
    num_calls: int
    """To the file system, below the folder."""
    stderr: str

    @property
    def is_clean(self) -> bool:
        """Whether it was done, but for files it names, was killed, or ended with an error message."""
        told = {1: "vitrail: skipped:", 2: "vitrail: error:"}.get(self.code)
        is_known = told in self.stderr if told else self.code in (0, -signal.SIGKILL)
        return is_known and "Traceback" not in self.stderr


class Commands:
    """Runs commands in processes that are forked from one that has everything imported.

    Args:
        scratch: folder for the compiled layer.
        setup: Python code to be executed before the first command, such as changes to what is slow.
    """

    def __init__(self, scratch: Path, setup: str = "") -> None:
        library = scratch / "layer.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
        environment = os.environ | {"LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(library), setup],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._process.stdin, self._process.stdout):
            assert end is not None
            end.close()
        self._process.wait()

    def run(
        self, arguments: Sequence[str], root: Path, *, at: int = 0, fault: int = KILL, lasting: bool = False
    ) -> Ended:
        """Run ``vitrail`` with arguments.

        Args:
            root: the folder below which calls are counted, and fail.
            at: number of the call at which the fault comes; 0 for none.
            fault: an ``errno``, ``KILL`` or ``POWER_FAILURE``.
            lasting: whether all later calls fail, too.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"arguments": arguments, "root": str(root), "at": at, "fault": fault, "lasting": lasting}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return Ended(*json.loads(self._process.stdout.readline()))


def serve(library: str, setup: str, answers: IO[str]) -> None:
    """Answer the requests on the standard input."""
    layer = ctypes.CDLL(library)
    layer.layer_calls.restype = ctypes.c_long
    import_everything()
    exec(setup, {})
    for line in sys.stdin:
        asked = json.loads(line)
        told = os.memfd_create("stderr")
        child = os.fork()
        if child == 0:
            run_child(layer, asked, told)
        code = wait(child)
        os.lseek(told, 0, os.SEEK_SET)
        with os.fdopen(told, "rb") as file:
            stderr = file.read().decode(errors="replace")
        answers.write(json.dumps([code, layer.layer_calls(), stderr]) + "\n")
        answers.flush()


def run_child(layer: ctypes.CDLL, asked: dict[str, Any], told: int) -> None:
    """Run one command and leave."""
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(told, 2)
        from vitrail.cli import main

        layer.layer_arm(asked["root"].encode(), ctypes.c_long(asked["at"]), asked["fault"], asked["lasting"])
        code = main(asked["arguments"])
    except BaseException:
        layer.layer_disarm()
        traceback.print_exc()
    finally:
        layer.layer_disarm()
        with suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def wait(child: int) -> int:
    """Return the exit code of a process, and end one that hangs."""
    ends_at = time.monotonic() + LONGEST_S
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > ends_at:
            os.kill(child, signal.SIGALRM)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        time.sleep(0.005)


def import_everything() -> None:
    """Import what commands put off, so that no child has to."""
    import torch

    import vitrail

    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(vitrail.__path__, "vitrail."):
        with suppress(ImportError):
            importlib.import_module(module.name)
    for name in ("matplotlib.pyplot", "onnx", "onnxruntime", "torch._dynamo", "torch.export"):
        with suppress(ImportError):
            importlib.import_module(name)


if __name__ == "__main__":
    # What commands print goes elsewhere; the answers have the standard output for themselves.
    serve(sys.argv[1], sys.argv[2], os.fdopen(os.dup(1), "w"))
