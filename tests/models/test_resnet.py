"""ResNet: published sizes, stages, and what a detector's backbone needs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from making.small_models import RESNET
from vitrail.engines.cpu import accelerate
from vitrail.models import build
from vitrail.models.resnet import (
    ConvolutionPoolStem,
    ResidualBlock,
    make_basic_branch,
    make_bottleneck_branch,
    make_shortcut,
)
from vitrail.nn.convolution import FrozenBatchNorm


def test_the_frozen_backbone_has_the_parameters_of_the_published_detector():
    # DETR-R50 has 41,524,768 parameters, of which 41,302,368 are trained: all but those of the backbone's
    # stem and first stage. Its batch norms are buffers; what else it has is no part of the backbone.
    with torch.device("meta"):
        model = build("resnet50", norm="frozen")
    kept = [*model.stem.parameters(), *model.stages[0].parameters()]
    head = 2048 * 1000 + 1000
    norms = 2 * sum(len(norm.weight) for norm in model.modules() if isinstance(norm, FrozenBatchNorm))

    assert sum(parameter.numel() for parameter in kept) == 41_524_768 - 41_302_368
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032 - norms
    assert norms == 53_120
    assert 25_557_032 - norms - head == 23_454_912  # the backbone of the published detector


@pytest.mark.parametrize("norm", ["batch", "frozen"])
@pytest.mark.parametrize(
    ("size", "dilated", "grids"),
    [
        ((64, 96), False, [(16, 24), (8, 12), (4, 6), (2, 3)]),
        ((64, 96), True, [(16, 24), (8, 12), (4, 6), (4, 6)]),
        ((37, 53), False, [(10, 14), (5, 7), (3, 4), (2, 2)]),
        ((37, 53), True, [(10, 14), (5, 7), (3, 4), (3, 4)]),
        ((1, 2), False, [(1, 1), (1, 1), (1, 1), (1, 1)]),
    ],
)
def test_each_stage_halves_its_map_rounded_up_unless_it_is_dilated(norm, size, dilated, grids):
    model = build("resnet50", **RESNET, norm=norm, dilated=dilated).eval()
    stages = model.features(torch.randn(2, 3, *size))

    assert [tuple(stage.shape[-2:]) for stage in stages] == grids
    assert [stage.shape[1] for stage in stages] == [32, 64, 128, 256] == list(model.config.channels)
    assert all(stage.is_contiguous(memory_format=torch.channels_last) for stage in stages)


def test_zeroed_branches_let_only_shortcuts_through_and_still_learn():
    model = build("resnet50", **RESNET, zero_branches=True)
    branch = model.stages[1][1].branch
    model(torch.randn(3, 3, 32, 32)).square().sum().backward()

    assert not branch[-1].norm.weight.any()
    assert branch[-1].norm.weight.grad.any()
    assert not branch[0].weight.grad.any()


def _block(
    in_channels: int, out_channels: int, stride: int, make_branch, drop_path=0.0, overwrites=False
) -> ResidualBlock:
    norm = nn.BatchNorm2d
    return ResidualBlock(
        branch=make_branch(in_channels, out_channels, stride=stride, dilation=1, norm=norm),
        shortcut=make_shortcut(in_channels, out_channels, stride=stride, norm=norm),
        drop_path=drop_path,
        overwrites=overwrites,
    )


@pytest.mark.parametrize("make_branch", [make_basic_branch, make_bottleneck_branch])
@pytest.mark.parametrize(("out_channels", "stride"), [(8, 1), (8, 2), (12, 1)])
def test_a_block_is_the_activated_sum_and_leaves_its_input_alone(make_branch, out_channels, stride):
    block = _block(8, out_channels, stride, make_branch).eval()
    x = torch.randn(2, 8, 7, 5)
    kept = x.clone()

    with torch.no_grad():
        result = block(x)
        expected = F.relu(block.shortcut(kept) + block.branch(kept))

    torch.testing.assert_close(result, expected)
    assert torch.equal(x, kept)
    assert result.shape == (2, out_channels, -(-7 // stride), -(-5 // stride))


@pytest.mark.parametrize("stride", [1, 2])
def test_a_block_that_may_overwrite_gives_the_same_and_saves_a_map(stride):
    shape, layout = (2, 8, 7, 5), torch.channels_last
    block = _block(8, 8, stride, make_bottleneck_branch, overwrites=True).eval()
    accelerate(block)
    x = torch.randn(shape).contiguous(memory_format=layout)
    expected = block(x)
    kept = x.clone(memory_format=torch.preserve_format)
    with torch.no_grad():
        result = block(x)
    torch.testing.assert_close(result, expected)
    assert (result.data_ptr() == x.data_ptr()) == (stride == 1)
    assert torch.equal(x, kept) == (stride == 2)


@pytest.mark.parametrize("make_branch", [make_basic_branch, make_bottleneck_branch])
def test_a_zeroed_branch_passes_on_what_is_positive(make_branch):
    block = _block(8, 8, 1, make_branch)
    block.zero_branch()
    x = torch.randn(2, 8, 7, 5)
    assert torch.equal(block(x), F.relu(x))


def test_a_dropped_branch_passes_on_what_is_positive():
    torch.manual_seed(3)
    block = _block(8, 8, 1, make_basic_branch, drop_path=0.5)
    x = torch.randn(16, 8, 3, 3)
    passed = [torch.equal(after, F.relu(before)) for before, after in zip(x, block(x), strict=True)]
    assert 0 < sum(passed) < 16


def test_a_dilated_convolution_keeps_the_size_and_reaches_twice_as_far():
    branch = make_bottleneck_branch(8, 8, stride=1, dilation=2, norm=nn.BatchNorm2d).eval()
    x = torch.zeros(1, 8, 9, 9)
    x[..., 4, 4] = 9.0
    change = (branch(x) - branch(torch.zeros_like(x))).abs().sum(dim=(0, 1))

    assert change.shape == (9, 9)
    rows = change.sum(dim=1).nonzero().flatten().tolist()
    assert rows == [2, 4, 6]


def test_the_stem_makes_a_quarter_of_the_size_in_channels_last_memory():
    stem = ConvolutionPoolStem(3, 6, norm=nn.BatchNorm2d)
    x = stem(torch.randn(2, 3, 37, 54))
    assert x.shape == (2, 6, 10, 14)
    assert x.is_contiguous(memory_format=torch.channels_last)
