from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.func import functional_call

from torch_recurrence import TORCH_CELLS, randomise
from vitrail.interpret import record_attention
from vitrail.nn.context import ContextAttention
from vitrail.nn.masks import padding_mask
from vitrail.nn.recurrent import CELLS, Encoding
from vitrail.nn.recurrent_decoder import (
    AttentionDecoder,
    AttentionReadout,
    InputFeedingDecoder,
    RecurrentStack,
    SummaryDecoder,
    SummaryReadout,
)

DIM, HIDDEN, STEPS, TOKENS = 3, 6, 5, 7
LENGTHS = torch.tensor([4, 7])
SCORES = ["additive", "general", "dot", "scaled_dot"]
KINDS = ["one vector", *SCORES, *(f"{score}, fed" for score in SCORES)]


def build_decoder(kind: str, cell: str, *, depth: int = 2) -> nn.Module:
    has_attention = kind != "one vector"
    stack = RecurrentStack(
        DIM if has_attention else DIM + HIDDEN, HIDDEN, depth=depth, cell=cell, dropout=0.0
    )
    if not has_attention:
        return randomise(SummaryDecoder(stack, SummaryReadout(HIDDEN)))
    score, _, fed = kind.partition(", ")
    readout = AttentionReadout(ContextAttention(HIDDEN, HIDDEN, score=score), HIDDEN)
    return randomise((InputFeedingDecoder if fed else AttentionDecoder)(stack, readout))


def make_encoding() -> Encoding:
    return Encoding(torch.randn(2, TOKENS, HIDDEN), torch.randn(2, HIDDEN))


def torch_cells(decoder: nn.Module, name: str) -> list[partial]:
    """Return cells of torch with the same weights; the lowest reads what it is fed beside the token."""
    cells = []
    for index, ours in enumerate(decoder.stack.cells):
        weight = ours.weights.input_weight
        if index == 0 and isinstance(decoder, InputFeedingDecoder):
            weight = torch.cat((weight, decoder.feed.weight), dim=1)
        weights = {
            "weight_ih": weight,
            "weight_hh": ours.weights.hidden_weight,
            "bias_ih": ours.weights.input_bias,
            "bias_hh": ours.weights.hidden_bias,
        }
        cells.append(partial(functional_call, TORCH_CELLS[name](weight.shape[1], HIDDEN), weights))
    return cells


def average(decoder: nn.Module, hidden: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """Attend from one state to those of one sentence, without its padding."""
    attention = decoder.readout.attention
    if attention.score.__class__.__name__ == "AdditiveScore":
        inner = attention.query_projection.weight @ hidden + states @ attention.key_projection.weight.T
        scores = inner.tanh() @ attention.score.weight[0]
    else:
        scores = attention.key_projection(states) @ hidden
        scores = scores / HIDDEN**0.5 if attention.score.scale is None else scores
    return scores.softmax(0) @ states


def write_by_the_papers(decoder, name, x, encoding):
    """Return the attentional vectors of one sentence after another, step after step, by torch's cells."""
    cells, stack, readout = torch_cells(decoder, name), decoder.stack, decoder.readout
    sentences = []
    for b, length in enumerate(LENGTHS):
        states, summary = encoding.states[b, :length], encoding.summary[b]
        begun = (stack.beginning.weight @ summary + stack.beginning.bias).tanh().unflatten(0, (-1, HIDDEN))
        layers = [(begun[2 * i], begun[2 * i + 1]) if name == "lstm" else begun[i] for i in range(len(cells))]
        vector, vectors = torch.zeros(HIDDEN), []
        for token in x[b]:
            below = token
            if isinstance(decoder, SummaryDecoder):
                below = torch.cat((token, summary))
            elif isinstance(decoder, InputFeedingDecoder):
                below = torch.cat((token, vector))
            for index, cell in enumerate(cells):
                layers[index] = cell((below, layers[index]))
                below = layers[index][0] if name == "lstm" else layers[index]
            has_attention = not isinstance(decoder, SummaryDecoder)
            context = average(decoder, below, states) if has_attention else summary
            vector = (readout.of_context.weight @ context + readout.of_state.weight @ below).tanh()
            vectors.append(vector)
        sentences.append(torch.stack(vectors))
    return torch.stack(sentences)


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("kind", KINDS)
def test_decoders_and_their_gradients_follow_the_papers(kind, name):
    decoder, encoding, x = build_decoder(kind, name), make_encoding(), torch.randn(2, STEPS, DIM)
    inputs = {"x": x, "states": encoding.states, "summary": encoding.summary}
    for each in inputs.values():
        each.requires_grad_()
    sources = {**inputs, **dict(decoder.named_parameters())}
    if kind == "one vector":
        del sources["states"]

    expected = write_by_the_papers(decoder, name, x, encoding)
    vectors = decoder(x, decoder.start(encoding, padding_mask(LENGTHS, TOKENS)))

    torch.testing.assert_close(vectors, expected, rtol=1e-5, atol=1e-6)
    towards = torch.randn_like(expected)
    gradients = torch.autograd.grad((vectors * towards).sum(), list(sources.values()))
    wanted = torch.autograd.grad((expected * towards).sum(), list(sources.values()))
    for source, gradient, each in zip(sources, gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, each, rtol=1e-4, atol=1e-5, msg=source)


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_hypotheses_equal_all_steps_at_once(kind, name):
    decoder, encoding, x = build_decoder(kind, name), make_encoding(), torch.randn(6, STEPS, DIM)
    may_attend = padding_mask(LENGTHS, TOKENS)
    each_alone = Encoding(*(part.repeat_interleave(3, dim=0) for part in encoding))
    together = decoder(x, decoder.start(each_alone, may_attend.repeat_interleave(3, dim=0)))
    state = decoder.start(encoding, may_attend).expand(3)
    assert state.num_rows == 6
    assert all(len(part) == 2 for part in state.memory if isinstance(part, torch.Tensor))

    for step in range(STEPS):
        vectors, state = decoder.step(x[:, step], state)
        torch.testing.assert_close(vectors, together[:, step], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["one vector", "general", "additive, fed"])
def test_states_go_on_from_the_rows_and_sentences_that_were_chosen(kind):
    decoder, encoding, x = build_decoder(kind, "lstm"), make_encoding(), torch.randn(6, DIM)
    _, state = decoder.step(x, decoder.start(encoding, padding_mask(LENGTHS, TOKENS)).expand(3))
    expected, _ = decoder.step(x, state)

    chosen, _ = decoder.step(x[[2, 0, 0, 4, 3, 5]], state.select(torch.tensor([2, 0, 0, 4, 3, 5])))
    kept = state.keep(torch.tensor([1]))
    left, _ = decoder.step(x[3:], kept)
    turned, _ = decoder.step(x[[3, 4, 5, 0, 1, 2]], state.keep(torch.tensor([1, 0])))

    torch.testing.assert_close(chosen, expected[[2, 0, 0, 4, 3, 5]])
    assert kept.num_rows == 3
    torch.testing.assert_close(left, expected[3:])
    torch.testing.assert_close(turned, expected[[3, 4, 5, 0, 1, 2]])


@pytest.mark.parametrize("kind", KINDS[1:])
def test_alignments_are_recorded_as_one_map_that_hides_the_padding(kind):
    decoder, encoding, x = build_decoder(kind, "lstm"), make_encoding(), torch.randn(2, STEPS, DIM)
    state = decoder.start(encoding, padding_mask(LENGTHS, TOKENS))

    with torch.no_grad(), record_attention(decoder) as maps:
        vectors = decoder(x, state)
    with torch.no_grad(), record_attention(decoder, queries=[1, -1]) as rows:
        decoder(x, state)

    with torch.no_grad():
        assert torch.equal(vectors, decoder(x, state))
    (alignment,) = maps
    assert (alignment.layer, alignment.kind) == ("readout.attention", "cross")
    assert alignment.weights.shape == (2, 1, STEPS, TOKENS)
    torch.testing.assert_close(alignment.weights.sum(-1), torch.ones(2, 1, STEPS))
    assert (alignment.weights[0, ..., 4:] == 0).all()
    assert (alignment.weights[1] > 0).all()
    torch.testing.assert_close(rows[0].weights, alignment.weights[:, :, [1, -1]])


def test_recorded_weights_are_those_that_average_the_context():
    decoder, encoding, x = (
        build_decoder("general, fed", "gru", depth=1),
        make_encoding(),
        torch.randn(2, 1, DIM),
    )
    state = decoder.start(encoding, padding_mask(LENGTHS, TOKENS))
    with torch.no_grad(), record_attention(decoder) as maps:
        vectors, after = decoder.step(x[:, 0], state)
    context = (maps[0].weights[:, 0] @ encoding.states)[:, 0]
    expected = decoder.readout.of_context(context) + decoder.readout.of_state(after.layers[-1][0])
    torch.testing.assert_close(vectors, expected.tanh())
