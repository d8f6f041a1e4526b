"""Folded graphs hold what does not depend on the input, and compute the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx, nn

from vitrail.engines.export.tracing import fold_constants


class Scaled(nn.Module):
    """Multiplies by weights that are computed anew in every forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 3))
        self.unused = nn.Parameter(torch.randn(7))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight * torch.arange(3)).softmax(dim=0).T


class Overwritten(nn.Module):
    """Writes to what it has made of nothing but its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        table = self.weight * 2
        table[1:] = x.sum()
        return x + table


class Repeated(nn.Module):
    """Repeats a small table many times."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.weight * 2).repeat(2**21, 1).sum(dim=0)


class Drawn(nn.Module):
    """Adds numbers that are drawn anew."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(3)


def fold(module: nn.Module, x: Tensor) -> fx.GraphModule:
    program = torch.export.export(module, (x,))
    return fold_constants(program.module(check_guards=False))


def operations(folded: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in folded.graph.nodes if node.op == "call_function"]


@pytest.mark.compiled
@pytest.mark.parametrize("make", [Scaled, Overwritten])
def test_a_folded_graph_computes_the_same(make):
    module, x = make(), torch.randn(2, 3)

    torch.testing.assert_close(fold(module, x)(x), module(x))


@pytest.mark.compiled
def test_what_depends_on_weights_alone_becomes_one_tensor():
    folded = fold(Scaled(), torch.randn(2, 3))

    assert operations(folded) == ["aten.matmul.default"]
    assert [tuple(each.shape) for each in folded.state_dict().values()] == [(3, 5)]


@pytest.mark.compiled
def test_a_large_repetition_of_little_is_not_stored():
    folded = fold(Repeated(), torch.randn(2, 3))

    assert [tuple(each.shape) for each in folded.state_dict().values()] == [(3,)]


@pytest.mark.compiled
def test_what_is_drawn_is_drawn_at_every_run():
    folded, x = fold(Drawn(), torch.zeros(2, 3)), torch.zeros(2, 3)

    assert not torch.equal(folded(x), folded(x))
