from __future__ import annotations

import torch

from vitrail.interpret.perturbation import cell_of_pixels, cover, fill_images


def test_cells_tile_an_image_and_differ_by_one_pixel_at_most():
    cells = cell_of_pixels((5, 7), (2, 3))
    assert cells.unique().tolist() == list(range(6))
    assert cells[:, 0].tolist() == [0, 0, 0, 3, 3]
    assert cells[0].tolist() == [0, 0, 0, 1, 1, 2, 2]


def test_only_covered_cells_take_the_filling():
    images, filling = torch.rand(2, 3, 4, 6), -torch.ones(1, 3, 4, 6)
    is_covered = torch.zeros(2, 2, 3, dtype=torch.bool)
    is_covered[0, 1, 2] = True

    covered = cover(images, filling, is_covered)

    assert (covered[0, :, 2:, 4:] == -1).all()
    assert torch.equal(covered[1], images[1])
    assert torch.equal(covered[0, :, :2], images[0, :, :2])


def test_blur_keeps_colours_and_takes_shapes_away():
    flat = torch.full((1, 3, 9, 6), 0.3)
    board = (torch.arange(9)[:, None] + torch.arange(6)).remainder(2).float().expand(1, 3, 9, 6)

    torch.testing.assert_close(fill_images(flat, "blur"), flat)
    blurred = fill_images(board, "blur")
    assert blurred.std() < 0.1 * board.std()
    assert not fill_images(board, "mean").any()
