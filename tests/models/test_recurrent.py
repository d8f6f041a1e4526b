from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from making.torch_recurrence import randomise
from vitrail.core.errors import ConfigError
from vitrail.models import build, config_from_settings
from vitrail.models.cost import count_parameters
from vitrail.models.recurrent import VARIANTS, RecurrentConfig
from vitrail.nn.recurrent_decoder import AttentionDecoder, InputFeedingDecoder

SCORES = ["additive", "general", "dot", "scaled_dot"]
KINDS = [("none", False), *itertools.product(SCORES, [False, True, "context"])]
SMALL = RecurrentConfig(
    source_vocabulary_size=17,
    target_vocabulary_size=13,
    embedding_dim=5,
    hidden_dim=8,
    encoder_depth=1,
    decoder_depth=2,
    dropout=0.3,
)
LENGTHS = torch.tensor([4, 7, 2])


def build_small(kind: tuple[str, bool | str] = ("general", True), **changes: object) -> nn.Module:
    attention, input_feeding = kind
    settings = {"attention": attention, "input_feeding": input_feeding, **changes}
    return randomise(SMALL.with_changes(settings).build())


def make_sentences() -> tuple[Tensor, Tensor, Tensor]:
    """Return three sentences with padding behind them, their lengths, and what is written of them."""
    source = torch.randint(3, 17, (3, 7)).masked_fill(torch.arange(7) >= LENGTHS[:, None], 0)
    return source, LENGTHS, torch.cat((torch.ones(3, 1, dtype=torch.long), torch.randint(2, 13, (3, 4))), 1)


@pytest.mark.parametrize("cell", ["lstm", "gru", "tanh"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_every_parameter_in_float32_and_under_autocast(kind, cell):
    model, sentences = build_small(kind, cell=cell, tie="output").train(), make_sentences()
    for is_narrow in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=is_narrow):
            logits = model(*sentences)
        assert logits.dtype == (torch.bfloat16 if is_narrow else torch.float32)
        logits.square().mean().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_suit_small_data(name):
    config = VARIANTS[name]
    assert (config.source_vocabulary_size, config.target_vocabulary_size) == (8000, 8000)
    assert count_parameters(config.build) <= 5_000_000
    assert config.cell == ("tanh" if name == "rnn_tanh" else "gru" if name.startswith("gru") else "lstm")
    assert config.bidirectional


def test_gru_additive_is_bahdanau_s_and_runs_from_before_are_still_luong_s():
    fed = {name: (config.attention, config.input_feeding) for name, config in VARIANTS.items()}
    assert fed["gru_additive"] == ("additive", "context")
    assert fed["gru_luong"] == fed["rnn_additive"] == ("additive", True)
    # Every setting was stored with such a run, and there was no model.bidirectional.
    stored = VARIANTS["gru_luong"].model_dump(mode="json", exclude={"bidirectional"})
    for feeding in (True, False):
        settings = {**stored, "name": "gru_additive", "input_feeding": feeding}
        assert config_from_settings(settings).input_feeding is feeding
        decoder = config_from_settings(settings).build().decoder
        assert type(decoder) is (InputFeedingDecoder if feeding else AttentionDecoder)


@pytest.mark.parametrize("feeding", [True, "context"])
def test_feeding_needs_attention(feeding):
    with pytest.raises(ConfigError, match="feeds what attention made"):
        SMALL.with_changes({"attention": "none", "input_feeding": feeding})


def test_an_unknown_feeding_is_refused():
    with pytest.raises(ConfigError, match="input_feeding"):
        SMALL.with_changes({"input_feeding": "before"})


def test_attention_costs_no_parameters_but_its_score():
    counts = {name: count_parameters(config.build) for name, config in VARIANTS.items()}
    assert counts["rnn"] == counts["rnn_dot"] == counts["rnn_scaled_dot"]
    assert counts["rnn_general"] - counts["rnn"] == 320 * 320
    assert counts["rnn_additive"] - counts["rnn"] == 2 * 320 * 320 + 320


@pytest.mark.parametrize("tie", ["none", "output", "all"])
def test_tied_matrices_are_stored_once(tie):
    model = build_small(tie=tie, source_vocabulary_size=13)
    names = [name for name, parameter in model.named_parameters() if len(parameter) == 13]
    assert (
        names
        == {
            "none": ["source_embedding.weight", "target_embedding.weight", "output.weight"],
            "output": ["source_embedding.weight", "target_embedding.weight"],
            "all": ["target_embedding.weight"],
        }[tie]
    )
    assert list(model.state_dict()) == [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("name", ["rnn_general", "gru_additive"])
def test_attention_learns_to_reverse_short_sentences_within_seconds(name):
    torch.manual_seed(0)
    model = build(
        name,
        source_vocabulary_size=12,
        target_vocabulary_size=12,
        embedding_dim=24,
        hidden_dim=48,
        dropout=0.0,
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(175):
        source, lengths, target = _reversed_sentences(64)
        logits = model(source, lengths, target[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()

    source, lengths, target = _reversed_sentences(50)
    state, tokens = model.eval().start(source, lengths), target[:, 0]
    is_right = torch.ones(50, dtype=torch.bool)
    for step in range(1, target.shape[1]):
        logits, state = model.step(tokens, state)
        tokens = logits.argmax(-1)
        is_right &= (tokens == target[:, step]) | (target[:, step] == 0)
    assert is_right.float().mean() >= 0.9


def _reversed_sentences(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return sentences of 2 to 6 words, their lengths with the end, and the same words backwards."""
    num_words = torch.randint(2, 7, (count,))
    words = torch.randint(4, 12, (count, 6))
    source, target = torch.zeros(2, count, 8, dtype=torch.long).unbind()
    target[:, 0] = 1
    for row, n in enumerate(num_words.tolist()):
        source[row, : n + 1] = torch.cat((words[row, :n], torch.tensor([2])))
        target[row, 1 : n + 2] = torch.cat((words[row, :n].flip(0), torch.tensor([2])))
    return source[:, : int(num_words.max()) + 1], num_words + 1, target
