from __future__ import annotations

import pytest
import torch

from vitrail.nn.decoder_attention import CrossAttention
from vitrail.nn.decoder_memory import GROUP_SIZE, read_sentences, remember_all

VOCABULARY, DIM = 11, 6


class Encoder:
    """Embeds tokens, adds the mean of those that are no padding, and notes how much it was given."""

    def __init__(self) -> None:
        self.table = torch.randn(VOCABULARY, DIM)
        self.num_tokens: list[int] = []

    def __call__(self, tokens, may_attend):
        self.num_tokens.append(tokens.numel())
        there = torch.ones(tokens.shape) if may_attend is None else may_attend[:, 0, 0].float()
        x = self.table[tokens]
        mean = (x * there[..., None]).sum(1, keepdim=True) / there.sum(1)[:, None, None]
        return x + mean


def make_sentences(lengths):
    source = torch.zeros(len(lengths), max(lengths) + 1, dtype=torch.long)
    for row, length in zip(source, lengths, strict=True):
        row[:length] = torch.randint(1, VOCABULARY, (length,))
    return source, torch.tensor(lengths)


@pytest.mark.parametrize("num_sentences", [1, 3, GROUP_SIZE, GROUP_SIZE + 1, 2 * GROUP_SIZE + 3])
def test_every_sentence_is_read_as_if_it_were_alone(num_sentences):
    encoder = Encoder()
    attentions = [CrossAttention(DIM, 2) for _ in range(3)]
    source, lengths = make_sentences([1 + (5 * place) % 7 for place in range(num_sentences)])

    with torch.no_grad():
        memories = read_sentences(encoder, attentions, source, lengths)

        assert len(memories) == 3
        for row, length in enumerate(lengths.tolist()):
            alone = remember_all(attentions, encoder(source[row : row + 1, :length], None))
            for memory, expected in zip(memories, alone, strict=True):
                assert memory.keys.shape[2] == source.shape[1]
                torch.testing.assert_close(memory.keys[row, :, :length], expected.keys[0])
                torch.testing.assert_close(memory.values[row, :, :length], expected.values[0])


def test_sentences_of_like_lengths_are_read_together():
    encoder = Encoder()
    source, lengths = make_sentences([3, 40] * GROUP_SIZE)

    with torch.no_grad():
        read_sentences(encoder, [CrossAttention(DIM, 2)], source, lengths)

    assert encoder.num_tokens == [3 * GROUP_SIZE, 40 * GROUP_SIZE]


def test_the_keys_of_a_head_lie_in_a_row():
    context = torch.randn(2, 5, DIM)
    with torch.no_grad():
        (memory,) = remember_all([CrossAttention(DIM, 2)], context)

    assert memory.keys.is_contiguous()
    assert memory.values.is_contiguous()
