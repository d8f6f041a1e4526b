"""What is chosen on a GPU, tried with a memory and a compiler that tests can have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import NoisySource, SquaresObjective, toy_experiment, toy_model

from vitrail.core.config import Config
from vitrail.core.errors import ConfigError
from vitrail.tasks.accelerator import choose_compiled, divide_steps
from vitrail.tasks.contract import Parts
from vitrail.tasks.predicting import answer_in_order
from vitrail.tasks.preparing import Fit
from vitrail.train.loop import fit
from vitrail.train.objective import Loss
from vitrail.train.processes import single_process
from vitrail.train.run import Run


class Narrow(SquaresObjective):
    """The memory holds so many samples at once."""

    def __init__(self, most: int) -> None:
        self.most = most

    def loss(self, model: torch.nn.Module, batch: Any) -> Loss:
        if len(batch) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().loss(model, batch)


def parts_of(objective: SquaresObjective) -> Parts:
    source: Any = NoisySource(40)
    return Parts(None, objective, objective, toy_model(), source, source, source, Config(), {})


@pytest.mark.parametrize(("most", "accumulate"), [(16, None), (8, "2"), (5, "4"), (1, "16")])
def test_a_step_is_divided_until_it_fits(most: int, accumulate: str | None) -> None:
    experiment, parts = toy_experiment(**{"train.steps": 2, "train.batch_size": 16}), parts_of(Narrow(most))
    before = [parameter.clone() for parameter in parts.model.parameters()]

    divided, choices = divide_steps(experiment, parts, single_process())

    assert [(choice.setting, choice.value) for choice in choices] == (
        [("train.accumulate", accumulate)] if accumulate else []
    )
    assert divided.train.accumulate == int(accumulate or 1)
    assert all(map(torch.equal, parts.model.parameters(), before))


def test_a_sample_that_does_not_fit_is_told() -> None:
    with pytest.raises(ConfigError, match=r"memory of the GPU is full\. .* Choose a smaller model"):
        divide_steps(
            toy_experiment(**{"train.steps": 2, "train.batch_size": 16}),
            parts_of(Narrow(0)),
            single_process(),
        )


def test_memory_that_runs_out_later_is_told_with_what_is_kept(tmp_path: Path) -> None:
    run = Run.create(
        tmp_path, toy_experiment(**{"train.steps": 2, "train.batch_size": 16}), (), name="narrow"
    )
    with pytest.raises(ConfigError, match=r"Set train\.accumulate=2, or lower .*checkpoint of step 0 in"):
        fit(Narrow(5), toy_model(), NoisySource(40), None, run=run)


@pytest.mark.parametrize(
    ("found", "compiled", "reason"),
    [
        (120, True, "120 steps fit into the budget, and 100 without"),
        (104, False, "104 steps fit into the budget, and 100 without"),
        (
            ConfigError("short", expected="time", remedy="Give more"),
            False,
            "no time would be left for training",
        ),
        (RuntimeError("Cannot find a working\ntriton"), False, "compiled here: Cannot find a working triton"),
    ],
)
def test_a_model_is_compiled_where_more_steps_fit(found: Any, compiled: bool, reason: str) -> None:
    experiment = toy_experiment(**{"train.steps": 2, "train.batch_size": 16})
    plain: Any = Fit(100, 1, None, None)  # type: ignore[arg-type]

    def refit(tried: Any) -> Fit:
        assert tried.train.compile
        if isinstance(found, Exception):
            raise found
        return plain._replace(steps=found)

    chosen, fits, choice = choose_compiled(experiment, plain, refit)

    assert chosen.train.compile == compiled == (choice.value == "true")
    assert fits.steps == (found if compiled else 100)
    assert reason in choice.reason


@pytest.mark.parametrize(("most", "sizes"), [(4, [4, 4, 2]), (3, [2, 2, 2, 2, 2]), (1, [1] * 10)])
def test_a_batch_of_predictions_is_halved_until_it_fits(most: int, sizes: list[int]) -> None:
    ran = []

    def run(items: Sequence[int], prepared: Sequence[int]) -> list[int]:
        if len(items) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        ran.append(len(items))
        return [10 * item for item in prepared]

    read: Callable[[int], Any] = lambda item: item + 1  # noqa: E731
    chunks = [range(4), range(4, 8), range(8, 10)]
    found = answer_in_order(chunks, read=read, run=run, failed=lambda item, error: -1)

    assert list(found) == [10 * (item + 1) for item in range(10)]
    assert ran == sizes


def test_an_input_that_does_not_fit_is_told() -> None:
    def run(items: Sequence[int], prepared: Sequence[int]) -> list[int]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(ConfigError, match=r"memory of the GPU is full\. .* Choose a smaller model"):
        list(answer_in_order([[1, 2]], read=lambda item: item, run=run, failed=lambda item, error: 0))
