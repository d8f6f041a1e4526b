from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from making.torch_recurrence import TORCH_CELLS, randomise
from vitrail.interpret import record_attention
from vitrail.nn.masks import padding_mask
from vitrail.nn.recurrent import CELLS, Encoding
from vitrail.nn.recurrent_decoder import (
    AttentionDecoder,
    ContextAttention,
    ContextFeedingDecoder,
    ImageAttentionDecoder,
    InputFeedingDecoder,
    Readout,
    RecurrentStack,
    SummaryDecoder,
)

ALL_SCORES = ["scaled_dot", "dot", "general", "additive"]


def context_layer(name: str) -> ContextAttention:
    layer = ContextAttention(4, 4 if "dot" in name else 6, score=name)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


@pytest.mark.parametrize("name", ALL_SCORES)
def test_context_attention_follows_the_papers(name):
    layer = context_layer(name)
    query, context = torch.randn(2, 3, 4), torch.randn(2, 5, 4 if "dot" in name else 6)
    scores = torch.zeros(2, 3, 5)
    for b in range(2):
        for i in range(3):
            for j in range(5):
                s, h = query[b, i], context[b, j]
                if name == "additive":
                    hidden = layer.query_projection.weight @ s + layer.key_projection.weight @ h
                    scores[b, i, j] = layer.score.weight[0] @ hidden.tanh()
                elif name == "general":
                    scores[b, i, j] = s @ (layer.key_projection.weight @ h)
                else:
                    scores[b, i, j] = s @ h / (2 if name == "scaled_dot" else 1)

    with record_attention(layer) as maps:
        out = layer(query, layer.remember(context))

    torch.testing.assert_close(maps[0].weights[:, 0], scores.softmax(-1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(out, scores.softmax(-1) @ context, rtol=1e-4, atol=1e-5)
    assert maps[0].kind == "cross"


@pytest.mark.parametrize("name", ALL_SCORES)
def test_steps_one_by_one_equal_all_at_once_and_do_not_see_padding(name):
    layer = context_layer(name)
    query, context = torch.randn(2, 3, 4), torch.randn(2, 5, 4 if "dot" in name else 6)
    may_attend = padding_mask(torch.tensor([2, 5]), 5)
    together = layer(query, layer.remember(context, may_attend))
    context[0, 2:] = 7.0
    memory = layer.remember(context, may_attend)
    apart = [layer(query[:, [step]], memory) for step in range(3)]
    torch.testing.assert_close(torch.cat(apart, dim=1), together, rtol=1e-5, atol=1e-6)


DIM, HIDDEN, STEPS, TOKENS = 3, 6, 5, 7
LENGTHS = torch.tensor([4, 7])
SCORES = ["additive", "general", "dot", "scaled_dot"]
KINDS = ["one vector", *SCORES, *(f"{score}, {fed}" for score in SCORES for fed in ("fed", "context"))]


def build_decoder(kind: str, cell: str, *, depth: int = 2) -> nn.Module:
    has_attention = kind != "one vector"
    stack = RecurrentStack(
        DIM if has_attention else DIM + HIDDEN, HIDDEN, depth=depth, cell=cell, dropout=0.0
    )
    if not has_attention:
        return randomise(SummaryDecoder(stack, Readout(HIDDEN)))
    score, _, fed = kind.partition(", ")
    attention = ContextAttention(HIDDEN, HIDDEN, score=score)
    if fed == "context":
        return randomise(ContextFeedingDecoder(stack, attention, dim=DIM, hidden_dim=HIDDEN))
    return randomise((InputFeedingDecoder if fed else AttentionDecoder)(stack, Readout(HIDDEN, attention)))


def attention_of(decoder: nn.Module) -> ContextAttention:
    return decoder.attention if isinstance(decoder, ContextFeedingDecoder) else decoder.readout.attention


def make_encoding() -> Encoding:
    return Encoding(torch.randn(2, TOKENS, HIDDEN), torch.randn(2, HIDDEN))


def torch_cells(decoder: nn.Module, name: str) -> list[partial]:
    """Return cells of torch with the same weights; the lowest reads what it is fed beside the token."""
    cells = []
    for index, ours in enumerate(decoder.stack.cells):
        weight = ours.weights.input_weight
        if index == 0 and isinstance(decoder, InputFeedingDecoder | ContextFeedingDecoder):
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
    attention = attention_of(decoder)
    if attention.score.__class__.__name__ == "AdditiveScore":
        inner = attention.query_projection.weight @ hidden + states @ attention.key_projection.weight.T
        scores = inner.tanh() @ attention.score.weight[0]
    else:
        scores = attention.key_projection(states) @ hidden
        scores = scores / HIDDEN**0.5 if attention.score.scale is None else scores
    return scores.softmax(0) @ states


def write_by_the_papers(decoder, name, x, encoding):
    """Return the attentional vectors of one sentence after another, step after step, by torch's cells."""
    cells, stack = torch_cells(decoder, name), decoder.stack
    is_bahdanau = isinstance(decoder, ContextFeedingDecoder)
    readout = decoder if is_bahdanau else decoder.readout
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
            elif is_bahdanau:  # asks with the top layer's state before this step
                context = average(decoder, layers[-1][0] if name == "lstm" else layers[-1], states)
                below = torch.cat((token, context))
            for index, cell in enumerate(cells):
                layers[index] = cell((below, layers[index]))
                below = layers[index][0] if name == "lstm" else layers[index]
            if is_bahdanau:  # section A.2.2: t_j is the greater of two neighbours in t~
                sums = readout.of_token.weight @ token + readout.of_context.weight @ context
                sums = sums + readout.of_state.weight @ below
                vectors.append(torch.stack([torch.maximum(*pair) for pair in sums.split(2)]))
                continue
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
    layer = "attention" if kind.endswith("context") else "readout.attention"
    assert (alignment.layer, alignment.kind) == (layer, "cross")
    assert alignment.weights.shape == (2, 1, STEPS, TOKENS)
    torch.testing.assert_close(alignment.weights.sum(-1), torch.ones(2, 1, STEPS))
    assert (alignment.weights[0, ..., 4:] == 0).all()
    assert (alignment.weights[1] > 0).all()
    torch.testing.assert_close(rows[0].weights, alignment.weights[:, :, [1, -1]])


@pytest.mark.parametrize(("kind", "is_later"), [("additive, context", True), ("additive, fed", False)])
def test_bahdanau_asks_before_the_newest_token_is_read_and_luong_after(kind, is_later):
    decoder, encoding, x = build_decoder(kind, "gru"), make_encoding(), torch.randn(2, STEPS, DIM)
    state, changed = decoder.start(encoding, padding_mask(LENGTHS, TOKENS)), x.clone()
    changed[:, 2] += 1.0

    def align(tokens):
        with torch.no_grad(), record_attention(decoder) as maps:
            decoder(tokens, state)
        return maps[0].weights[:, 0]

    before, after = align(x), align(changed)
    assert torch.equal(before[:, :2], after[:, :2])
    assert torch.equal(before[:, 2], after[:, 2]) == is_later
    assert (before[:, 3:] != after[:, 3:]).any(dim=-1).all()


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


WORD_DIM, STATE_DIM, ATTENTION, PATCHES = 5, 6, 4, 7


def image_decoder() -> ImageAttentionDecoder:
    stack = RecurrentStack(WORD_DIM, STATE_DIM, depth=1, cell="lstm", dropout=0.0)
    made = ImageAttentionDecoder(stack, dim=WORD_DIM, hidden_dim=STATE_DIM, attention_dim=ATTENTION)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made.eval()


def by_the_equations(
    made: ImageAttentionDecoder, x: Tensor, features: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Return what each word of one caption is told from, and the weights of each step."""
    weights, attention = made.stack.cells[0].weights, made.attention
    hidden, memory = (part[0] for part in made.stack.begin(features.mean(dim=0)[None])[0])
    told, shares = [], []
    for word in x:
        scores = []
        for feature in features:
            mixed = attention.query_projection.weight @ hidden + attention.key_projection.weight @ feature
            scores.append(attention.score.weight[0] @ mixed.tanh())
        alpha = torch.stack(scores).softmax(dim=0)  # equation 5
        beta = (made.gate.weight[0] @ hidden + made.gate.bias[0]).sigmoid()  # section 4.2.1
        seen = beta * sum(share * each for share, each in zip(alpha, features, strict=True))  # equation 13
        gates = weights.input_weight @ word + made.feed.weight @ seen + weights.hidden_weight @ hidden
        gates = gates + weights.input_bias + weights.hidden_bias
        i, f, g, o = gates.chunk(4)  # equations 1 to 3
        memory = f.sigmoid() * memory + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * memory.tanh()
        told.append(word + made.of_state.weight @ hidden + made.of_glimpse.weight @ seen)  # equation 7
        shares.append(alpha)
    return told, shares


def test_it_does_what_the_equations_say() -> None:
    made, x, features = (
        image_decoder(),
        torch.randn(2, 3, 4, WORD_DIM),
        torch.randn(2, PATCHES, STATE_DIM),
    )
    written = made(x, made.start(features).expand(3))
    for image in range(2):
        for caption in range(3):
            told, shares = by_the_equations(made, x[image, caption], features[image])
            torch.testing.assert_close(written.vectors[image, caption], torch.stack(told))
            torch.testing.assert_close(written.weights[image, caption], torch.stack(shares))


def test_what_is_recorded_is_what_was_read() -> None:
    made, x, features = (
        image_decoder(),
        torch.randn(2, 3, 4, WORD_DIM),
        torch.randn(2, PATCHES, STATE_DIM),
    )
    with record_attention(made) as maps:
        written = made(x, made.start(features).expand(3), grid=(1, PATCHES))
    (recorded,) = maps
    assert (recorded.kind, recorded.grid, recorded.num_prefix) == ("cross", (1, PATCHES), 0)
    torch.testing.assert_close(recorded.weights[:, 0], written.weights.flatten(0, 1))
    with record_attention(made) as steps:
        vectors, _ = made.step(x[:, 0, 0], made.start(features))
    torch.testing.assert_close(steps[0].weights[:, 0, 0], written.weights[:, 0, 0])
    torch.testing.assert_close(vectors, written.vectors[:, 0, 0])
