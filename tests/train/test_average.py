"""Averages of the weights over steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from toy import NoisySource, SquaresObjective, toy_experiment, toy_model

from vitrail.train.loop import fit
from vitrail.train.processes import single_process
from vitrail.train.run import Run
from vitrail.train.step import TrainStep


def course_of(steps: int, **changes: object) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """Return copies of the weights and of their averages after each step."""
    experiment = toy_experiment(train__steps=steps, optim__average="tail", **changes)
    train_step = TrainStep(SquaresObjective(), toy_model(dropout=0.0), experiment, single_process())
    source, course = NoisySource(31), []
    for step in range(steps):
        batch = train_step.objective.collate([source.load(5 * step % 31, None)], None)
        train_step([batch], step, experiment.train)
        assert train_step.average is not None
        weights = {name: tensor.clone() for name, tensor in train_step.model.state_dict().items()}
        course.append((weights, {name: t.clone() for name, t in train_step.average.tensors().items()}))
    return course


def test_the_tail_average_is_the_mean_of_the_weights_of_its_steps_and_the_weights_before() -> None:
    course = course_of(12, optim__tail_fraction=0.25, optim__ema_fraction=0.0)
    for weights, averages in course[:10]:  # of the last three steps, the first is its own average
        assert all(torch.equal(averages[name], weights[name]) for name in weights)
    for name, average in course[-1][1].items():
        expected = torch.stack([weights[name] for weights, _ in course[-3:]]).double().mean(0).float()
        torch.testing.assert_close(average, expected, rtol=1e-6, atol=1e-7)
    assert not torch.equal(course[-1][0]["head.weight"], course[-1][1]["head.weight"])


def test_a_plan_that_is_shortened_moves_the_tail() -> None:
    course = course_of(
        9, optim__tail_fraction=0.5, train__replans=[{"at_step": 3, "steps": 7}], optim__learning_rate=0.1
    )
    # Three of nine steps are a third; the other four share two thirds, of which three lie past the half.
    for name, average in course[6][1].items():
        expected = torch.stack([weights[name] for weights, _ in course[4:7]]).double().mean(0).float()
        torch.testing.assert_close(average, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("average", ["ema", "tail"])
def test_the_model_is_returned_with_its_average(tmp_path: Path, average: str) -> None:
    run = Run.create(tmp_path, toy_experiment(optim__average=average, optim__tail_fraction=0.5), {})
    result = fit(SquaresObjective(), toy_model(), NoisySource(31), NoisySource(13), run=run)
    evaluator, source = SquaresObjective().evaluator(), NoisySource(13)
    batch = SquaresObjective().collate([source.load(index, None) for index in range(13)], None)
    with torch.inference_mode():
        evaluator.update(result.model.eval(), batch)
    assert evaluator.result()["mse"] == pytest.approx(result.scores["mse"], rel=1e-6)
    assert result.model_step == result.steps == 23
