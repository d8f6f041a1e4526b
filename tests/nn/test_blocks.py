from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from vitrail.nn.attention import Attention
from vitrail.nn.blocks import MLP, Block, DropPath, TokenBatchNorm
from vitrail.nn.linear import LayerScale


class Mixer(nn.Module):
    """A mixer without randomness: the mean over the tokens, and a record of what it was given."""

    def forward(self, x: Tensor, *, may_attend=None, grid=None) -> Tensor:
        self.given = (may_attend, grid)
        return x.mean(dim=1, keepdim=True).expand_as(x)


def _norm(dim: int) -> nn.Module:
    norm = nn.LayerNorm(dim)
    nn.init.normal_(norm.weight)
    return norm


@pytest.fixture
def x() -> Tensor:
    return torch.randn(3, 5, 4)


def test_pre_norm_block_follows_equations_two_and_three(x):
    block = Block(4, mixer=Mixer(), mlp=MLP(4, 7), norm=_norm)
    middle = x + block.mixer(block.mixer_norm(x))
    assert torch.equal(block(x), middle + block.mlp(block.mlp_norm(middle)))


def test_post_norm_block_normalises_the_sum(x):
    block = Block(4, mixer=Mixer(), mlp=MLP(4, 7), norm=_norm, norm_place="post")
    middle = block.mixer_norm(x + block.mixer(x))
    assert torch.equal(block(x), block.mlp_norm(middle + block.mlp(middle)))


def test_branch_post_norm_block_normalises_the_branch(x):
    block = Block(4, mixer=Mixer(), mlp=MLP(4, 7), norm=_norm, norm_place="branch_post")
    middle = x + block.mixer_norm(block.mixer(x))
    assert torch.equal(block(x), middle + block.mlp_norm(block.mlp(middle)))


def test_post_norm_block_equals_torchs_encoder_layer(x):
    reference = nn.TransformerEncoderLayer(4, 2, 7, dropout=0.0, activation="gelu", batch_first=True)
    block = Block(4, mixer=Attention(4, 2), mlp=MLP(4, 7), norm_place="post")
    block.mixer.qkv.weight, block.mixer.qkv.bias = (
        reference.self_attn.in_proj_weight,
        reference.self_attn.in_proj_bias,
    )
    block.mixer.projection = reference.self_attn.out_proj
    block.mlp.expand, block.mlp.contract = reference.linear1, reference.linear2
    torch.testing.assert_close(block(x), reference(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("place", ["pre", "post", "branch_post"])
def test_mask_and_grid_reach_the_mixer(place, x):
    mixer, may_attend = Mixer(), torch.ones(1, 1, 5, 5, dtype=torch.bool)
    Block(4, mixer=mixer, mlp=MLP(4, 7), norm_place=place)(x, may_attend=may_attend, grid=(1, 5))
    assert mixer.given == (may_attend, (1, 5))


def test_layer_scale_starts_small_and_keeps_the_type(x):
    scale = LayerScale(4, initial=0.25)
    assert torch.equal(scale(x), x / 4)
    assert scale(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("place", ["pre", "branch_post"])
def test_layer_scale_of_a_block_scales_both_branches(place, x):
    block = Block(4, mixer=Mixer(), mlp=MLP(4, 7), norm_place=place, layer_scale=1e-3)
    assert 0 < (block(x) - x).abs().max() < 0.02


def test_layer_scale_of_a_post_norm_block_leaves_the_norms_of_its_input(x):
    block = Block(4, mixer=Mixer(), mlp=MLP(4, 7), layer_scale=1e-6, norm_place="post")
    torch.testing.assert_close(block(x), block.mlp_norm(block.mixer_norm(x)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("place", ["pre", "post", "branch_post"])
def test_a_dropped_path_leaves_only_what_stands_outside_the_branches(place, x):
    block = Block(4, mixer=Mixer(), mlp=MLP(4, 7), norm_place=place, drop_path=0.999_999)
    expected = block.mlp_norm(block.mixer_norm(x)) if place == "post" else x
    assert torch.equal(block(x), expected)
    assert not torch.equal(block.eval()(x), expected)


@pytest.mark.parametrize("place", ["pre", "post", "branch_post"])
def test_dropout_of_a_block_acts_in_training_only(place, x):
    block = Block(4, mixer=Mixer(), mlp=MLP(4, 7), norm_place=place, dropout=0.5)
    assert not torch.equal(block(x), block(x))
    assert torch.equal(block.eval()(x), block(x))


def test_drop_path_drops_whole_samples_and_keeps_the_mean():
    x = torch.ones(2000, 3, 2)
    dropped = DropPath(0.25)(x)
    assert torch.equal(dropped, dropped[:, :1, :1].expand_as(dropped))
    assert set(dropped.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.04)  # three standard errors


def test_drop_path_is_repeated_by_the_seed_of_torch(x):
    path, results = DropPath(0.5), []
    for _ in range(2):
        torch.manual_seed(3)
        results.append(path(x))
    assert torch.equal(*results)


def test_drop_path_at_rest_draws_no_random_number(x):
    state = torch.get_rng_state()
    assert DropPath(0.5).eval()(x) is x
    assert DropPath(0.0)(x) is x
    assert torch.equal(torch.get_rng_state(), state)


def test_an_mlp_may_change_the_width(x):
    assert MLP(4, 7, out_dim=3)(x).shape == (3, 5, 3)


def test_batch_norm_of_tokens_equals_torchs_of_channels_first(x):
    ours, theirs = TokenBatchNorm(4, eps=0.1), nn.BatchNorm1d(4, eps=0.1)
    for _ in range(2):  # the second time, the running averages have moved
        torch.testing.assert_close(ours(x), theirs(x.mT).mT)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x.mT).mT)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
