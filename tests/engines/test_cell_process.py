from __future__ import annotations

from pathlib import Path

import torch

from vitrail.engines.remote import EngineServer, read_inputs, write_inputs

PRODUCT = "vitrail.engines.turns:build_product"


def test_tensors_keep_their_order_and_types(tmp_path: Path) -> None:
    tensors = (torch.randn(2, 3), torch.tensor([[5, 7]]))

    write_inputs(tmp_path / "file", tensors)

    assert all(
        torch.equal(one, other) for one, other in zip(read_inputs(tmp_path / "file"), tensors, strict=True)
    )


def test_a_batch_that_is_held_is_timed_as_often_as_asked(tmp_path: Path) -> None:
    server = EngineServer()
    server.start(PRODUCT, {"shape": [5, 7, 3], "precision": "float32"}, 1, [])
    write_inputs(tmp_path / "nothing", (torch.zeros(1),))

    server.hold("batch", str(tmp_path / "nothing"))
    seconds = server.time("batch", 3)["seconds"]

    assert len(seconds) == 3
    assert min(seconds) > 0
    assert server.peak()["mib"] > 10
