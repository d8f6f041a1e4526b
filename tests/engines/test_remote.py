from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vitrail.engines.remote import EngineError, EngineServer, RemoteEngine, read_inputs, write_inputs

PRODUCT = "vitrail.engines.turns:MatrixProduct"
ARGUMENTS = {"shape": [5, 7, 3], "precision": "float32"}


def test_tensors_keep_their_order_and_types(tmp_path: Path) -> None:
    tensors = (torch.randn(2, 3), torch.tensor([[5, 7]]))

    write_inputs(tmp_path / "file", tensors)

    pairs = zip(read_inputs(tmp_path / "file"), tensors, strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_held_batch_is_timed_as_often_as_asked(tmp_path: Path) -> None:
    server = EngineServer()
    server.start(PRODUCT, ARGUMENTS, 1)
    write_inputs(tmp_path / "nothing", (torch.zeros(1),))

    server.hold("batch", str(tmp_path / "nothing"))
    seconds = server.time("batch", 3)["seconds"]

    assert len(seconds) == 3
    assert min(seconds) > 0
    assert server.peak()["mib"] > 10


def test_a_process_is_timed_fails_without_ending_and_is_restarted_after_a_kill() -> None:
    with RemoteEngine(PRODUCT, ARGUMENTS, threads=1) as remote:
        remote.hold("product", lambda: (torch.zeros(1),))
        with pytest.raises(EngineError, match="KeyError"):
            remote.time("another", 1)

        assert remote.run(()) == ()
        assert len(remote.time("product", 2)) == 2
        assert remote.peak_mib() > 10

        remote._process.kill()
        remote._process.wait()
        with pytest.raises(EngineError, match="when memory runs out"):
            remote.time("product", 1)

        remote.revive()
        with pytest.raises(EngineError, match="KeyError"):
            remote.time("product", 1)
        assert remote.run(()) == ()
        remote._process.kill()
        remote._process.wait()
        with pytest.raises(EngineError):
            remote.run(())
    # Its end does not raise: what could not be sent is lost with its reader.


def test_a_process_that_dies_says_with_which_code() -> None:
    with pytest.raises(EngineError, match="ended with code 3"):
        RemoteEngine("os:_exit", {"status": 3}, threads=1)
