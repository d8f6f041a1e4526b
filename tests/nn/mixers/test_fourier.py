from __future__ import annotations

import math

import torch

from vitrail.nn.masks import padding_mask
from vitrail.nn.mixers.fourier import FourierMixer


def test_it_is_the_real_part_of_the_transform_over_tokens_and_channels():
    x = torch.randn(2, 7, 5, dtype=torch.float64)
    tokens, channels = (
        2 * math.pi / length * torch.outer(torch.arange(length), torch.arange(length)).double()
        for length in (7, 5)
    )
    # The real part of exp(-ia) exp(-ib) is cos(a) cos(b) - sin(a) sin(b).
    expected = tokens.cos() @ x @ channels.cos() - tokens.sin() @ x @ channels.sin()

    torch.testing.assert_close(FourierMixer()(x), expected)


def test_it_has_no_parameters():
    assert not list(FourierMixer().parameters())


def test_narrow_tokens_are_transformed_in_float32():
    x = torch.randn(2, 64, 48).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = FourierMixer()(x)
    assert torch.equal(mixed, FourierMixer()(x.float()).bfloat16())


def test_a_padded_sequence_is_transformed_over_its_own_length():
    x = torch.randn(3, 7, 5)
    lengths = torch.tensor([4, 7, 1])
    mixed = FourierMixer()(x, may_attend=padding_mask(lengths, 7))
    for row, length in enumerate(lengths):
        torch.testing.assert_close(mixed[row, :length], FourierMixer()(x[[row], :length])[0])


def test_padding_may_stand_anywhere():
    x = torch.randn(1, 5, 3)
    is_there = torch.tensor([True, False, True, True, False])
    mixed = FourierMixer()(x, may_attend=is_there[None, None, None])
    torch.testing.assert_close(mixed[:, is_there], FourierMixer()(x[:, is_there]))


def test_padded_sequences_are_counted_on_the_meta_device():
    with torch.device("meta"):
        may_attend = torch.ones(2, 1, 1, 5, dtype=torch.bool)
        assert FourierMixer()(torch.empty(2, 5, 3), may_attend=may_attend).shape == (2, 5, 3)
