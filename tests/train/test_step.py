"""One optimiser step: in one batch or several, with and without stand-ins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from toy import NoisySource, Pairs, SquaresObjective, Tower, toy_experiment, toy_model

from vitrail.data.stream import StandIn, training_batches
from vitrail.train.objective import Loss
from vitrail.train.processes import single_process
from vitrail.train.settings import Experiment
from vitrail.train.step import TrainStep


class WatchingObjective(SquaresObjective):
    """Note how many samples each pass through the model has."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def loss(self, model: nn.Module, batch: Pairs) -> Loss:
        self.sizes.append(len(batch))
        return super().loss(model, batch)


def train(num_steps: int, task: SquaresObjective | None = None, **changes: Any) -> tuple[TrainStep, Tower]:
    """Take a few steps without dropout, all of the same samples whatever the number of parts."""
    experiment = toy_experiment(**changes)
    settings, model = experiment.train, toy_model(dropout=0.0)
    train_step = TrainStep(task or SquaresObjective(), model, experiment, single_process())
    for step, group in enumerate(train_step.batches(NoisySource(31), 0, num_steps)):
        train_step(group, step, settings)
    return train_step, model


@pytest.mark.parametrize("accumulate", [2, 3, 5])
def test_a_step_in_parts_is_the_step_in_one(accumulate: int) -> None:
    whole_step, whole = train(4, train__batch_size=7)
    parts_step, parts = train(4, train__batch_size=7, train__accumulate=accumulate)
    for (name, own), expected in zip(parts.state_dict().items(), whole.state_dict().values(), strict=True):
        # float32 sums in another order; Adam divides small differences by small gradients
        torch.testing.assert_close(own, expected, rtol=2e-5, atol=2e-6, msg=name)
    assert parts_step.means()[0] == pytest.approx(whole_step.means()[0], rel=1e-6)
    assert parts_step.means()[1] == pytest.approx(whole_step.means()[1], rel=1e-5)
    assert parts_step.means()[2] == pytest.approx(whole_step.means()[2], rel=1e-6)
    assert parts_step.count() == whole_step.count() == 28.0


def test_muon_takes_the_step_in_parts_too() -> None:
    _, whole = train(1, optim__name="muon", train__batch_size=7, optim__learning_rate=0.01)
    _, parts = train(1, optim__name="muon", train__batch_size=7, train__accumulate=3)
    before = toy_model(dropout=0.0).blocks[0].linear.weight
    moved = whole.blocks[0].linear.weight - before
    # Newton-Schulz in bfloat16 has 8 bits, so that differences of the last bit of float32 may grow to 1 %.
    assert (parts.blocks[0].linear.weight - before - moved).norm() < 0.02 * moved.norm()


def test_no_pass_of_a_step_in_parts_has_more_samples_than_a_part() -> None:
    task = WatchingObjective()
    train(3, task, train__batch_size=7, train__accumulate=3)
    assert task.sizes == [2, 2, 3] * 3


def test_a_step_in_one_part_is_bit_for_bit_the_plain_step() -> None:
    # An independent step, written out: mean loss, clipping, AdamW with decay for matrices only.
    experiment = toy_experiment(train__batch_size=7, optim__clip_norm=0.1, optim__ema_fraction=0.0)
    train_step, model = train(1, train__batch_size=7, optim__clip_norm=0.1, optim__ema_fraction=0.0)
    plain = toy_model(dropout=0.0)
    (batch,) = training_batches(
        NoisySource(31), SquaresObjective(), batch_size=7, seed=11, start_step=0, num_steps=1, num_workers=0
    )
    (SquaresObjective().loss(plain, batch).total * (1 / torch.tensor(7.0))).backward()
    torch.nn.utils.clip_grad_norm_([plain.get_parameter(name) for name in _names(plain)], 0.1)
    optim = experiment.optim
    rate = optim.learning_rate * train_step.rate(0, experiment.train)
    for name in _names(plain):
        decay = optim.weight_decay if plain.get_parameter(name).ndim == 2 and "position" not in name else 0.0
        torch.optim.AdamW(
            [plain.get_parameter(name)], lr=rate, weight_decay=decay, betas=optim.betas, fused=True
        ).step()
    for name, tensor in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


def _names(model: nn.Module) -> list[str]:
    """Return the parameters in the order in which their gradients are clipped."""
    names = [name for name, _ in model.named_parameters()]
    hidden = [name for name in names if name.startswith("blocks") and name.endswith("linear.weight")]
    matrices = ["stem.weight", "head.weight"]
    return [*hidden, *matrices, *(name for name in names if name not in hidden and name not in matrices)]


def test_a_stand_in_changes_nothing() -> None:
    experiment = toy_experiment(train__accumulate=2)
    batch, other = (_batch(experiment, step) for step in (0, 1))
    alone, together = (_after([batch]), _after([StandIn(other), batch]))
    assert together[1] == pytest.approx(alone[1], rel=1e-6)
    torch.testing.assert_close(together[0], alone[0], rtol=1e-5, atol=1e-6)


def _batch(experiment: Experiment, step: int) -> Pairs:
    source = NoisySource(31)
    return SquaresObjective().collate([source.load(3 * step + slot, None) for slot in range(3)], None)


def _after(batches: list[Any]) -> tuple[dict[str, torch.Tensor], tuple[float, float]]:
    model = toy_model(dropout=0.0)
    train_step = TrainStep(SquaresObjective(), model, toy_experiment(), single_process())
    train_step(batches, 0, toy_experiment().train)
    return model.state_dict(), (train_step.count(), train_step.means()[0])


class CountlessObjective(SquaresObjective):
    """Count no item, as a detector does with images that have no box."""

    def loss(self, model: nn.Module, batch: Pairs) -> Loss:
        return super().loss(model, batch)._replace(count=torch.zeros(()))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_without_any_item_counts_as_one_item(accumulate: int) -> None:
    step, _ = train(1, CountlessObjective(), train__batch_size=1)
    whole, _ = train(1, SquaresObjective(), train__batch_size=1)
    empty, model = train(2, CountlessObjective(), train__batch_size=4, train__accumulate=accumulate)
    assert step.means()[0] == whole.means()[0]  # where there is one sample, it is the same step
    assert step.means()[1] == whole.means()[1]
    assert empty.count() == 2
    empty.check_finite(1, "nothing is kept")
    assert all(parameter.isfinite().all() for parameter in model.parameters())
