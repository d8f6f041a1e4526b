"""Parameter groups, rates, clipping and the optimisers' memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from toy import Tower, toy_model

from vitrail.train.optimise import Optimisers, group_parameters
from vitrail.train.settings import OptimSettings


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
