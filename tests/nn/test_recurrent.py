from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from making.torch_recurrence import TORCH_CELLS, TORCH_LAYERS, copy_weights, randomise
from vitrail.nn.recurrent import CELLS, BidirectionalEncoder, ForwardEncoder

ENCODERS = [BidirectionalEncoder, ForwardEncoder]

DIM, HIDDEN = 5, 6
LENGTHS = torch.tensor([4, 7, 1])


def torch_encoder(encoder: nn.Module, name: str) -> nn.Module:
    """Return torch's own module with the same weights."""
    is_both, depth = isinstance(encoder, BidirectionalEncoder), len(encoder.layers)
    hidden_dim = HIDDEN // 2 if is_both else HIDDEN
    theirs = TORCH_LAYERS[name](DIM, hidden_dim, depth, bidirectional=is_both, batch_first=True)
    for index, layer in enumerate(encoder.layers):
        copy_weights((layer.ahead if is_both else layer).weights, theirs, f"_l{index}")
        if is_both:
            copy_weights(layer.back.weights, theirs, f"_l{index}_reverse")
    return theirs


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_steps_as_torchs_cell(name):
    cell, reference = randomise(CELLS[name](DIM, HIDDEN)), TORCH_CELLS[name](DIM, HIDDEN)
    copy_weights(cell.weights, reference, "")
    x, state = torch.randn(3, DIM), tuple(torch.randn(cell.num_states, 3, HIDDEN))
    expected = reference(x, state if name == "lstm" else state[0])

    new = cell.advance(cell.enter(x), state)

    torch.testing.assert_close(new, expected if name == "lstm" else (expected,))


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("begins_at_zero", [True, False])
def test_a_whole_sequence_is_read_as_step_by_step(name, begins_at_zero):
    cell, x = randomise(CELLS[name](DIM, HIDDEN)), torch.randn(7, 3, DIM)
    state = tuple((torch.zeros if begins_at_zero else torch.randn)(cell.num_states, 3, HIDDEN))

    outputs = cell.read(x, None if begins_at_zero else state)

    for step, gates in enumerate(cell.enter(x)):
        state = cell.advance(gates, state)
        torch.testing.assert_close(outputs[step], state[0], rtol=1e-5, atol=1e-6)


def test_the_forget_gate_of_an_lstm_begins_open():
    weights = CELLS["lstm"](DIM, HIDDEN).weights
    biases = (weights.input_bias + weights.hidden_bias).unflatten(0, (4, HIDDEN))
    assert biases[:, 0].tolist() == [0.0, 1.0, 0.0, 0.0]  # i, f, g, o
    blocks = weights.hidden_weight.detach().unflatten(0, (4, HIDDEN))
    torch.testing.assert_close(blocks @ blocks.mT, torch.eye(HIDDEN).expand(4, -1, -1))


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", CELLS)
def test_padded_sentences_are_encoded_as_packed_ones(name, depth, kind):
    encoder = randomise(kind(DIM, HIDDEN, depth=depth, cell=name))
    x = torch.randn(3, 7, DIM)
    packed = pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
    outputs, last = torch_encoder(encoder, name)(packed)
    expected, _ = pad_packed_sequence(outputs, batch_first=True)
    last = last[0] if name == "lstm" else last

    states, summary = encoder(x, LENGTHS)

    is_there = torch.arange(7) < LENGTHS[:, None]
    torch.testing.assert_close(states[is_there], expected[is_there], rtol=1e-5, atol=1e-6)
    finals = torch.cat((last[-2], last[-1]), dim=-1) if kind is BidirectionalEncoder else last[-1]
    torch.testing.assert_close(summary, finals, rtol=1e-5, atol=1e-6)


def test_a_forward_encoder_knows_no_later_tokens():
    encoder, x = randomise(ForwardEncoder(DIM, HIDDEN, depth=2, cell="tanh")), torch.randn(3, 7, DIM)
    changed = x.clone()
    changed[:, 4:] += 1.0
    lengths = torch.full((3,), 7)
    before, after = encoder(x, lengths).states, encoder(changed, lengths).states
    assert torch.equal(before[:, :4], after[:, :4])
    assert (before[:, 4:] != after[:, 4:]).any(dim=-1).all()


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("name", CELLS)
def test_no_gradient_flows_into_the_padding(name, kind):
    encoder, x = randomise(kind(DIM, HIDDEN, depth=2, cell=name)), torch.randn(3, 7, DIM)
    x.requires_grad_()
    is_there = torch.arange(7) < LENGTHS[:, None]

    states, summary = encoder(x, LENGTHS)
    (states[is_there].square().sum() + summary.square().sum()).backward()

    assert (x.grad[~is_there] == 0).all()
    assert (x.grad[is_there].abs().amax(dim=-1) > 0).all()


def test_dropout_is_of_training_only():
    encoder, x = BidirectionalEncoder(DIM, HIDDEN, dropout=0.5), torch.randn(3, 7, DIM)
    dropped = (encoder(x, LENGTHS).states == 0).float().mean()
    assert 0.3 < dropped < 0.7
    assert (encoder.eval()(x, LENGTHS).states != 0).all()


@pytest.mark.compiled
@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("name", CELLS)
def test_an_exported_encoder_takes_any_number_of_sentences(name, kind):
    encoder, batch = randomise(kind(DIM, HIDDEN, cell=name)), torch.export.Dim("batch")
    shapes = {"x": {0: batch}, "lengths": {0: batch}}
    exported = torch.export.export(encoder, (torch.randn(3, 7, DIM), LENGTHS), dynamic_shapes=shapes).module()
    for lengths in ([2], [7, 1, 4, 3, 5]):
        x = torch.randn(len(lengths), 7, DIM)
        torch.testing.assert_close(
            tuple(exported(x, torch.tensor(lengths))), encoder(x, torch.tensor(lengths))
        )
