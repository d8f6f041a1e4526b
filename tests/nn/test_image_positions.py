"""Cells of padding are told from those of images, and positions are shares of the image."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from vitrail.nn.image_positions import cells_inside, sine_positions_inside


@pytest.mark.parametrize("grid", [(5, 7), (3, 2), (1, 1)])
def test_cells_are_those_of_the_resized_mask_of_pixels(grid):
    sizes = torch.tensor([[53, 37], [1, 71], [17, 1], [40, 36]])
    mask = torch.zeros(4, 1, 53, 71)
    for each, (height, width) in zip(mask, sizes.tolist(), strict=True):
        each[:, :height, :width] = 1

    rows, columns = cells_inside(sizes, (53, 71), grid)

    expected = F.interpolate(mask, size=grid)[:, 0].bool()
    assert torch.equal(rows[:, :, None] & columns[:, None], expected)
    assert rows[:, 0].all()
    assert columns[:, 0].all()


def test_positions_equal_their_formula_cell_by_cell():
    rows = torch.tensor([[True, True, True], [True, True, False]])
    columns = torch.tensor([[True, True, False, False], [True, True, True, True]])
    positions = sine_positions_inside(rows, columns, 8)

    assert positions.shape == (2, 12, 8)
    assert positions.dtype == torch.float32
    for image, (num_rows, num_columns) in enumerate([(3, 2), (2, 4)]):
        for row in range(num_rows):
            for column in range(num_columns):
                expected = []
                for place, count in ((row, num_rows), (column, num_columns)):
                    angle = 2 * math.pi * (place + 1) / count
                    for wavelength in (1, 10_000 ** (2 / 4)):
                        expected += [math.sin(angle / wavelength), math.cos(angle / wavelength)]
                cell = positions[image, row * 4 + column]
                torch.testing.assert_close(cell, torch.tensor(expected), rtol=0, atol=1e-5)


def test_an_image_has_the_same_positions_whatever_padding_is_behind_it():
    inside = torch.ones(1, 3, dtype=torch.bool)
    alone = sine_positions_inside(inside, inside[:, :2], 8)
    padded = sine_positions_inside(F.pad(inside, (0, 2)), F.pad(inside[:, :2], (0, 4)), 8)
    assert torch.equal(padded.unflatten(1, (5, 6))[:, :3, :2].flatten(1, 2), alone)
