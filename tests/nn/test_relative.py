from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers.models.swin.modeling_swin import SwinRelativePositionBias
from transformers.models.swinv2.modeling_swinv2 import Swinv2Config, Swinv2SelfAttention
from transformers.models.t5.modeling_t5 import T5Attention

from vitrail.interpret.record import record_attention
from vitrail.nn.attention import Attention
from vitrail.nn.relative import (
    ContinuousRelativeBias,
    GridRelativeBias,
    PairwiseBias,
    relative_index,
    resize_relative_table,
)
from vitrail.nn.rotary import GridRotary, SequenceRotary
from vitrail.nn.sequence_positions import SequenceRelativeBias, distance_buckets

GRID_SCHEMES = [GridRelativeBias, ContinuousRelativeBias, PairwiseBias]
SIDES = st.integers(1, 5)


def make_scheme(scheme, grid):
    if scheme in GRID_SCHEMES:
        return scheme(grid, 2, num_prefix=1)
    return scheme(2) if scheme is SequenceRelativeBias else scheme()


@settings(max_examples=20, deadline=None)
@given(rows=SIDES, columns=SIDES)
def test_the_index_names_every_relative_position_in_order(rows, columns):
    index = relative_index((rows, columns)).reshape(rows, columns, rows, columns)
    down, right = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    by_row, by_column = (at[:, :, None, None] - at for at in (down, right))
    assert torch.equal(index // (2 * columns - 1), by_row + rows - 1)
    assert torch.equal(index % (2 * columns - 1), by_column + columns - 1)


def test_the_table_is_read_as_swins():
    reference = SwinRelativePositionBias(3, (4, 5))
    nn.init.normal_(reference.relative_position_bias_table)
    bias = GridRelativeBias((4, 5), 3)
    bias.load_state_dict({"table": reference.relative_position_bias_table})
    assert torch.equal(bias((4, 5)), reference())


def test_the_continuous_bias_is_that_of_swin_v2():
    config = Swinv2Config(embed_dim=6, num_heads=[3], window_size=5)
    reference = Swinv2SelfAttention(config, dim=6, num_heads=3, window_size=5)
    for parameter in reference.continuous_position_bias_mlp.parameters():
        nn.init.normal_(parameter)
    first, _, second = reference.continuous_position_bias_mlp
    bias = ContinuousRelativeBias((5, 5), 3)
    bias.load_state_dict(
        {"expand.weight": first.weight, "expand.bias": first.bias, "contract.weight": second.weight}
    )

    table = reference.continuous_position_bias_mlp(reference.relative_coords_table).reshape(-1, 3)
    pairs = 16 * table[reference.relative_position_index.flatten()].sigmoid()
    torch.testing.assert_close(bias((5, 5))[0], pairs.reshape(25, 25, 3).permute(2, 0, 1))


def test_the_continuous_bias_keeps_what_it_knows_on_a_larger_grid():
    bias = ContinuousRelativeBias((3, 4), 2)
    nn.init.normal_(bias.expand.weight)
    nn.init.normal_(bias.contract.weight)
    larger = bias((5, 7)).reshape(2, 5, 7, 5, 7)
    torch.testing.assert_close(larger[:, :3, :4, :3, :4].reshape(2, 12, 12), bias((3, 4))[0])


def test_a_single_row_has_no_distance_to_divide_by():
    assert ContinuousRelativeBias((1, 4), 2)((1, 4)).isfinite().all()


@settings(max_examples=20, deadline=None)
@given(old=st.tuples(SIDES, SIDES), new=st.tuples(SIDES, SIDES))
def test_a_resized_table_keeps_constants_and_symmetry(old, new):
    torch.manual_seed(0)
    shape = (2 * old[0] - 1, 2 * old[1] - 1)
    table = torch.randn(*shape, 3)
    table = (table + table.flip(0, 1)).flatten(0, 1)  # the same in opposite directions
    resized = resize_relative_table(table, old, new)

    torch.testing.assert_close(resized, resized.flip(0), rtol=1e-4, atol=1e-4)
    constant = resize_relative_table(torch.full_like(table, 0.5), old, new)
    torch.testing.assert_close(constant, torch.full_like(constant, 0.5))


def test_distance_zero_keeps_its_place_when_a_table_is_resized():
    table = torch.zeros(5, 7, 1)
    table[2, 3] = 1.0
    resized = resize_relative_table(table.flatten(0, 1), (3, 4), (6, 6)).reshape(11, 11)
    assert resized.argmax() == 5 * 11 + 5


@pytest.mark.parametrize("scheme", GRID_SCHEMES)
def test_tables_that_fit_are_not_resized_and_others_keep_gradients(scheme):
    bias = scheme((2, 3), 4, num_prefix=1)
    assert bias((2, 3)).shape == (1, 4, 7, 7)
    resized = bias((5, 4))
    assert resized.shape == (1, 4, 21, 21)
    resized.square().sum().backward()
    for name, parameter in bias.named_parameters():
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("scheme", [GridRelativeBias, ContinuousRelativeBias])
def test_pairs_with_a_prefix_token_get_no_bias(scheme):
    plain, prefixed = scheme((2, 3), 4), scheme((2, 3), 4, num_prefix=2)
    prefixed.load_state_dict(plain.state_dict())
    bias = prefixed((2, 3))
    assert torch.equal(bias[..., 2:, 2:], plain((2, 3)))
    assert bias[..., :2, :].abs().max() == 0
    assert bias[..., :, :2].abs().max() == 0


def test_pairwise_bias_is_a_number_of_its_own_for_each_pair():
    bias = PairwiseBias((2, 3), 4, num_prefix=1)
    assert bias.table.shape == (4, 7, 7)
    assert torch.equal(bias((2, 3))[0], bias.table)


def test_resizing_a_pairwise_bias_acts_on_queries_and_keys_alike():
    bias = PairwiseBias((2, 3), 2, num_prefix=1)
    nn.init.normal_(bias.table)
    resized = bias((4, 5))
    with torch.no_grad():
        bias.table.copy_(bias.table.transpose(1, 2).clone())
    torch.testing.assert_close(bias((4, 5)), resized.transpose(2, 3), rtol=1e-4, atol=1e-5)


def test_a_resized_pairwise_bias_of_two_factors_is_the_product_of_the_resized_factors():
    bias = PairwiseBias((2, 3), 1)
    by_query, by_key = torch.randn(6), torch.randn(6)
    with torch.no_grad():
        bias.table.copy_(torch.outer(by_query, by_key)[None])

    def resized(places: torch.Tensor) -> torch.Tensor:
        image = places.reshape(1, 1, 2, 3)
        return nn.functional.interpolate(image, (4, 5), mode="bicubic", antialias=True).flatten()

    expected = torch.outer(resized(by_query), resized(by_key))
    torch.testing.assert_close(bias((4, 5))[0, 0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 16)])
def test_buckets_are_those_of_t5(bidirectional, num_buckets, max_distance):
    relative = torch.arange(-300, 300)
    expected = T5Attention._relative_position_bucket(relative, bidirectional, num_buckets, max_distance)
    actual = distance_buckets(
        relative, num_buckets=num_buckets, max_distance=max_distance, bidirectional=bidirectional
    )
    assert torch.equal(actual, expected)


def test_later_queries_alone_get_the_bias_they_have_among_all():
    bias = SequenceRelativeBias(3, num_buckets=8, max_distance=16, bidirectional=False)
    assert torch.equal(bias(2, 7), bias(7, 7)[:, :, 5:])


@pytest.mark.parametrize("scheme", [*GRID_SCHEMES, SequenceRelativeBias, GridRotary, SequenceRotary])
@pytest.mark.parametrize("grid", [(3, 5), (4, 2)])
def test_attention_places_its_tokens_inside_the_softmax_and_records_it(scheme, grid):
    positions = make_scheme(scheme, (3, 5))
    for parameter in positions.parameters():
        nn.init.normal_(parameter)
    layer, num_tokens = Attention(8, 2, positions=positions), 1 + math.prod(grid)
    x = torch.randn(2, num_tokens, 8)
    query, key, value = layer.qkv(x).reshape(2, num_tokens, 3, 2, 4).permute(2, 0, 3, 1, 4)
    query, key, bias = positions.place(query, key, grid=grid)
    assert (bias is None) == (scheme in (GridRotary, SequenceRotary))
    weights = (query @ key.transpose(-2, -1) / 2 + (0 if bias is None else bias)).softmax(-1)

    with record_attention(layer) as maps:
        out = layer(x, grid=grid)

    torch.testing.assert_close(maps[0].weights, weights, rtol=1e-4, atol=1e-6)
    assert maps[0].num_prefix == 1
    expected = layer.projection((weights @ value).transpose(1, 2).flatten(2))
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.compiled
@pytest.mark.parametrize("scheme", [*GRID_SCHEMES, GridRotary, SequenceRotary])
@pytest.mark.parametrize("grid", [pytest.param((2, 3), marks=pytest.mark.further), (3, 4)])
def test_attention_with_positions_compiles_to_one_graph(scheme, grid):
    layer = Attention(8, 2, positions=make_scheme(scheme, (2, 3)))
    x = torch.randn(2, 1 + math.prod(grid), 8)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, grid=grid), layer(x, grid=grid), rtol=1e-5, atol=1e-6)
