"""ResNet: published sizes, stages, and what a detector's backbone needs."""

from __future__ import annotations

import pytest
import torch

from making.small_models import RESNET
from vitrail.core.errors import ConfigError
from vitrail.models import MODELS, build
from vitrail.nn.convolution import FrozenBatchNorm

# the published models with 1000 classes; counted in timm and torchvision, which agree
COUNTS = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
}


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_the_number_of_parameters_is_the_published_one(name):
    with torch.device("meta"):
        model = MODELS[name].build()
    assert sum(parameter.numel() for parameter in model.parameters()) == COUNTS[name]


def test_the_frozen_backbone_has_the_parameters_of_the_published_detector():
    # DETR-R50 has 41,524,768 parameters, of which 41,302,368 are trained: all but those of the backbone's
    # stem and first stage. Its batch norms are buffers; what else it has is no part of the backbone.
    with torch.device("meta"):
        model = build("resnet50", norm="frozen")
    kept = [*model.stem.parameters(), *model.stages[0].parameters()]
    head = 2048 * 1000 + 1000
    norms = 2 * sum(len(norm.weight) for norm in model.modules() if isinstance(norm, FrozenBatchNorm))

    assert sum(parameter.numel() for parameter in kept) == 41_524_768 - 41_302_368
    assert sum(parameter.numel() for parameter in model.parameters()) == COUNTS["resnet50"] - norms
    assert norms == 53_120
    assert COUNTS["resnet50"] - norms - head == 23_454_912  # the backbone of the published detector


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


def test_later_stages_do_not_overwrite_the_maps_of_earlier_ones():
    model, images = build("resnet18", **RESNET).eval(), torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        stages = model.features(images)
        x = model.stem(images)
        for index, stage in enumerate(model.stages):
            x = stage(x)
            assert torch.equal(stages[index], x)


def test_zeroed_branches_let_only_shortcuts_through_and_still_learn():
    model = build("resnet50", **RESNET, zero_branches=True)
    branch = model.stages[1][1].branch
    model(torch.randn(3, 3, 32, 32)).square().sum().backward()

    assert not branch[-1].norm.weight.any()
    assert branch[-1].norm.weight.grad.any()
    assert not branch[0].weight.grad.any()


@pytest.mark.parametrize(
    "changes",
    [
        {"depths": ()},
        {"depths": (2, 0)},
        {"dilated": True, "depths": (3,)},
        {"dilated": True, "block": "basic"},
        {"zero_branches": True, "norm": "frozen"},
    ],
)
def test_settings_that_do_not_fit_together_are_refused(changes):
    with pytest.raises(ConfigError):
        build("resnet50", **changes)


def test_drop_path_rises_linearly_over_the_blocks():
    model = build("resnet18", drop_path=0.7)
    rates = [block.drop_path.probability for stage in model.stages for block in stage]
    torch.testing.assert_close(torch.tensor(rates), torch.linspace(0, 0.7, 8))
