from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from vitrail.core.errors import ConfigError
from vitrail.nn.masks import padding_mask
from vitrail.nn.mixers import MixerShape, build_mixer
from vitrail.nn.mixers.lstm import BidirectionalLSTM, GridLSTM, SequenceLSTM

DIM, HIDDEN, GRID = 7, 3, (2, 5)


def _reference(ours: BidirectionalLSTM) -> nn.LSTM:
    """Return torch's own module with the same weights."""
    module = nn.LSTM(DIM, HIDDEN, bidirectional=True, batch_first=True)
    with torch.no_grad():
        for weights, suffix in ((ours.ahead, ""), (ours.back, "_reverse")):
            for kind, name in (("weight", "weight"), ("bias", "bias")):
                getattr(module, f"{name}_ih_l0{suffix}").copy_(getattr(weights, f"input_{kind}"))
                getattr(module, f"{name}_hh_l0{suffix}").copy_(getattr(weights, f"hidden_{kind}"))
    return module


def test_a_sequence_is_read_as_by_torch():
    mixer, x = SequenceLSTM(DIM, HIDDEN), torch.randn(2, 11, DIM)
    expected = mixer.projection(_reference(mixer.lstm)(x)[0])
    torch.testing.assert_close(mixer(x), expected)


def test_padded_sequences_are_read_as_packed_ones():
    mixer, x, lengths = SequenceLSTM(DIM, HIDDEN), torch.randn(4, 11, DIM), torch.tensor([4, 11, 1, 8])
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    states, _ = pad_packed_sequence(_reference(mixer.lstm)(packed)[0], batch_first=True)
    mask = padding_mask(lengths, 11)

    mixed = mixer(x, may_attend=mask)

    is_there = mask[:, 0, 0]
    torch.testing.assert_close(mixed[is_there], mixer.projection(states)[is_there])


def test_padding_anywhere_is_left_out():
    mixer, x = SequenceLSTM(DIM, HIDDEN), torch.randn(1, 6, DIM)
    is_there = torch.tensor([[False, True, True, False, True, False]])
    mixed = mixer(x, may_attend=is_there[:, None, None])
    torch.testing.assert_close(mixed[is_there], mixer(x[is_there][None])[0])


def test_a_grid_is_read_column_by_column_and_row_by_row():
    mixer, x = GridLSTM(DIM, HIDDEN), torch.randn(3, 10, DIM)
    vertical, horizontal = _reference(mixer.vertical), _reference(mixer.horizontal)
    patches = x.unflatten(1, GRID)

    mixed = mixer(x, grid=GRID).unflatten(1, GRID)

    for row in range(2):
        for column in range(5):
            states = vertical(patches[:, :, column])[0][:, row], horizontal(patches[:, row])[0][:, column]
            torch.testing.assert_close(mixed[:, row, column], mixer.projection(torch.cat(states, -1)))


def test_prefix_tokens_stand_before_every_line_and_get_the_mean_of_their_states():
    mixer, x = GridLSTM(DIM, HIDDEN), torch.randn(3, 2 + 10, DIM)
    vertical, horizontal = _reference(mixer.vertical), _reference(mixer.horizontal)
    prefix, patches = x[:, :2], x[:, 2:].unflatten(1, GRID)
    columns = [vertical(torch.cat((prefix, patches[:, :, i]), dim=1))[0] for i in range(5)]
    rows = [horizontal(torch.cat((prefix, patches[:, i]), dim=1))[0] for i in range(2)]

    mixed = mixer(x, grid=GRID)

    means = sum(column[:, :2] for column in columns) / 5, sum(row[:, :2] for row in rows) / 2
    torch.testing.assert_close(mixed[:, :2], mixer.projection(torch.cat(means, -1)))
    last = torch.cat((columns[4][:, -1], rows[1][:, -1]), -1)
    torch.testing.assert_close(mixed[:, -1], mixer.projection(last))


def test_a_patch_sees_its_column_and_its_row_and_no_other_patch():
    mixer, x = GridLSTM(DIM, HIDDEN), torch.randn(1, 10, DIM, requires_grad=True)
    mixer(x, grid=GRID)[0, 1 * 5 + 3].sum().backward()
    seen = x.grad[0].abs().amax(-1).unflatten(0, GRID) > 0
    assert seen.tolist() == [[False, False, False, True, False], [True] * 5]


def test_padding_is_left_out_of_its_column_and_its_row():
    mixer, x = GridLSTM(DIM, HIDDEN), torch.randn(2, 10, DIM)
    is_there = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 0, 0, 0]]).bool().flatten().expand(2, -1)
    mixed = mixer(x, may_attend=is_there[:, None, None], grid=GRID)
    smaller = mixer(x.unflatten(1, GRID)[:, :, :2].flatten(1, 2), grid=(2, 2))
    torch.testing.assert_close(mixed[is_there], smaller.flatten(0, 1))


def test_the_grid_mixer_is_refused_without_a_grid():
    with pytest.raises(ConfigError, match="'lstm_2d' was given tokens without rows and columns"):
        build_mixer("lstm_2d", MixerShape(12, 3, 17))
    with pytest.raises(ConfigError, match="Choose the mixer 'lstm'"):
        GridLSTM(DIM, HIDDEN)(torch.randn(2, 10, DIM))


@pytest.mark.compiled
def test_a_compiled_mixer_has_the_gradients_of_eager():
    mixer, other = GridLSTM(DIM, HIDDEN), GridLSTM(DIM, HIDDEN)
    other.load_state_dict(mixer.state_dict())
    x = torch.randn(3, 10, DIM, requires_grad=True)
    compiled = torch.compile(mixer, backend="aot_eager", fullgraph=True)

    compiled(x, grid=GRID).square().sum().backward()
    other(x, grid=GRID).square().sum().backward()

    for (name, parameter), expected in zip(mixer.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-4, atol=1e-6, msg=name)
