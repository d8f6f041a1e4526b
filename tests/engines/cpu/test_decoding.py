from __future__ import annotations

import pytest
import torch

from making.small_models import CAPTION_TRANSFORMER, FURTHER, TRANSFORMER
from vitrail.engines.cpu import accelerate
from vitrail.engines.cpu.decoding import GROUP_SIZE
from vitrail.models import build
from vitrail.models.decoding import beam_search, greedy

ENDS = {"begin_id": 1, "end_id": 2, "pad_id": 0}


def make_sentences(lengths):
    source = torch.zeros(len(lengths), max(lengths) + 1, dtype=torch.long)
    for row, length in zip(source, lengths, strict=True):
        row[:length] = torch.randint(3, 17, (length,))
    return source, torch.tensor(lengths)


def build_pair(name, changes):
    """Return a model and the same one accelerated."""
    plain, fast = build(name, **changes).eval(), build(name, **changes).eval()
    fast.load_state_dict(plain.state_dict())
    accelerate(fast)
    return plain, fast


def assert_same_hypotheses(plain, fast, inputs, num_rows):
    settings = {**ENDS, "max_lengths": torch.full((num_rows,), 7)}
    for search in (greedy, lambda *given, **kept: beam_search(*given, beam_size=3, num_best=2, **kept)):
        expected, found = (search(each, each.start(*inputs), **settings) for each in (plain, fast))
        for one, other in zip(expected, found, strict=True):
            pairs = zip(one, other, strict=True) if isinstance(one, list) else [(one, other)]
            for ours, theirs in pairs:
                assert ours.tokens == theirs.tokens
                assert ours.score == pytest.approx(theirs.score, rel=1e-4)


@pytest.mark.parametrize("num_sentences", [1, 3, GROUP_SIZE, GROUP_SIZE + 1, 2 * GROUP_SIZE + 3])
def test_every_sentence_is_read_as_by_the_plain_model(num_sentences):
    plain, fast = build_pair("transformer_base", TRANSFORMER)
    source, lengths = make_sentences([1 + (5 * index) % 7 for index in range(num_sentences)])
    for memory, expected in zip(
        fast.start(source, lengths).memories, plain.start(source, lengths).memories, strict=True
    ):
        assert memory.keys.shape == expected.keys.shape
        for row, length in enumerate(lengths.tolist()):
            torch.testing.assert_close(memory.keys[row, :, :length], expected.keys[row, :, :length])
            torch.testing.assert_close(memory.values[row, :, :length], expected.values[row, :, :length])


def test_sentences_of_like_lengths_are_read_together(monkeypatch):
    _, fast = build_pair("transformer_base", TRANSFORMER)
    read, encode = [], fast._encode

    def note(source, is_there):
        read.append(source.numel())
        return encode(source, is_there)

    monkeypatch.setattr(fast, "_encode", note)
    fast.start(*make_sentences([3, 40] * GROUP_SIZE))
    assert read == [3 * GROUP_SIZE, 40 * GROUP_SIZE]


@pytest.mark.parametrize("title", [None, *(each for each in FURTHER if each.startswith("transformer_"))])
def test_a_translator_writes_as_the_plain_model(title, monkeypatch):
    if title is None:  # by products instead of the fused kernel
        monkeypatch.setattr("vitrail.engines.cpu.decoding.MIN_HEADS_OF_PRODUCTS", 0)
        monkeypatch.setattr("vitrail.engines.cpu.decoding.MIN_KEYS_OF_PRODUCTS", 0)
    name, changes = FURTHER[title] if title else ("transformer_base", {})
    plain, fast = build_pair(name, {**TRANSFORMER, **changes})
    assert_same_hypotheses(plain, fast, make_sentences([7, 4, 2]), 3)
    assert [*fast.state_dict()] == [*plain.state_dict()]


def test_a_captioner_writes_as_the_plain_model():
    plain, fast = build_pair("caption_transformer", CAPTION_TRANSFORMER)
    assert_same_hypotheses(plain, fast, (torch.randn(2, 3, 16, 12),), 2)
