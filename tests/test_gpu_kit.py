"""The kit of the GPU: what a job does, others do not feel, and what passed is not run again."""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path

import pytest

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
