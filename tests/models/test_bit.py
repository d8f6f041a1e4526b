"""BiT: published sizes and stages."""

from __future__ import annotations

import pytest
import torch

from making.small_models import BIT
from vitrail.core.errors import ConfigError
from vitrail.models import MODELS, build

# the published models with 1000 classes, counted in timm
COUNTS = {
    "bit_r50x1": 25_549_352,
    "bit_r50x3": 217_319_080,
    "bit_r101x1": 44_541_480,
    "bit_r101x3": 387_934_888,
    "bit_r152x2": 236_335_208,
    "bit_r152x4": 936_533_224,
}


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_the_number_of_parameters_is_the_published_one(name):
    with torch.device("meta"):
        model = MODELS[name].build()
    assert sum(parameter.numel() for parameter in model.parameters()) == COUNTS[name]


@pytest.mark.parametrize(
    ("size", "grids"),
    [
        ((64, 96), [(16, 24), (8, 12), (4, 6)]),
        ((37, 53), [(10, 14), (5, 7), (3, 4)]),
        ((1, 2), [(1, 1), (1, 1), (1, 1)]),
    ],
)
def test_each_stage_halves_its_map_rounded_up(size, grids):
    model = build("bit_r50x1", **BIT).eval()
    stages = model.features(torch.randn(2, 3, *size))

    assert [tuple(stage.shape[-2:]) for stage in stages] == grids
    assert [stage.shape[1] for stage in stages] == [128, 256, 512] == list(model.config.channels)
    assert all(stage.is_contiguous(memory_format=torch.channels_last) for stage in stages)


def test_later_stages_do_not_overwrite_the_maps_of_earlier_ones():
    model, images = build("bit_r50x1", **BIT).eval(), torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        stages = model.features(images)
        x = model.stem(images)
        for index, stage in enumerate(model.stages):
            x = stage(x)
            assert torch.equal(stages[index], x)


@pytest.mark.parametrize("changes", [{"depths": ()}, {"depths": (1, 0)}, {"width": 48}])
def test_settings_that_do_not_fit_together_are_refused(changes):
    with pytest.raises(ConfigError):
        build("bit_r50x1", **changes)
