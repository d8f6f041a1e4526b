from __future__ import annotations

import subprocess
import sys

import psutil
import pytest
import torch

from vitrail.train import machine
from vitrail.train.machine import peak_memory_mib

CPU = torch.device("cpu")


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
