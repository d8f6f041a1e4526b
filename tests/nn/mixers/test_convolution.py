from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.core.errors import ConfigError
from vitrail.interpret import record_attention
from vitrail.nn.masks import causal_mask, padding_mask
from vitrail.nn.mixers import MixerShape, build_mixer
from vitrail.nn.mixers.convolution import DynamicConvolution, LightConvolution, kernel_positions

BOTH = [LightConvolution, DynamicConvolution]


def kernels_of(mixer, values):
    """Return each token's normalised kernel of each head: b n h k."""
    if type(mixer) is LightConvolution:
        return mixer.position_scores.softmax(-1).expand(*values.shape[:2], -1, -1)
    return mixer.kernel(values).unflatten(-1, (mixer.num_heads, -1)).softmax(-1)


def slide_over_sequence(kernels, values, before):
    """Convolve one sequence by a loop over tokens, channels and places of a kernel, of which some are before
    the token."""
    (num_tokens, dim), (heads, size) = values.shape, kernels.shape[1:]
    out = torch.zeros_like(values)
    for i in range(num_tokens):
        for channel in range(dim):
            for j in range(size):
                at = i + j - before
                if 0 <= at < num_tokens:
                    out[i, channel] += kernels[i, channel * heads // dim, j] * values[at, channel]
    return out


@pytest.mark.parametrize(("causal", "before"), [(False, 2), (True, 4)])
@pytest.mark.parametrize("kind", BOTH)
def test_a_sequence_is_convolved_as_the_paper_writes(kind, causal, before):
    mixer = kind(6, 3, kernel_size=(1, 5), causal=causal)
    x = torch.randn(2, 7, 6)
    values = F.glu(mixer.expand(x))
    kernels = kernels_of(mixer, values)

    expected = torch.stack([slide_over_sequence(kernels[i], values[i], before) for i in range(2)])

    torch.testing.assert_close(mixer(x), mixer.projection(expected))


@pytest.mark.parametrize("kind", BOTH)
def test_the_mixing_matrix_times_the_values_is_the_output(kind):
    mixer = kind(12, 3, kernel_size=(3, 5))
    x = torch.randn(4, 2 + 28, 12)
    mask = padding_mask(torch.tensor([30, 9, 2, 17]), 30)

    with torch.no_grad(), record_attention(mixer) as maps:
        mixed = mixer(x, may_attend=mask, grid=(4, 7))

    values = F.glu(mixer.expand(x)).unflatten(-1, (3, 4)).transpose(1, 2)
    expected = mixer.projection((maps[0].weights @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(mixed, expected)
    assert maps[0].kind == "mixing"


@pytest.mark.parametrize("kind", BOTH)
def test_a_patch_sees_rows_and_columns_and_no_wrapped_neighbour(kind):
    mixer = kind(4, 2, kernel_size=(3, 3))
    x = torch.randn(1, 1 + 20, 4)

    with torch.no_grad(), record_attention(mixer) as maps:
        mixer(x, grid=(4, 5))

    weights = maps[0].weights[0, 0]
    torch.testing.assert_close(weights[0], weights[1:].mean(0))  # the prefix token averages over the patches
    assert not weights[1:, 0].any()
    for centre in range(20):
        for patch in range(20):
            rows, columns = abs(centre // 5 - patch // 5), abs(centre % 5 - patch % 5)
            assert (weights[1 + centre, 1 + patch] > 0) == (rows <= 1 and columns <= 1)
    torch.testing.assert_close(weights[1 + 6].sum(), torch.tensor(1.0))  # inside, the whole kernel


@pytest.mark.parametrize("kind", BOTH)
def test_the_kernels_learn_from_the_prefix_token_alone(kind):
    mixer = kind(4, 2, kernel_size=(3, 3))
    mixer(torch.randn(2, 1 + 20, 4), grid=(4, 5))[:, 0].square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in mixer.parameters())


def test_light_kernels_are_the_same_at_every_token_and_dynamic_ones_are_not():
    x = torch.randn(1, 5, 4)
    recorded = []
    for kind in BOTH:
        mixer = kind(4, 2, kernel_size=(1, 3))
        with torch.no_grad(), record_attention(mixer) as maps:
            mixer(x)
        recorded.append(maps[0].weights[0, 0].diagonal(1))
    light, dynamic = recorded
    assert light.std() < 1e-6
    assert dynamic.std() > 1e-4


@pytest.mark.parametrize("kind", BOTH)
def test_a_mask_that_differs_by_query_is_refused(kind):
    with pytest.raises(ConfigError, match=r"convolution.*padding mask"):
        kind(4, 2, kernel_size=(1, 3))(torch.randn(2, 5, 4), may_attend=causal_mask(5))


@pytest.mark.parametrize("kind", BOTH)
def test_a_causal_kernel_sees_no_later_token(kind):
    mixer = kind(4, 2, kernel_size=(1, 5), causal=True)
    x = torch.randn(2, 7, 4)
    changed = x.clone()
    changed[:, 4:] += 3.0

    with torch.no_grad(), record_attention(mixer) as maps:
        mixed = mixer(x, may_attend=causal_mask(7))

    assert torch.equal(mixer(changed)[:, :4], mixed[:, :4])
    assert not maps[0].weights.triu(1).any()
    values = F.glu(mixer.expand(x)).unflatten(-1, (2, 2)).transpose(1, 2)
    torch.testing.assert_close(mixed, mixer.projection((maps[0].weights @ values).transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("kind", BOTH)
def test_kernel_weights_are_dropped_in_training_only(kind):
    """DropConnect: some weights are zero, and the others larger by what is missing on average."""
    mixer, x = kind(4, 2, kernel_size=(1, 3), kernel_dropout=0.5), torch.randn(2, 40, 4)
    with torch.no_grad(), record_attention(mixer) as maps:
        for is_training in (True, False):
            mixer.train(is_training)(x)
    dropped, kept = (each.weights for each in maps)
    is_there = dropped > 0
    assert 0.2 < is_there.sum() / (kept > 0).sum() < 0.8
    torch.testing.assert_close(dropped[is_there], 2 * kept[is_there])


@pytest.mark.parametrize("name", ["light_convolution", "dynamic_convolution"])
def test_a_shape_says_how_wide_the_kernels_are(name):
    text, image = MixerShape(4, 2, 9), MixerShape(4, 2, 16, (4, 4))
    sizes = [
        build_mixer(name, shape).kernel_size
        for shape in (text, image, text._replace(kernel_size=31), image._replace(kernel_size=3))
    ]
    assert sizes == [(1, 15), (7, 7), (1, 31), (3, 3)]


@settings(max_examples=30, deadline=None)
@given(
    grid=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    radius=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_window_places_are_the_offsets_from_the_centre(grid, radius):
    size = (2 * radius[0] + 1, 2 * radius[1] + 1)
    places = kernel_positions(grid, size)
    for centre in range(grid[0] * grid[1]):
        for patch in range(grid[0] * grid[1]):
            row = patch // grid[1] - centre // grid[1] + radius[0]
            column = patch % grid[1] - centre % grid[1] + radius[1]
            inside = 0 <= row < size[0] and 0 <= column < size[1]
            assert places[centre, patch] == (row * size[1] + column if inside else size[0] * size[1])
