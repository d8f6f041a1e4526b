"""What every registered model must do, whatever its family: run over all of them, made small."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
import torch
from torch import nn

import small_models
from vitrail.interpret import record_attention
from vitrail.models import MODELS, build, build_from_settings, model_settings
from vitrail.models.contract import ModelConfig

# How each family is made small enough to run in milliseconds: a new family adds a file to that folder.
SHRINK = {
    info.name: importlib.import_module(f"small_models.{info.name}").CHANGES
    for info in pkgutil.iter_modules(small_models.__path__)
}


def _build_small(name: str) -> nn.Module:
    return build(name, **SHRINK[MODELS[name].family])


@pytest.fixture(params=sorted(MODELS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def model(name: str) -> nn.Module:
    return _build_small(name).eval()


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(3, 3, 16, 24)


def test_settings_name_their_family_and_paper(name):
    config = MODELS[name]
    assert isinstance(config, ModelConfig)
    assert config.family
    assert config.paper
    assert all(field.description for field in type(config).model_fields.values())


@pytest.mark.parametrize("size", [(16, 24), (37, 53), (5, 7), (48, 16)])
def test_any_image_size_gives_logits_tokens_and_features(model, size):
    images = torch.randn(2, 3, *size)
    logits, tokens, features = model(images), model.tokens(images), model.features(images)

    assert logits.shape == (2, 5)
    assert tokens.shape[0] == 2
    assert [stage.shape[0] for stage in features] == [2] * len(features)
    areas = [stage.shape[-2] * stage.shape[-1] for stage in features]
    assert areas == sorted(areas, reverse=True)
    for tensor in (logits, tokens, *features):
        assert tensor.isfinite().all()


def test_a_larger_image_is_not_cropped(model):
    images = torch.randn(1, 3, 37, 53)
    changed = images.clone()
    changed[..., -1, -1] += 9.0
    assert not torch.equal(model(images), model(changed))


def test_gradients_reach_every_parameter(model, images):
    model.train()
    nn.functional.cross_entropy(model(images), torch.tensor([0, 3, 4])).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_the_state_dict_makes_another_model_equal(name, model, images):
    other = _build_small(name).eval()
    assert not torch.equal(other(images), model(images))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(images), model(images))


def test_the_seed_determines_the_weights(name):
    states = []
    for _ in range(2):
        torch.manual_seed(7)
        states.append(_build_small(name).state_dict())
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


def test_the_config_builds_the_same_model(name, model):
    settings = model_settings(name, **SHRINK[MODELS[name].family])
    assert build_from_settings(settings).config == model.config


def test_outputs_are_repeatable_and_independent_of_the_rest_of_the_batch(model, images):
    logits = model(images)
    assert torch.equal(model(images), logits)
    # other batch sizes take other blockings of the same sums
    torch.testing.assert_close(model(images[1:2]), logits[1:2], rtol=1e-5, atol=1e-6)


def test_autocast_stays_near_float32(model, images):
    with torch.autocast("cpu", torch.bfloat16):
        narrow = model(images)
    torch.testing.assert_close(narrow.float(), model(images), rtol=0.1, atol=0.05)  # 8 bits of mantissa


def test_recorded_maps_are_there_and_their_rows_sum_to_one(model, images):
    with torch.no_grad(), record_attention(model) as maps:
        logits = model(images)

    assert torch.equal(logits, model(images))
    assert maps
    for each in maps:
        rows, columns = each.grid
        assert each.weights.shape[-1] == each.num_prefix + rows * columns
        torch.testing.assert_close(each.weights.sum(-1), torch.ones(each.weights.shape[:-1]))


@pytest.mark.compiled
def test_compiled_models_are_one_graph_and_equal_eager(model, images):
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(images), model(images))
