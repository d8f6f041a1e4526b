"""How fast a training goes."""

from __future__ import annotations

import torch
from toy import NoisySource, SquaresObjective, toy_experiment, toy_model

from vitrail.data.stream import StandIn
from vitrail.train.loop import Meter
from vitrail.train.objective import Loss
from vitrail.train.processes import single_process
from vitrail.train.step import TrainStep


class PartsObjective(SquaresObjective):
    """Count four items for each sample."""

    def loss(self, model: torch.nn.Module, batch: object) -> Loss:
        loss = super().loss(model, batch)
        return loss._replace(count=loss.count * 4)


def test_rates_are_of_samples_and_items_since_the_last_reading_without_pauses() -> None:
    moment = 100.0
    train_step = TrainStep(PartsObjective(), toy_model(), toy_experiment(), single_process())
    source = NoisySource(31)
    batch = train_step.objective.collate([source.load(index, None) for index in range(3)], None)
    plan = toy_experiment().train
    train_step([batch], 0, plan)  # before the run was resumed
    meter = Meter(train_step, clock=lambda: moment)
    for step in (1, 2):
        meter.add([batch, StandIn(batch)])
        train_step([batch, StandIn(batch)], step, plan)
    moment += 5.0
    meter.pause(3.0)
    assert meter.read() == (3.0, 12.0)
    train_step.clear_sums()
    moment += 4.0
    meter.add([batch])
    train_step([batch], 3, plan)
    assert meter.read() == (0.75, 3.0)
