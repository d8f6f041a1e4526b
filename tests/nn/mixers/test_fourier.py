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


def test_padding_counts_as_zeros():
    x = torch.randn(2, 7, 5)
    mask = padding_mask(torch.tensor([4, 7]), 7)
    zeroed = x.clone()
    zeroed[0, 4:] = 0
    assert torch.equal(FourierMixer()(x, may_attend=mask), FourierMixer()(zeroed))
