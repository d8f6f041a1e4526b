import pytest
import torch

from vitrail.nn.merging import PatchMerging, PostNormPatchMerging, merge_cells


def test_merged_cells_are_those_of_a_square_column_by_column():
    x = torch.arange(2 * 4 * 6 * 3.0).reshape(2, 4, 6, 3)
    merged = merge_cells(x)
    assert merged.shape == (2, 2, 3, 12)
    expected = torch.cat((x[1, 2, 4], x[1, 3, 4], x[1, 2, 5], x[1, 3, 5]))
    assert torch.equal(merged[1, 1, 2], expected)


def test_odd_maps_are_completed_with_zeros():
    merged = merge_cells(torch.ones(1, 3, 5, 1))
    assert merged.shape == (1, 2, 3, 4)
    assert merged[0, -1, -1].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert merged.sum() == 15


@pytest.mark.parametrize(("merging", "norm_first"), [(PatchMerging, True), (PostNormPatchMerging, False)])
def test_the_norm_stands_before_or_after_the_projection(merging, norm_first):
    layer, x = merging(3, 5), torch.randn(2, 3, 4, 6)
    torch.nn.init.normal_(layer.norm.weight)
    merged = merge_cells(x.movedim(1, -1))
    expected = layer.reduction(layer.norm(merged)) if norm_first else layer.norm(layer.reduction(merged))
    out = layer(x)
    assert torch.equal(out.movedim(1, -1), expected)
    assert out.is_contiguous(memory_format=torch.channels_last)
