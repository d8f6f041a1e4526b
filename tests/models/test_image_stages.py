"""The stages of image models: grids and channels of their maps, and stochastic depth over their blocks."""

from __future__ import annotations

import pytest
import torch

from making.small_models import BIT, EFFICIENTNET, MVIT, MVITV2, PVT, PVTV2, RESNET, small_changes
from vitrail.models import build
from vitrail.nn.blocks import DropPath

SMALL_SWIN = {
    "patch_size": 2,
    "width": 6,
    "depths": (2, 2),
    "num_heads": (1, 3),
    "window_size": 3,
    "drop_path": 0.0,
    "num_classes": 5,
    "image_size": (16, 24),
}
FOUR_STAGES = {**MVITV2, "depths": (1, 1, 2, 1), "key_stride": 4}
ONE_POINT = [(1, 1)] * 7
EFFICIENTNETS = ("efficientnet_b0", "efficientnet_b0_symmetric")


@pytest.mark.parametrize(
    ("name", "changes", "size", "grids", "channels"),
    [
        *(
            ("bit_r50x1", BIT, size, grids, [128, 256, 512])
            for size, grids in (
                ((64, 96), [(16, 24), (8, 12), (4, 6)]),
                ((37, 53), [(10, 14), (5, 7), (3, 4)]),
                ((1, 2), ONE_POINT[:3]),
            )
        ),
        *(
            (name, EFFICIENTNET, size, grids, None)
            for name in EFFICIENTNETS
            for size, grids in (
                ((32, 64), [(16, 32), (8, 16), (4, 8), (2, 4), (2, 4), (1, 2), (1, 2)]),
                ((37, 53), [(19, 27), (10, 14), (5, 7), (3, 4), (3, 4), (2, 2), (2, 2)]),
                ((1, 2), ONE_POINT),
            )
        ),
        *(
            ("pvtv2_b0", PVTV2, size, grids, list(PVTV2["widths"]))
            for size, grids in (
                ((16, 24), [(8, 12), (4, 6), (2, 3), (1, 2)]),
                ((37, 53), [(19, 27), (10, 14), (5, 7), (3, 4)]),
            )
        ),
        *(
            ("pvt_t", PVT, size, grids, list(PVT["widths"]))
            for size, grids in (
                ((16, 24), [(8, 12), (4, 6), (2, 3), (1, 2)]),
                ((37, 53), [(19, 27), (10, 14), (5, 7), (3, 4)]),
                ((2, 3), [(1, 2), (1, 1), (1, 1), (1, 1)]),
            )
        ),
        *(
            ("mvit_b16", {**MVIT, "depths": (1, 1, 2, 1)}, size, grids, [16, 32, 64, 64])
            for size, grids in (
                ((250, 331), [(63, 83), (32, 42), (16, 21), (8, 11)]),
                ((4, 5), [(1, 2), (1, 1), (1, 1), (1, 1)]),
            )
        ),
        *(  # 250 / 4 and 331 / 4 rounded up, then halves rounded up
            (name, FOUR_STAGES, (250, 331), [(63, 83), (32, 42), (16, 21), (8, 11)], channels)
            for name, channels in (("mvitv2_b", [8, 16, 32, 64]), ("mvitv2_l", [16, 32, 64, 64]))
        ),
        (
            "sequencer2d_s",
            {"depths": (1, 1, 1, 1)},
            (224, 224),
            [(32, 32), (16, 16), (16, 16), (16, 16)],
            [192, 384, 384, 384],
        ),
        *(
            (name, SMALL_SWIN, size, grids, [6, 12])
            for name in ("swin_t", "swinv2_t")
            for size, grids in (((16, 24), [(8, 12), (4, 6)]), ((13, 27), [(7, 14), (4, 7)]))
        ),
    ],
)
def test_each_stage_with_a_stride_halves_its_map_rounded_up(name, changes, size, grids, channels):
    model = build(name, **changes).eval()
    with torch.no_grad():
        stages = model.features(torch.randn(2, 3, *size))

    assert [tuple(stage.shape[-2:]) for stage in stages] == grids
    assert channels in (None, [stage.shape[1] for stage in stages])
    if name.startswith(("bit", "efficientnet")):
        assert all(stage.is_contiguous(memory_format=torch.channels_last) for stage in stages)
    if name.startswith("bit"):
        assert channels == list(model.config.channels)


@pytest.mark.parametrize(
    ("name", "changes"), [("bit_r50x1", BIT), ("resnet18", RESNET), ("efficientnet_b0", EFFICIENTNET)]
)
def test_later_stages_do_not_overwrite_the_maps_of_earlier_ones(name, changes):
    model, images = build(name, **changes).eval(), torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        stages = model.features(images)
        x = model.stem(images)
        for index, stage in enumerate(model.stages):
            x = stage(x)
            assert torch.equal(stages[index], x)


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("vit_ti16", {"depth": 5, "drop_path": 0.2}, [0, 0.05, 0.1, 0.15, 0.2]),
        ("mixer_s16", {"depth": 5, "drop_path": 0.2}, [0, 0.05, 0.1, 0.15, 0.2]),
        ("sequencer2d_s", {"drop_path": 0.3}, [0, 0.1, 0.2, 0.3]),
        ("swin_t", {**SMALL_SWIN, "drop_path": 0.3}, [0, 0.1, 0.2, 0.3]),
        ("swinv2_t", {**SMALL_SWIN, "drop_path": 0.3}, [0, 0.1, 0.2, 0.3]),
        ("mvitv2_t", {"drop_path": 0.5}, [0, 0.25, 0.5]),
        ("mvit_b16", {"drop_path": 0.5}, [0, 0.25, 0.5]),
        ("resnet18", {"depths": (2, 2, 2, 2), "drop_path": 0.7}, [index / 10 for index in range(8)]),
    ],
)
def test_drop_path_rises_linearly_over_the_blocks_of_all_stages(name, changes, expected):
    model = build(name, **{**small_changes(name), **changes})
    rates = [each.probability for each in model.modules() if isinstance(each, DropPath)]
    per_block = len(rates) // len(expected)  # one for each branch, or one for both
    assert rates == pytest.approx([rate for rate in expected for _ in range(per_block)])


def test_drop_path_of_efficientnets_stays_below_its_setting():
    model = build("efficientnet_b0", **{**EFFICIENTNET, "drop_path": 0.8})
    rates = [block.drop_path.probability for stage in model.stages for block in stage]
    torch.testing.assert_close(torch.tensor(rates), torch.arange(len(rates)) * 0.8 / len(rates))
