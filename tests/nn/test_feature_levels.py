import torch

from vitrail.nn.feature_levels import cell_centres, cell_sizes, image_frame, join_levels
from vitrail.nn.layer_normed import cells_inside


def _levels(sizes, *, padded=True):
    sizes = torch.tensor(sizes)
    maps = [torch.randn(len(sizes), 3, 3, 5), torch.randn(len(sizes), 3, 2, 3)]
    inside = [cells_inside(sizes if padded else None, (24, 40), stride) for stride in (8, 16)]
    return maps, join_levels(maps, sizes, inside, strides=(8, 16))


def test_cells_follow_one_another_row_by_row_and_level_by_level():
    maps, levels = _levels([(24, 40)])
    assert levels.tokens.shape == (1, 21, 3)
    assert torch.equal(levels.tokens[0, 1 * 5 + 2], maps[0][0, :, 1, 2])
    assert torch.equal(levels.tokens[0, 15 + 1 * 3 + 2], maps[1][0, :, 1, 2])
    assert levels.grids == ((3, 5), (2, 3))


def test_centres_and_sizes_are_shares_of_the_image_without_padding():
    _, levels = _levels([(24, 40), (12, 20)])
    torch.testing.assert_close(cell_centres(levels)[0, 1 * 5 + 2], torch.tensor([20 / 40, 12 / 24]))
    torch.testing.assert_close(cell_centres(levels)[1, 0], torch.tensor([4 / 20, 4 / 12]))
    torch.testing.assert_close(cell_centres(levels)[0, 15], torch.tensor([8 / 40, 8 / 24]))
    torch.testing.assert_close(cell_sizes(levels)[1, 0], torch.tensor([8 / 20, 8 / 12]))
    torch.testing.assert_close(cell_sizes(levels)[1, -1], torch.tensor([16 / 20, 16 / 12]))


def test_cells_of_the_padding_are_told():
    _, levels = _levels([(24, 40), (8, 17)])
    assert levels.is_image[0].all()
    assert levels.is_image[1].nonzero().flatten().tolist() == [0, 1, 2, 15, 16]
    assert _levels([(24, 40)], padded=False)[1].is_image is None


def test_an_image_lies_in_its_maps_from_its_first_cell_to_its_last():
    _, levels = _levels([(24, 40), (8, 17)])
    frame = image_frame(levels)
    torch.testing.assert_close(frame.extent[0], torch.tensor([[1.0, 40 / 48], [1.0, 24 / 32]]))
    torch.testing.assert_close(frame.extent[1], torch.tensor([[17 / 40, 17 / 48], [8 / 24, 8 / 32]]))
    torch.testing.assert_close(frame.first[1], torch.tensor([[0.5 / 5, 0.5 / 3], [0.5 / 3, 0.5 / 2]]))
    torch.testing.assert_close(frame.last[0], torch.tensor([[4.5 / 5, 2.5 / 3], [2.5 / 3, 1.5 / 2]]))
    torch.testing.assert_close(frame.last[1], torch.tensor([[2.5 / 5, 1.5 / 3], [0.5 / 3, 0.5 / 2]]))
