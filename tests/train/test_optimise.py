"""Parameter groups, rates, clipping and the optimisers' memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from toy import NoisySource, SquaresObjective, Tower, toy_experiment, toy_model

from vitrail.train.loop import fit
from vitrail.train.optimise import Optimisers, group_parameters
from vitrail.train.processes import single_process
from vitrail.train.run import Run
from vitrail.train.settings import OptimSettings
from vitrail.train.step import TrainStep


def test_matrices_of_blocks_are_hidden_and_vectors_are_not_decayed() -> None:
    groups = group_parameters(Tower(depth=1))
    assert set(groups.hidden) == {"blocks.0.linear.weight"}
    assert set(groups.decayed) == {"stem.weight", "head.weight"}
    vectors = {"stem.bias", "head.bias", "blocks.0.linear.bias", "blocks.0.norm.weight", "blocks.0.norm.bias"}
    assert set(groups.undecayed) == {"position_table", *vectors}


def test_frozen_parameters_are_left_out_and_tied_ones_appear_once() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False), nn.Linear(3, 2))
    model[1].weight = model[0].weight
    model[2].requires_grad_(False)
    groups = group_parameters(model)
    assert [list(group) for group in groups] == [[], ["0.weight"], []]


def _take_step(model: nn.Module, settings: OptimSettings, rate: float = 1.0) -> Optimisers:
    optimisers = Optimisers(model, settings)
    optimisers.set_rate(rate)
    model(torch.ones(2, 5)).sum().backward()
    optimisers.clip()
    optimisers.step()
    return optimisers


def test_decay_shrinks_matrices_only() -> None:
    model = toy_model().requires_grad_(True)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimisers = Optimisers(model, OptimSettings(learning_rate=0.5, weight_decay=0.1))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimisers.step()
    for name, parameter in model.named_parameters():
        factor = 0.95 if name.endswith("weight") and parameter.ndim == 2 else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor)


def test_adamw_agrees_with_an_independent_first_step() -> None:
    # Kingma and Ba 2015, algorithm 1: after bias correction the first step is the gradient's sign.
    model = toy_model(dropout=0.0)
    before = model.head.bias.detach().clone()
    _take_step(model, OptimSettings(learning_rate=0.25, weight_decay=0.0, clip_norm=0.0), rate=0.5)
    torch.testing.assert_close(model.head.bias.detach(), before - 0.125)


def test_muon_moves_hidden_matrices_along_a_nearly_orthogonal_direction() -> None:
    model = toy_model(dropout=0.0)
    weight = model.blocks[0].linear.weight
    before = weight.detach().clone()
    model.train()
    optimisers = Optimisers(
        model, OptimSettings(name="muon", weight_decay=0.0, matrix_learning_rate=0.1, clip_norm=0.0)
    )
    torch.manual_seed(0)
    model(torch.randn(9, 5)).square().sum().backward()
    optimisers.step()
    singular = torch.linalg.svdvals((weight.detach() - before) / 0.1)
    assert singular[0] < 1.3  # Newton-Schulz with Jordan's coefficients ends between about 0.7 and 1.2
    assert singular[2] > 0.5
    assert "blocks.0.linear.weight/momentum_buffer" in optimisers.state()


def test_clipping_returns_the_norm_before_and_leaves_the_limit() -> None:
    model = toy_model()
    optimisers = Optimisers(model, OptimSettings(clip_norm=0.5))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert float(optimisers.clip()) == pytest.approx(count**0.5)
    squares = sum(float(parameter.grad.square().sum()) for parameter in model.parameters())
    assert squares**0.5 == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_restored_memory_goes_on_with_the_same_bits(name: str) -> None:
    settings = OptimSettings(name=name)
    first = toy_model(dropout=0.0)
    memory = {key: value.clone() for key, value in _take_step(first, settings).state().items()}
    second = toy_model(dropout=0.0)
    second.load_state_dict(first.state_dict())
    restored = Optimisers(second, settings)
    restored.restore(memory)
    assert restored.state().keys() == memory.keys()
    assert any(key.startswith("head.weight/") for key in memory)
    for key, value in restored.state().items():
        assert torch.equal(value, memory[key])


def test_muon_changes_a_kernel_as_the_equal_matrix() -> None:
    # An independent step: Muon itself, on a parameter that is a matrix from the start.
    torch.manual_seed(0)
    kernel, gradient = torch.randn(5, 8, 3, 3), torch.randn(5, 8, 3, 3)
    convolution = nn.Conv2d(8, 5, 3, bias=False)
    convolution.weight.data.copy_(kernel)
    optimisers = Optimisers(
        convolution, OptimSettings(name="muon", weight_decay=0.2, matrix_learning_rate=0.1, clip_norm=0.0)
    )
    matrix = nn.Parameter(kernel.flatten(1))
    reference = torch.optim.Muon([matrix], lr=0.1, weight_decay=0.2)
    for _ in range(2):
        convolution.weight.grad, matrix.grad = gradient.clone(), gradient.flatten(1)
        optimisers.step()
        reference.step()
    assert convolution.weight.grad is None
    torch.testing.assert_close(convolution.weight.detach().flatten(1), matrix.detach(), rtol=0, atol=0)


def test_a_convolution_over_pixels_is_no_hidden_kernel() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))
    groups = group_parameters(model)
    assert set(groups.hidden) == {"1.weight"}
    assert set(groups.decayed) == {"0.weight"}


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
    run = Run.create(tmp_path, toy_experiment(optim__average=average, optim__tail_fraction=0.5))
    result = fit(SquaresObjective(), toy_model(), NoisySource(31), NoisySource(13), run=run)
    evaluator, source = SquaresObjective().evaluator(), NoisySource(13)
    batch = SquaresObjective().collate([source.load(index, None) for index in range(13)], None)
    with torch.inference_mode():
        evaluator.update(result.model.eval(), batch)
    assert evaluator.result()["mse"] == pytest.approx(result.scores["mse"], rel=1e-6)
    assert result.model_step == result.steps == 23
