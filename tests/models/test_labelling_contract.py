"""What every registered model that labels texts must do, whatever its family: run over all, made small."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from making.small_models import build_shaken, small_configs
from vitrail.core.errors import ConfigError, DataError
from vitrail.interpret import record_attention
from vitrail.models import build, configure
from vitrail.models.contract import LabellingModel, LabellingModelConfig

LENGTHS = torch.tensor([4, 7, 2])
CONFIGS = small_configs(LabellingModelConfig)


@pytest.fixture(params=sorted(CONFIGS))
def config(request: pytest.FixtureRequest) -> LabellingModelConfig:
    return CONFIGS[request.param]


@pytest.fixture
def model(config: LabellingModelConfig) -> nn.Module:
    return build_shaken(config, std=0.1)


@pytest.fixture
def tokens(config: LabellingModelConfig) -> Tensor:
    return torch.randint(3, config.vocabulary_size, (3, 7))


def test_there_are_logits_for_each_text_or_token(config, model, tokens):
    logits = model(tokens, LENGTHS)
    assert logits.shape == ((3, 5) if config.labels == "sentence" else (3, 7, 5))
    assert logits.isfinite().all()
    assert model.states(tokens, LENGTHS).shape == (3, 7, config.width)
    assert isinstance(model, LabellingModel)


def test_padding_changes_nothing(config, model, tokens):
    is_padding = torch.arange(7) >= LENGTHS[:, None]
    other = tokens.masked_fill(is_padding, config.pad_id)
    wider = torch.cat((other, other[:, :1]), dim=1)
    expected = model(tokens, LENGTHS)
    if config.labels == "words":
        expected = expected[~is_padding]
    for text in (other, wider):
        logits = model(text, LENGTHS)
        if config.labels == "words":
            logits = logits[:, :7][~is_padding]
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def test_a_text_alone_is_labelled_as_in_a_batch(config, model, tokens):
    together = model(tokens, LENGTHS)
    for index, length in enumerate(LENGTHS):
        alone = model(tokens[[index], :length], length[None])[0]
        expected = together[index] if config.labels == "sentence" else together[index, :length]
        torch.testing.assert_close(alone, expected, rtol=1e-5, atol=1e-5)


def test_gradients_reach_every_parameter(config, model, tokens):
    model.train()
    logits = model(tokens, LENGTHS)
    nn.functional.cross_entropy(logits.flatten(0, -2), torch.arange(logits[..., 0].numel()) % 5).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_autocast_stays_near_float32(model, tokens):
    with torch.autocast("cpu", torch.bfloat16):
        narrow = model(tokens, LENGTHS)
    torch.testing.assert_close(narrow.float(), model(tokens, LENGTHS), rtol=0.1, atol=0.1)


def test_recorded_maps_hide_padding(model, tokens):
    if not any(hasattr(layer, "tap") for layer in model.modules()):
        with pytest.raises(ConfigError, match="attention"), record_attention(model):
            pass
        return
    with torch.no_grad(), record_attention(model) as maps:
        model(tokens, LENGTHS)
    padding = torch.arange(7) >= LENGTHS[:, None]
    for each in maps:
        if each.kind == "self":
            assert (each.weights * padding[:, None, None]).abs().max() == 0


def test_word_order_matters_except_to_a_bag_of_words(config, model, tokens):
    if config.labels == "words" or config.family == "bert":
        return
    turned = tokens.clone()
    turned[1] = tokens[1].flip(0)
    one, other = model(tokens, LENGTHS)[1], model(turned, LENGTHS)[1]
    is_bag = config.depth == 0
    assert torch.allclose(one, other, atol=1e-5) == is_bag


@pytest.mark.parametrize("bidirectional", [True, False])
def test_a_recurrent_summary_is_torchs_last_state_of_each_direction(bidirectional):
    torch.manual_seed(2)
    settings = {"vocabulary_size": 11, "width": 6, "num_classes": 3, "dropout": 0.0}
    model = build("text_rnn", bidirectional=bidirectional, **settings).eval()
    own, (layer,) = nn.LSTM(6, 3 if bidirectional else 6, bidirectional=bidirectional), model.encoder.layers
    cells = {"": layer.ahead, "_reverse": layer.back} if bidirectional else {"": layer}
    with torch.no_grad():
        for ending, cell in cells.items():
            weights = cell.weights
            getattr(own, f"weight_ih_l0{ending}").copy_(weights.input_weight)
            getattr(own, f"weight_hh_l0{ending}").copy_(weights.hidden_weight)
            getattr(own, f"bias_ih_l0{ending}").copy_(weights.input_bias)
            getattr(own, f"bias_hh_l0{ending}").copy_(weights.hidden_bias)
        tokens = torch.randint(0, 11, (1, 5))
        _, (last, _) = own(model.embedding(tokens).transpose(0, 1))
        expected = model.head(torch.cat([*last], dim=-1))
        torch.testing.assert_close(model(tokens, torch.tensor([5])), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 5}, "num_heads 5 does not divide width 128"),
        ({"width": 13, "num_heads": 1}, "width 13 is odd"),
        ({"mixer": "pooling"}, "rotary.*sinusoidal"),
        ({"mixer": "furier"}, "fourier"),
        ({"cell": "lstm", "depth": 0}, "depth of at least one"),
        ({"begin_id": 9000}, "begin_id 9000"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        configure("text_transformer", **changes)


@pytest.mark.parametrize("name", ["bert_tiny", "text_transformer"])
def test_a_text_beyond_the_positions_is_refused(name):
    learned = {} if name == "bert_tiny" else {"positions": "learned"}
    model = build(name, max_length=6, **learned)
    with pytest.raises(DataError, match="positions for 6"):
        model(torch.ones(1, 7, dtype=torch.int64), torch.tensor([7]))
