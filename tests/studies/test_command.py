"""A training command as a process: followed, interrupted, and asked why it failed."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from vitrail.studies import command
from vitrail.studies.command import CommandError, run_to_the_end


@pytest.fixture(autouse=True)
def _poll_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "POLL_S", 0.01)


def run(script: str, folder: Path, on_progress=lambda line: None) -> None:
    run_to_the_end([sys.executable, "-c", script], folder / "log", on_progress)


def test_lines_about_steps_are_passed_on_and_all_are_kept(tmp_path):
    shown = []
    run(
        "print('run x'); print('step 1/2, loss 3'); print('step 2/2, loss 1', end='')", tmp_path, shown.append
    )
    assert shown == ["step 1/2, loss 3"]
    assert (tmp_path / "log").read_text().splitlines() == ["run x", "step 1/2, loss 3", "step 2/2, loss 1"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "import sys; print('step 1'); sys.exit('vitrail: error: the data is\\nnot there. Look again.')",
            "the data is not there. Look again.",
        ),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "ended with code 3"),
        ("import os; os.kill(os.getpid(), 9)", "ended by SIGKILL, as the system does when memory runs out"),
    ],
)
def test_a_failure_is_explained_in_one_line(tmp_path, script, message):
    with pytest.raises(CommandError) as caught:
        run(script, tmp_path)
    assert str(caught.value) == message


def test_an_interruption_reaches_the_command_which_may_finish_its_step(tmp_path):
    script = (
        "import sys, time\n"
        "print('step 1')\n"
        "try: time.sleep(60)\n"
        "except KeyboardInterrupt: print('saved'); sys.exit(130)"
    )
    with pytest.raises(KeyboardInterrupt):
        run(script, tmp_path, lambda line: signal.raise_signal(signal.SIGINT))
    assert (tmp_path / "log").read_text().splitlines() == ["step 1", "saved"]


def test_a_command_that_does_not_stop_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "STOP_S", 0.05)
    script = "import signal, time; signal.signal(2, signal.SIG_IGN); print('step 1'); time.sleep(60)"
    with pytest.raises(KeyboardInterrupt):
        run(script, tmp_path, lambda line: signal.raise_signal(signal.SIGINT))


def test_an_interrupted_command_interrupts(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run("raise SystemExit(130)", tmp_path)
