"""What every registered token mixer must do, whatever it mixes by."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vitrail.core.errors import ConfigError, VitrailError
from vitrail.interpret import record_attention
from vitrail.nn.masks import causal_mask, padding_mask
from vitrail.nn.mixers import MIXERS, MixerShape, build_mixer

DIM, HEADS, PREFIX, GRID = 12, 3, 2, (3, 5)
NUM_TOKENS = PREFIX + 15
IMAGE = MixerShape(DIM, HEADS, NUM_TOKENS, GRID)
TEXT = MixerShape(DIM, HEADS, NUM_TOKENS)


@pytest.fixture(params=sorted(MIXERS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def mixer(name: str) -> nn.Module:
    """A mixer for an image's tokens."""
    return build_mixer(name, IMAGE).eval()


@pytest.fixture
def text_mixer(name: str) -> nn.Module:
    """A mixer for sequences; one that reads rows and columns says so when it is built."""
    try:
        return build_mixer(name, TEXT).eval()
    except ConfigError as error:
        if "rows and columns" not in error.given:
            raise
        pytest.skip(f"{name} mixes images alone")


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randn(4, NUM_TOKENS, DIM)


def mix_or_refuse(mixer: nn.Module, x: torch.Tensor, **arguments) -> tuple[torch.Tensor | None, str]:
    """Return new tokens, or what the mixer says to refuse them."""
    try:
        return mixer(x, **arguments), ""
    except VitrailError as error:
        return None, str(error)


def pad_differently(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return the same sequences with other content in their padding."""
    is_there = padding_mask(lengths, x.shape[1])[:, 0, 0, :, None]
    return torch.where(is_there, x, 7.0 * torch.randn_like(x))


@pytest.mark.parametrize("grid", [(3, 5), (7, 2), (2, 4), (1, 1), (6, 10)])
@pytest.mark.parametrize("num_prefix", [0, 2])
def test_any_grid_of_an_image_is_mixed(name, grid, num_prefix):
    mixer = build_mixer(name, MixerShape(DIM, HEADS, num_prefix + 15, GRID))
    x = torch.randn(2, num_prefix + grid[0] * grid[1], DIM, requires_grad=True)

    mixed = mixer(x, grid=grid)

    assert mixed.shape == x.shape
    assert mixed.isfinite().all()
    mixed.square().sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("num_tokens", [1, 2, 11, NUM_TOKENS])
def test_sequences_up_to_the_greatest_length_are_mixed(text_mixer, num_tokens):
    x = torch.randn(3, num_tokens, DIM)
    assert text_mixer(x).shape == x.shape


def test_a_longer_sequence_is_mixed_or_refused_with_the_limit(text_mixer):
    x = torch.randn(3, NUM_TOKENS + 4, DIM)
    mixed, refusal = mix_or_refuse(text_mixer, x)
    if mixed is None:
        assert f"at most {NUM_TOKENS} tokens" in refusal
    else:
        assert mixed.shape == x.shape


def test_tokens_are_mixed(mixer, tokens):
    changed = tokens.clone()
    changed[:, -1] += 5 * torch.randn(len(tokens), DIM)
    difference = (mixer(changed, grid=GRID) - mixer(tokens, grid=GRID)).abs().amax(-1)
    assert (difference[:, :-1] > 1e-6).any()


def test_a_prefix_token_sees_the_whole_image(mixer, tokens):
    changed = tokens.clone()
    changed[:, -1] += 5 * torch.randn(len(tokens), DIM)
    difference = (mixer(changed, grid=GRID) - mixer(tokens, grid=GRID)).abs().amax(-1)
    assert (difference[:, :PREFIX] > 1e-6).all()


def test_padding_changes_nothing_at_the_other_tokens_of_a_sequence(text_mixer, tokens):
    lengths = torch.tensor([NUM_TOKENS, 11, 2, 1])
    mask = padding_mask(lengths, NUM_TOKENS)

    mixed = text_mixer(tokens, may_attend=mask)
    other = text_mixer(pad_differently(tokens, lengths), may_attend=mask)

    for row, length in enumerate(lengths):
        torch.testing.assert_close(other[row, :length], mixed[row, :length])


def test_padding_changes_nothing_at_the_other_tokens_of_an_image(mixer, tokens):
    lengths = torch.tensor([NUM_TOKENS, 11, PREFIX + 1, PREFIX])
    mask = padding_mask(lengths, NUM_TOKENS)

    mixed = mixer(tokens, may_attend=mask, grid=GRID)
    other = mixer(pad_differently(tokens, lengths), may_attend=mask, grid=GRID)

    for row, length in enumerate(lengths):
        torch.testing.assert_close(other[row, :length], mixed[row, :length])


def test_one_padding_mask_may_stand_for_the_whole_batch(text_mixer, tokens):
    shared = padding_mask(torch.tensor([11]), NUM_TOKENS)
    each = padding_mask(torch.full((4,), 11), NUM_TOKENS)
    mixed = text_mixer(tokens, may_attend=shared)
    torch.testing.assert_close(mixed[:, :11], text_mixer(tokens, may_attend=each)[:, :11])


def test_a_mask_that_hides_nothing_changes_nothing(mixer, tokens):
    mask = padding_mask(torch.full((4,), NUM_TOKENS), NUM_TOKENS)
    torch.testing.assert_close(mixer(tokens, may_attend=mask, grid=GRID), mixer(tokens, grid=GRID))


def test_a_causal_mask_is_respected_or_refused(text_mixer, tokens):
    changed = tokens.clone()
    changed[:, 6:] += 5.0
    mask = causal_mask(NUM_TOKENS)
    mixed, refusal = mix_or_refuse(text_mixer, tokens, may_attend=mask)
    if mixed is None:
        assert "differs by query" in refusal
    else:
        torch.testing.assert_close(text_mixer(changed, may_attend=mask)[:, :6], mixed[:, :6])


@pytest.mark.parametrize("grid", [GRID, (4, 6)])
def test_gradients_reach_every_parameter(mixer, grid):
    x = torch.randn(3, PREFIX + grid[0] * grid[1], DIM, requires_grad=True)
    mixer.train()(x, grid=grid).square().sum().backward()
    for name, parameter in [("the tokens", x), *mixer.named_parameters()]:
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_samples_of_a_batch_are_independent(mixer, tokens):
    mixed = mixer(tokens, grid=GRID)
    torch.testing.assert_close(mixer(tokens[1:2], grid=GRID), mixed[1:2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_tokens_keep_their_type(name, tokens, dtype):
    mixer = build_mixer(name, IMAGE).to(dtype)
    assert mixer(tokens.to(dtype), grid=GRID).dtype == dtype


def test_autocast_stays_near_float32(mixer, tokens):
    with torch.no_grad():
        exact = mixer(tokens, grid=GRID)
        with torch.autocast("cpu", torch.bfloat16):
            narrow = mixer(tokens, grid=GRID)
    scale = float(exact.std())  # large for a Fourier transform, small for means
    torch.testing.assert_close(narrow.float() / scale, exact / scale, rtol=0.1, atol=0.1)


def test_recorded_weights_are_those_of_all_tokens_or_there_are_none(mixer, tokens):
    expected = mixer(tokens, grid=GRID)
    if not hasattr(mixer, "tap"):
        with pytest.raises(ConfigError, match="without attention"), record_attention(mixer):
            pass
        return
    with torch.no_grad(), record_attention(mixer) as maps:
        recorded = mixer(tokens, grid=GRID)

    assert torch.equal(recorded, expected)
    (recorded_map,) = maps
    assert recorded_map.kind in ("self", "mixing")
    assert (recorded_map.grid, recorded_map.num_prefix) == (GRID, PREFIX)
    assert recorded_map.weights.shape[0] == len(tokens)
    assert recorded_map.weights.shape[2:] == (NUM_TOKENS, NUM_TOKENS)


def test_recorded_weights_of_padding_are_zero(text_mixer, tokens):
    if not hasattr(text_mixer, "tap"):
        pytest.skip("has no mixing matrix")
    lengths = torch.tensor([NUM_TOKENS, 11, 2, 1])
    with torch.no_grad(), record_attention(text_mixer) as maps:
        text_mixer(tokens, may_attend=padding_mask(lengths, NUM_TOKENS))

    for row, length in enumerate(lengths):
        assert not maps[0].weights[row, :, :length, length:].any()


@pytest.mark.compiled
@pytest.mark.parametrize("grid", [GRID, pytest.param((4, 6), marks=pytest.mark.further)])
def test_compiled_mixers_are_one_graph_and_equal_eager(mixer, grid):
    x = torch.randn(3, PREFIX + grid[0] * grid[1], DIM)
    mask = padding_mask(torch.tensor([7, 17, 5]), x.shape[1])
    compiled = torch.compile(mixer, backend="eager", fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(x, grid=grid), mixer(x, grid=grid))
        assert torch.equal(compiled(x, may_attend=mask, grid=grid), mixer(x, may_attend=mask, grid=grid))


@pytest.mark.compiled
def test_an_exported_mixer_takes_any_batch(mixer, tokens):
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(
        mixer, (tokens,), {"grid": GRID}, dynamic_shapes={"x": {0: batch}, "grid": (None, None)}
    ).module()
    x = torch.randn(7, NUM_TOKENS, DIM)
    torch.testing.assert_close(exported(x, grid=GRID), mixer(x, grid=GRID))
