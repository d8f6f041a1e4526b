from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitrail.core.errors import DataError
from vitrail.nn.mixers import MixerShape
from vitrail.nn.mixers.token_mlp import TokenMLP

GRID, PREFIX, DIM = (3, 5), 2, 7


@pytest.fixture
def mixer() -> TokenMLP:
    return TokenMLP(MixerShape(DIM, 1, PREFIX + 15, GRID), 11)


def _mix_by_hand(mixer: TokenMLP, x: torch.Tensor) -> torch.Tensor:
    """Give each channel's values to the linear layers as they are called otherwise."""
    return mixer.contract(F.gelu(mixer.expand(x.transpose(1, 2)))).transpose(1, 2)


def _resize(x: torch.Tensor, old: tuple[int, int], new: tuple[int, int]) -> torch.Tensor:
    patches = x[:, PREFIX:].transpose(1, 2).reshape(len(x), DIM, *old)
    patches = F.interpolate(patches, size=new, mode="bilinear", antialias=True)
    return torch.cat((x[:, :PREFIX], patches.flatten(2).transpose(1, 2)), dim=1)


def test_each_channel_goes_through_the_mlp_over_places(mixer):
    x = torch.randn(2, PREFIX + 15, DIM)
    torch.testing.assert_close(mixer(x, grid=GRID), _mix_by_hand(mixer, x))


@pytest.mark.parametrize("grid", [(4, 2), (6, 10), (1, 1), (5, 3), (13, 4)])
def test_patches_of_another_grid_act_as_if_resampled_to_the_native_one_and_back(mixer, grid):
    x = torch.randn(2, PREFIX + grid[0] * grid[1], DIM)
    expected = _resize(_mix_by_hand(mixer, _resize(x, grid, GRID)), GRID, grid)
    torch.testing.assert_close(mixer(x, grid=grid), expected)


def test_every_patch_of_a_much_finer_grid_counts(mixer):
    x = torch.zeros(1, PREFIX + 30 * 50, DIM, requires_grad=True)
    mixer(x, grid=(30, 50)).square().sum().backward()
    assert (x.grad.abs().amax(-1) > 0).all()


def test_a_shorter_sequence_is_completed_with_zeros():
    mixer = TokenMLP(MixerShape(DIM, 1, 17), 11)
    x = torch.randn(2, 13, DIM)
    expected = _mix_by_hand(mixer, F.pad(x, (0, 0, 0, 4)))[:, :13]
    torch.testing.assert_close(mixer(x), expected)


def test_padding_counts_as_zeros(mixer):
    x, is_there = torch.randn(2, PREFIX + 15, DIM), torch.rand(2, PREFIX + 15) < 0.6
    expected = _mix_by_hand(mixer, x * is_there[..., None])
    x[~is_there] = torch.nan
    torch.testing.assert_close(mixer(x, may_attend=is_there[:, None, None], grid=GRID), expected)


def test_a_sequence_longer_than_the_weights_is_refused():
    mixer = TokenMLP(MixerShape(DIM, 1, 17), 11)
    with pytest.raises(DataError, match="18 tokens for a mixer with weights for 17"):
        mixer(torch.randn(2, 18, DIM))


def test_gradients_at_another_grid_are_those_of_resampled_tokens(mixer):
    other = TokenMLP(MixerShape(DIM, 1, PREFIX + 15, GRID), 11)
    other.load_state_dict(mixer.state_dict())
    x, target = torch.randn(2, PREFIX + 8, DIM), torch.randn(2, PREFIX + 8, DIM)

    (mixer(x, grid=(4, 2)) * target).sum().backward()
    (_resize(_mix_by_hand(other, _resize(x, (4, 2), GRID)), GRID, (4, 2)) * target).sum().backward()

    for (name, parameter), expected in zip(mixer.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-4, atol=1e-5, msg=name)


def test_the_layers_are_ordinary_linear_layers(mixer):
    assert isinstance(mixer.expand, nn.Linear)
    assert mixer.expand.weight.shape == (11, 17)
    assert mixer.contract.weight.shape == (17, 11)
