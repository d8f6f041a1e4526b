"""Precision, memory and the progress display."""

from __future__ import annotations

import io
import platform
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from rich.console import Console

from vitrail.cli.show.progress import format_seconds, show_progress
from vitrail.train import machine
from vitrail.train.events import (
    Event,
    Kept,
    Logged,
    Replanned,
    Saved,
    Started,
    Stepped,
    StoppedEarly,
    Validated,
)
from vitrail.train.machine import _cpu_features, autocast, best_precision, keep_freed_memory, peak_memory_mib

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor: 0\nflags\t\t: fpu avx512_bf16 sse\n", {"fpu", "avx512_bf16", "sse"}),
        ("Features: fp asimd\n", set()),
    ],
)
def test_cpu_features_are_read(tmp_path: Path, text: str, expected: set[str]) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert _cpu_features(tmp_path / "cpuinfo") == expected


def test_a_system_without_cpuinfo_has_no_known_features(tmp_path: Path) -> None:
    assert _cpu_features(tmp_path / "none") == frozenset()


@pytest.mark.parametrize(
    ("features", "expected"),
    [({"avx512_bf16"}, "bfloat16"), ({"amx_bf16"}, "bfloat16"), ({"avx512f"}, "float32"), (set(), "float32")],
)
def test_bfloat16_is_chosen_where_the_cpu_multiplies_it(
    monkeypatch: pytest.MonkeyPatch, features: set[str], expected: str
) -> None:
    monkeypatch.setattr(machine, "_cpu_features", lambda: frozenset(features))
    assert best_precision(CPU) == expected


def test_products_run_in_the_chosen_precision() -> None:
    x = torch.ones(2, 3)
    with autocast("bfloat16", CPU):
        assert (x @ x.T).dtype == torch.bfloat16
    with autocast("float32", CPU):
        assert (x @ x.T).dtype == torch.float32


def test_freed_memory_is_kept_on_glibc_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not keep_freed_memory()


EVENTS: list[Event] = [
    Saved(0, Path("checkpoints")),
    Started(2, 5),
    Stepped(3, 5),
    Stepped(4, 5),
    Validated(4, {"accuracy": 0.5, "count": 7}, 1.0),
    Replanned(4, 5, 7),
    Logged(7, 7, 0.25, {"correct": 0.75}, 0.1, 1.0, 64.0, 2.0),
]


def test_plain_lines_say_what_happened() -> None:
    stream = io.StringIO()
    with show_progress(Console(file=stream, width=200)) as listen:
        for event in EVENTS:
            listen(event)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "resuming after step 2 of 5"
    assert lines[1] == "step 4, validation accuracy 0.5000"
    assert lines[2] == "the machine is faster than measured before: 7 steps instead of 5"
    assert lines[3].startswith("step 7/7, loss 0.250, correct 0.750, 64 samples/s")


def test_plain_lines_say_how_long_a_new_run_will_be() -> None:
    stream = io.StringIO()
    with show_progress(Console(file=stream, width=200)) as listen:
        listen(Started(0, 5))
    assert stream.getvalue() == "training for 5 steps\n"


def test_a_terminal_gets_a_bar() -> None:
    stream = io.StringIO()
    with show_progress(Console(file=stream, force_terminal=True, width=200)) as listen:
        for event in EVENTS:
            listen(event)
    assert "loss 0.250, correct 0.750" in stream.getvalue()
    assert "accuracy 0.5000" in stream.getvalue()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_an_early_end_and_the_best_step_are_told(is_terminal: bool) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=is_terminal, color_system=None, width=200)
    with show_progress(console) as listen:
        listen(Started(0, 90))
        listen(Stepped(6, 90))
        listen(Logged(6, 90, 0.25, {}, 0.1, 1.0, 64.0, 2.0, items_per_s=1234.4, unit="tokens"))
        listen(StoppedEarly(6, 90, best_step=4, score="bleu", best=31.5))
        listen(Kept(4, 6, 31.5))
    text = stream.getvalue()
    assert "stopped early at step 6 of 90: bleu was best at step 4, 31.5000" in text
    assert "the weights of step 4 are kept, the best validation of 6 steps" in text
    if is_terminal:
        assert "loss 0.250, 1234 tokens/s" in text
        assert "100%" in text


def test_durations_are_written_for_readers() -> None:
    assert [format_seconds(s) for s in (7.2, 83, 7260)] == ["7 s", "1 min 23 s", "2 h 01 min"]


def test_the_peak_is_at_least_what_the_process_holds_and_stays_when_it_is_freed():
    held = torch.ones(64 * 2**20 // 4)  # written, so that it is resident
    resident = psutil.Process().memory_info().rss / 2**20
    peak = peak_memory_mib(CPU)
    del held
    assert peak is not None
    assert peak >= resident - 5
    assert peak_memory_mib(CPU) >= peak - 5  # the kernel counts pages in batches


def test_a_child_does_not_count_what_its_parent_held():
    if not sys.platform.startswith("linux"):
        pytest.skip("the exact figure is Linux's")
    held = torch.ones(1024 * 2**20 // 4)
    script = (
        "import torch; from vitrail.train.machine import peak_memory_mib;"
        "print(peak_memory_mib(torch.device('cpu')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert held.sum() > 0
    assert 50 < float(done.stdout) < 1000


def test_without_the_process_file_the_system_is_asked(monkeypatch):
    monkeypatch.setattr(machine, "Path", lambda name: (_ for _ in ()).throw(FileNotFoundError))
    assert peak_memory_mib(CPU) == pytest.approx(machine._resource_peak_mib())
