from __future__ import annotations

import pytest
import torch

from vitrail.engines.remote import EngineError, RemoteEngine


def test_a_product_in_another_process_is_timed_and_fails_without_ending_it() -> None:
    arguments = {"shape": [5, 7, 3], "precision": "float32"}
    with RemoteEngine("vitrail.engines.turns:build_product", arguments, threads=1) as remote:
        remote.hold("product", (torch.zeros(1),))

        with pytest.raises(EngineError, match="KeyError"):
            remote.time("another", 1)

        assert remote.run(()) == ()
        assert len(remote.time("product", 2)) == 2
        assert remote.peak_mib() > 10


def test_a_process_that_dies_says_with_which_code() -> None:
    with pytest.raises(EngineError, match="ended with code 3"):
        RemoteEngine("os:_exit", {"status": 3}, threads=1)


def test_a_process_that_was_killed_is_told_closed_and_started_anew() -> None:
    arguments = {"shape": [5, 7, 3], "precision": "float32"}
    with RemoteEngine("vitrail.engines.turns:build_product", arguments, threads=1) as remote:
        remote.hold("product", (torch.zeros(1),))
        remote._process.kill()
        remote._process.wait()

        with pytest.raises(EngineError, match="when memory runs out"):
            remote.time("product", 1)

        remote.revive()
        assert not remote.holds("product")
        assert remote.run(()) == ()
        remote._process.kill()
        remote._process.wait()
        with pytest.raises(EngineError):
            remote.run(())
    # Its end does not raise: what could not be sent is lost with its reader.
