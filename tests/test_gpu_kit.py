"""The kit of the GPU: what a job does, others do not feel, and what passed is not run again."""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path

import pytest
import torch

from vitrail.train import installation

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def kit():
    folders = [str(REPOSITORY / "benchmarks" / "gpu"), str(REPOSITORY / "benchmarks")]
    sys.path[:0] = folders
    yield importlib.import_module("kit")
    del sys.path[: len(folders)]


@pytest.fixture
def results(kit, tmp_path):
    (tmp_path / "results.json").write_text("not JSON")  # as after a power failure
    return kit.Results(kit.Setting("cpu", True, tmp_path, tmp_path))


def fails(setting):
    assert setting.is_gpu, "two | is not three\nmore"


@pytest.mark.parametrize(
    ("run", "result", "shows"),
    [
        (lambda setting: {"shows": f"on {setting.device}"}, "passed", "on cpu"),
        (fails, "failed", "AssertionError: two | is not three"),
        (lambda setting: os._exit(3), "failed", "the process ended with exit code 3"),
        (lambda setting: sys.exit("no GPU"), "failed", "SystemExit: no GPU"),
        (lambda setting: time.sleep(60), "timed out", "not done after 1 s"),
    ],
)
def test_a_job_ends_by_itself(kit, results, run, result, shows):
    results.run("speed.first", kit.Job(run, 1))
    found = results.found["speed.first"]
    assert (found["result"], found["shows"]) == (result, shows)
    assert results.has_passed("speed.first") == (result == "passed")
    row = results.table_path.read_text().splitlines()[-1]
    assert row.startswith(f"| speed.first (cpu, quick) | {result} | ")
    assert row.count("|") == 5
    assert bool(results.bad({"speed.first": None})) == (result != "passed")


def test_what_a_job_lacks_is_told(kit, results):
    results.run("speed.first", kit.Job(lambda setting: kit.needs_package("no_such_package"), 5))
    assert results.found["speed.first"]["result"] == "skipped"
    assert results.found["speed.first"]["shows"] == "no_such_package is not installed"


def test_results_of_another_device_are_run_again(kit, results, tmp_path):
    results.run("speed.first", kit.Job(lambda setting: {"shows": "fast"}, 5))
    assert kit.Results(results.setting).has_passed("speed.first")
    assert not kit.Results(kit.Setting("cuda", True, tmp_path, tmp_path)).has_passed("speed.first")
    assert not kit.Results(kit.Setting("cpu", False, tmp_path, tmp_path)).has_passed("speed.first")


def test_what_a_job_started_ends_with_it(kit, results):
    def start(setting):
        if (child := os.fork()) == 0:
            time.sleep(60)
        return {"shows": "started", "child": child}

    child = results.run("speed.first", kit.Job(start, 10))["child"]
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("the child is still there")


def test_all_jobs_together_fit_into_forty_minutes_with_the_pieces_of_nine(kit):
    jobs = kit.all_jobs()
    assert {name.partition(".")[0] for name in jobs} == set(kit.PARTS)
    assert max(job.limit_s for job in jobs.values()) < 9 * 60


def test_the_fastest_mode_of_a_side_is_by_median(kit):
    seconds = {"ours a": [1.0, 9.0, 1.0], "ours b": [2.0, 2.0, 2.0], "theirs": [3.0, 3.0, 3.0]}
    assert kit.fastest(seconds, "ours") == "ours a"
    assert kit.ratio(seconds, "ours a", "theirs") == "3.00 (0.33 to 3.00)"


GIB = 2**30


@pytest.mark.parametrize(
    ("cuda", "gpus", "notes", "has_device"),
    [
        ({}, 1, [], True),
        ({"is_available": False}, 0, ["PyTorch finds no GPU"], False),
        ({"free": 3 * GIB}, 1, ["3 of 24 GiB are free: other programs hold the rest."], True),
        ({"bfloat16": False}, 1, ["Some GPU has no bfloat16: jobs in bfloat16 run in float32."], True),
        ({}, 2, ["2 GPUs are here, and one is used: set CUDA_VISIBLE_DEVICES for another."], True),
        (
            {"broken": "CUDA error: the driver is too old\nCompile with ..."},
            1,
            ["the driver is too old"],
            False,
        ),
    ],
)
def test_what_is_the_matter_with_a_gpu_is_one_sentence(
    kit, monkeypatch, tmp_path, cuda, gpus, notes, has_device
):
    def memory(index):
        if "broken" in cuda:
            raise RuntimeError(cuda["broken"])
        return cuda.get("free", 23 * GIB), 24 * GIB

    monkeypatch.setattr(installation, "describe_installation", lambda: {"problems": [], "hardware": {}})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda.get("is_available", True))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Some GPU")
    monkeypatch.setattr(torch.cuda, "mem_get_info", memory)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: cuda.get("bfloat16", True))
    monkeypatch.setattr(torch, "ones", lambda *_, **__: torch.zeros(1))
    monkeypatch.setattr(kit, "gpus_of_machine", lambda: ["0000:01:00.0", "0000:02:00.0"][:gpus])

    found = kit.find_machine(kit.Setting("cuda", False, tmp_path, tmp_path))

    assert found["has_device"] == has_device
    assert len(found["notes"]) == len(notes)
    for note, told in zip(notes, found["notes"], strict=True):
        assert note in told
