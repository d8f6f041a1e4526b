"""Models and steps on another device than the CPU: the same numbers, and nothing that a GPU waits for."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from making.far_device import FarTensor, Log, far_device
from making.small_models import build_shaken, small_configs
from making.small_runs import SMALL_RUNS
from vitrail.interpret import record_attention
from vitrail.interpret.record import has_attention
from vitrail.tasks.preparing import prepare
from vitrail.tasks.request import Request
from vitrail.train.processes import Processes, single_process
from vitrail.train.step import TrainStep

# torch has kernels of its own for the cells of recurrent networks on other devices than the CPU.
OWN_KERNELS = {"recurrent", "sequencer2d"}
CONFIGS: dict[str, Any] = {}
for _name, _config in small_configs().items():
    if _config.family not in OWN_KERNELS and _config.family not in {each.family for each in CONFIGS.values()}:
        CONFIGS[_name] = _config

# A detector's matching is solved on the CPU, and words are picked where there is a label.
BATCH = ["aten::_to_copy at train/objective.py"]
DRAWS = ["aten::_to_copy at data/augment.py"]
MATCHING = ["aten::_to_copy at tasks/detection/losses.py"]
PICKING = {
    "detection": [
        "index at tasks/detection",
        "index_put",
        "nonzero at tasks/detection",
        "tolist at tasks/detection",
    ],
    "labelling": ["index at tasks/labelling", "index_put"],
}


def results_of(model: nn.Module, inputs: Any) -> list[Tensor]:
    model.zero_grad()
    outputs = [each for each in tree_leaves(model(*inputs)) if isinstance(each, Tensor)]
    floats = [each.masked_fill(each.isinf(), 0) for each in outputs if each.is_floating_point()]
    torch.autograd.backward(torch.stack([each.square().mean() for each in floats]).sum())
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    return [each.detach() for each in (*floats, *gradients)]


def near(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, FarTensor), "it has come back to the CPU"
    return tensor.near


def most_further(names: Any, kept: set[str]) -> list[Any]:
    """Keep a few in the default suite; the GPU kit runs all."""
    return [name if name in kept else pytest.param(name, marks=pytest.mark.further) for name in names]


@pytest.mark.parametrize("name", most_further(CONFIGS, {"deit_b16", "sdetr_nano", "transformer_base"}))
def test_a_model_computes_the_same_there_and_waits_for_nothing(name: str) -> None:
    model, inputs = build_shaken(CONFIGS[name]), CONFIGS[name].example_inputs(2)
    expected = results_of(model, inputs)
    with far_device() as device:
        there = copy.deepcopy(model).to(device)
        moved = tree_map(lambda each: each.to(device), inputs)
        Log.clear()
        found = results_of(there, moved)
        assert (Log.copies, Log.waits) == ([], [])
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(near(ours), theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "name", [name for name in CONFIGS if name.startswith(("deit", "swin", "pvt", "mvit"))]
)
def test_recorded_maps_are_the_same_there(name: str) -> None:
    model, inputs = build_shaken(CONFIGS[name]), CONFIGS[name].example_inputs(2)
    assert has_attention(model)
    with torch.no_grad(), record_attention(model) as expected:
        model(*inputs)
    with far_device() as device, torch.no_grad():
        model, moved = model.to(device), tree_map(lambda each: each.to(device), inputs)
        with record_attention(model) as maps:
            model(*moved)
        for ours, theirs in zip(maps, expected, strict=True):
            torch.testing.assert_close(near(ours.weights), theirs.weights, rtol=1e-5, atol=1e-6)


def steps_of(parts: Any, experiment: Any, batches: Any, processes: Processes) -> TrainStep:
    step = TrainStep(parts.objective, copy.deepcopy(parts.model), experiment, processes)
    for number, batch in enumerate(batches):
        Log.clear()
        step(batch, number, experiment.train)
    return step


def places(log: list[str]) -> list[str]:
    """Return each operator and file once."""
    return sorted({re.sub(r":\d+$", "", line) for line in log})


@pytest.mark.parametrize("task", most_further(SMALL_RUNS, {"classification"}))
def test_a_training_step_is_the_same_there_and_copies_its_batch_alone(task: str, tmp_path: Path) -> None:
    small = SMALL_RUNS[task]
    request = Request(source=small.write(tmp_path / "data"), model=small.model, changes=small.changes)
    prepared = prepare(request, single_process())
    experiment, parts = prepared.experiment, prepared.parts
    source = TrainStep(parts.objective, copy.deepcopy(parts.model), experiment, single_process())
    batches = list(source.batches(parts.train, 0, 2))
    expected = steps_of(parts, experiment, batches, single_process())

    with far_device() as device:
        found = steps_of(parts, experiment, batches, Processes(0, 1, device))
        copies, waits = places(Log.copies), places(Log.waits)
        assert found.means()[:2] == pytest.approx(expected.means()[:2], rel=1e-4)

    matched = MATCHING if task == "detection" else []
    drawn = DRAWS if task == "classification" else []
    assert copies == sorted([*BATCH, *drawn, *matched])
    assert all(any(known in wait for known in PICKING.get(task, [])) for wait in waits), waits


def test_the_device_behaves_as_one() -> None:
    with far_device() as device:
        far, on_cpu = torch.arange(3.0, device=device), torch.ones(3)
        assert far.device == device
        with pytest.raises(RuntimeError, match="to be on the same device"):
            far + on_cpu
        Log.clear()
        assert (far + on_cpu.to(device)).sum().item() == 6.0
        assert [line.partition(" ")[0] for line in (*Log.copies, *Log.waits)] == [
            "aten::_to_copy",
            "aten::_local_scalar_dense",
        ]
        Log.clear()
        assert far[far > 0].cpu().tolist() == [1.0, 2.0]
        assert (len(Log.copies), len(Log.waits)) == (1, 1)
        far[1:].mul_(2.0)  # a view
        assert near(far).tolist() == [0.0, 2.0, 4.0]
