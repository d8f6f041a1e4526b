"""Precision and memory."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from vitrail.train import machine
from vitrail.train.machine import autocast, best_precision, cpu_facts, keep_freed_memory, peak_memory_mib

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "processor: 0\nflags\t\t: fpu avx512_bf16 sse\n",
            {"processor": "0", "flags": "fpu avx512_bf16 sse"},
        ),
        ("Features: fp asimd\n", {"Features": "fp asimd"}),
    ],
)
def test_facts_about_the_cpu_are_read(tmp_path: Path, text: str, expected: dict[str, str]) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert cpu_facts(tmp_path / "cpuinfo") == expected
    assert cpu_facts(tmp_path / "none") == {}  # another system


@pytest.mark.parametrize(
    ("features", "expected"),
    [({"avx512_bf16"}, "bfloat16"), ({"amx_bf16"}, "bfloat16"), ({"avx512f"}, "float32"), (set(), "float32")],
)
def test_bfloat16_is_chosen_where_the_cpu_multiplies_it(
    monkeypatch: pytest.MonkeyPatch, features: set[str], expected: str
) -> None:
    monkeypatch.setattr(machine, "cpu_facts", lambda: {"flags": " ".join(features)})
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
