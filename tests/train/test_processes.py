"""Several processes under PyTorch's own launcher."""

from __future__ import annotations

import importlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch
from toy import PlannedSource, train_toy

from vitrail.core.errors import ConfigError
from vitrail.tasks.registry import open_run
from vitrail.train.processes import join_processes, single_process

SCRIPT = Path(__file__).with_name("toy.py")


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run directories that two processes made, ``ddp`` and ``fsdp``, each also with ``-parts``."""
    folder = tmp_path_factory.mktemp("launched")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, str(SCRIPT), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_give_the_losses_and_weights_of_one(
    launched: Path, tmp_path: Path, parallel: str
) -> None:
    alone = train_toy(tmp_path / "alone", single_process(), dropout=0.0)
    together = open_run(launched / parallel)
    assert len(together.metrics()) == len(alone.metrics()) == 23 + 3
    for own, expected in zip(together.metrics(), alone.metrics(), strict=True):
        # float32 sums in another order: a few units in the last place, growing over 23 steps
        if own["kind"] == "train":
            assert own["loss"] == pytest.approx(expected["loss"], rel=3e-6)
            assert own["parts"] == pytest.approx(expected["parts"], rel=3e-6)
        else:
            assert own["scores"] == pytest.approx(expected["scores"], rel=3e-6)
    weights = [
        safetensors.torch.load_file(run.model_folder / "model.safetensors") for run in (together, alone)
    ]
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_planned_batches_in_parts_give_the_losses_and_the_best_weights_of_one_process_and_part(
    launched: Path, tmp_path: Path, parallel: str
) -> None:
    settings = ["train.keep=best", "train.validations=9"]
    alone = train_toy(tmp_path / "alone", single_process(), settings, dropout=0.0, source=PlannedSource)
    together = open_run(launched / f"{parallel}-parts")
    assert len(together.metrics()) == len(alone.metrics()) == 23 + 9
    for own, expected in zip(together.metrics(), alone.metrics(), strict=True):
        if own["kind"] == "train":
            assert own["loss"] == pytest.approx(expected["loss"], rel=3e-6)
        else:
            assert own["scores"] == pytest.approx(expected["scores"], rel=3e-6)
    weights = [
        safetensors.torch.load_file(run.model_folder / "model.safetensors") for run in (together, alone)
    ]
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-5, atol=1e-6)
    assert {path.name for path in together.checkpoints.iterdir()} == {"step-000023", "best"}


def test_the_processes_leave_one_complete_checkpoint(launched: Path) -> None:
    assert [path.name for path in (launched / "fsdp" / "checkpoints").iterdir()] == ["step-000023"]


def test_a_sharded_checkpoint_goes_on_in_one_process(launched: Path) -> None:
    before = (launched / "fsdp" / "model" / "model.safetensors").read_bytes()
    train_toy(launched / "fsdp", single_process(), dropout=0.0)
    assert (launched / "fsdp" / "model" / "model.safetensors").read_bytes() == before


def test_without_a_launcher_one_process_trains_alone() -> None:
    with join_processes("cpu", {}) as processes:
        assert processes.is_first
        assert processes.world_size == 1
        assert processes.any_of(True, False) == (True, False)
        assert processes.from_first(lambda: 3) == 3
        assert processes.add_up(torch.ones(2)).tolist() == [1.0, 1.0]


def test_an_incomplete_launch_is_refused() -> None:
    with (
        pytest.raises(ConfigError, match=r"RANK but not all.*torchrun"),
        join_processes("cpu", {"RANK": "0"}),
    ):
        pass


def test_a_worker_ends_when_its_launcher_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = importlib.import_module("vitrail.train.processes")
    monkeypatch.setattr(processes, "_LOOK_S", 0.01)
    read_end, write_end = os.pipe()
    launcher = os.fork()
    if launcher == 0:  # the worker has the pipe for as long as it lives
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.write(write_end, b"works")
            processes._outlive(os.getppid())
        time.sleep(60)
    os.close(write_end)
    assert os.read(read_end, 5) == b"works"
    os.kill(launcher, signal.SIGKILL)
    os.waitpid(launcher, 0)
    assert select.select([read_end], [], [], 20)[0]
    assert os.read(read_end, 5) == b""
    os.close(read_end)
