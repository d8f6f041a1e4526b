"""What every registered translation model must do, whatever its family: run over all of them, made small."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from making.recorded_steps import assert_steps_lead_to_the_map
from making.small_models import build_shaken, small_configs
from vitrail.core.errors import ConfigError
from vitrail.interpret import record_attention
from vitrail.models.contract import DecoderState, TranslationModelConfig

LENGTHS = torch.tensor([4, 7, 1])
NUM_SOURCE, NUM_TARGET = 7, 6


CONFIGS = small_configs(TranslationModelConfig)


@pytest.fixture(params=sorted(CONFIGS))
def config(request: pytest.FixtureRequest) -> TranslationModelConfig:
    return CONFIGS[request.param]


@pytest.fixture
def model(config: TranslationModelConfig) -> nn.Module:
    return build_shaken(config)


@pytest.fixture
def source(config: TranslationModelConfig) -> Tensor:
    return torch.randint(3, config.source_vocabulary_size, (3, NUM_SOURCE))


@pytest.fixture
def target(config: TranslationModelConfig) -> Tensor:
    return _draw_target(config, 3, NUM_TARGET)


def _draw_target(config: TranslationModelConfig, *shape: int) -> Tensor:
    return torch.randint(3, config.target_vocabulary_size, shape)


def test_there_is_a_logit_for_every_token_and_subword(model, source, target):
    logits = model(source, LENGTHS, target)
    assert logits.shape == (3, NUM_TARGET, model.config.target_vocabulary_size)
    assert logits.isfinite().all()


def test_the_shortest_sentence_is_translated(model):
    one = torch.tensor([[2]])
    assert model(one, torch.tensor([1]), one).isfinite().all()
    logits, _ = model.step(one[0], model.start(one, torch.tensor([1])))
    torch.testing.assert_close(logits, model(one, torch.tensor([1]), one)[0], rtol=1e-5, atol=1e-5)


def test_other_padding_changes_nothing(config, model, source, target):
    is_padding = torch.arange(NUM_SOURCE) >= LENGTHS[:, None]
    other = torch.where(is_padding, torch.full_like(source, config.pad_id), source)
    assert not torch.equal(source, other)
    torch.testing.assert_close(model(source, LENGTHS, target), model(other, LENGTHS, target))
    expected, _ = model.step(target[:, 0], model.start(source, LENGTHS))
    torch.testing.assert_close(model.step(target[:, 0], model.start(other, LENGTHS))[0], expected)


def test_more_padding_changes_nothing(model, source, target):
    wider = torch.cat((source, source[:, :2]), dim=1)
    longer = torch.cat((target, target[:, :1]), dim=1)
    torch.testing.assert_close(
        model(wider, LENGTHS, longer)[:, :NUM_TARGET], model(source, LENGTHS, target), rtol=1e-5, atol=1e-5
    )


def test_a_sentence_alone_is_translated_as_in_a_batch(model, source, target):
    together = model(source, LENGTHS, target)
    for index, length in enumerate(LENGTHS):
        alone = model(source[[index], :length], length[None], target[[index]])
        torch.testing.assert_close(alone[0], together[index], rtol=1e-5, atol=1e-5)


def test_later_tokens_do_not_change_what_stands_before_them(config, model, source, target):
    other = target.clone()
    other[:, 4:] = (target[:, 4:] + 1) % config.target_vocabulary_size
    one, two = model(source, LENGTHS, target), model(source, LENGTHS, other)
    torch.testing.assert_close(one[:, :4], two[:, :4], rtol=1e-6, atol=1e-6)
    assert not torch.allclose(one[:, 4:], two[:, 4:])


def test_the_source_is_read_to_its_end(config, model, source, target):
    other = source.clone()
    rows = torch.arange(3)
    other[rows, LENGTHS - 1] = (source[rows, LENGTHS - 1] + 1) % config.source_vocabulary_size
    one, two = model(source, LENGTHS, target), model(other, LENGTHS, target)
    assert ((one - two).abs().amax(dim=(1, 2)) > 1e-6).all()


def test_steps_equal_teacher_forcing(model, source, target):
    expected = model(source, LENGTHS, target)
    state = model.start(source, LENGTHS)
    assert isinstance(state, DecoderState)
    assert state.num_rows == 3
    for step in range(NUM_TARGET):
        logits, state = model.step(target[:, step], state)
        torch.testing.assert_close(logits, expected[:, step], rtol=1e-5, atol=1e-5)


def test_hypotheses_that_part_and_end_equal_teacher_forcing(config, model, source):
    """Walk as a beam search does, and compare every step with all that each hypothesis consists of."""
    sentences, written = torch.arange(3), _draw_target(config, 3, 1)
    logits, state = model.step(written[:, 0], model.start(source, LENGTHS))
    torch.testing.assert_close(logits, model(source, LENGTHS, written)[:, -1], rtol=1e-5, atol=1e-5)
    state = state.expand(2)
    sentences, written = sentences.repeat_interleave(2), written.repeat_interleave(2, dim=0)
    walk = [
        (None, [0, 1, 2, 3, 4, 5]),
        (None, [1, 1, 3, 2, 5, 5]),  # a hypothesis ends another, two change places
        ([2, 0], [0, 1, 3, 3]),  # the second sentence is finished, the others change places
        ([1], [1, 1]),
        (None, [1, 0]),
    ]
    for kept, rows in walk:
        if kept is not None:
            state = state.keep(torch.tensor(kept))
            written = written.unflatten(0, (-1, 2))[kept].flatten(0, 1)
            sentences = sentences.unflatten(0, (-1, 2))[kept].flatten()
        state = state.select(torch.tensor(rows))
        assert state.num_rows == len(rows)
        written, sentences = written[rows], sentences[rows]
        tokens = _draw_target(config, len(rows))
        written = torch.cat((written, tokens[:, None]), dim=1)
        logits, state = model.step(tokens, state)
        expected = model(source[sentences], LENGTHS[sentences], written)[:, -1]
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def test_a_state_may_be_gone_on_from_more_than_once(config, model, source, target):
    _, state = model.step(target[:, 0], model.start(source, LENGTHS).expand(1))
    expected, after = model.step(target[:, 1], state)
    further, _ = model.step(target[:, 2], after)
    model.step(target[:, 3], state)  # another way on from the same state
    torch.testing.assert_close(model.step(target[:, 1], state)[0], expected)
    torch.testing.assert_close(model.step(target[:, 2], after)[0], further)


def test_gradients_reach_every_parameter(config, model, source, target):
    model.train()
    logits = model(source, LENGTHS, target)
    nn.functional.cross_entropy(logits.flatten(0, 1), target.roll(1).flatten()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_autocast_stays_near_float32(model, source, target):
    with torch.autocast("cpu", torch.bfloat16):
        narrow = model(source, LENGTHS, target)
        step, _ = model.step(target[:, 0], model.start(source, LENGTHS))
    wide = model(source, LENGTHS, target)
    torch.testing.assert_close(narrow.float(), wide, rtol=0.1, atol=0.1)  # 8 bits of mantissa
    torch.testing.assert_close(step.float(), wide[:, 0], rtol=0.1, atol=0.1)


def test_bfloat16_weights_stay_near_float32(model, source, target):
    narrow = copy.deepcopy(model).bfloat16()
    wide = model(source, LENGTHS, target)
    torch.testing.assert_close(narrow(source, LENGTHS, target).float(), wide, rtol=0.1, atol=0.15)
    step, _ = narrow.step(target[:, 0], narrow.start(source, LENGTHS))
    torch.testing.assert_close(step.float(), wide[:, 0], rtol=0.1, atol=0.15)


def test_recorded_alignments_are_shares_of_the_source(model, source, target):
    if not any(hasattr(layer, "tap") for layer in model.modules()):
        with pytest.raises(ConfigError, match="attention"), record_attention(model):
            pass
        return
    with torch.no_grad(), record_attention(model) as maps:
        logits = model(source, LENGTHS, target)
    with torch.no_grad():
        assert torch.equal(logits, model(source, LENGTHS, target))
    cross = [each for each in maps if each.kind == "cross"]
    assert cross
    for each in maps:
        assert each.weights.shape[0] == 3
        assert each.grid is None
        if each.kind != "mixing":
            torch.testing.assert_close(each.weights.sum(-1), torch.ones(each.weights.shape[:-1]))
    for each in cross:
        assert each.weights.shape[-2:] == (NUM_TARGET, NUM_SOURCE)  # one map of all steps
        padding = torch.arange(NUM_SOURCE) >= LENGTHS[:, None]
        assert (each.weights * padding[:, None, None]).abs().max() == 0


def test_recorded_steps_lead_to_every_map_under_teacher_forcing_and_in_decoding(model, source, target):
    if not any(hasattr(layer, "tap") for layer in model.modules()):
        pytest.skip("there is no attention to record")
    with torch.no_grad(), record_attention(model, keep_qkv=True) as maps:
        model(source, LENGTHS, target)
        model.step(target[:, 0], model.start(source, LENGTHS))
    attention = [each for each in maps if each.kind != "mixing"]
    assert attention
    for each in attention:
        assert_steps_lead_to_the_map(each)
