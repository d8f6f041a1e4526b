"""What every registered model must do, whatever it reads and writes: run over all of them, made small."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_leaves

from making.small_models import CHANGES, build_shaken, shrink, small_changes, small_configs
from vitrail.models import MODELS, config_from_settings, model_settings
from vitrail.models.checkpoint import LoadedModel, load_model
from vitrail.models.contract import (
    DetectionModelConfig,
    ImageModelConfig,
    LabellingModelConfig,
    ModelConfig,
    TranslationModelConfig,
)

CONFIGS = small_configs()


@pytest.fixture(params=sorted(CONFIGS))
def config(request: pytest.FixtureRequest) -> ModelConfig:
    return CONFIGS[request.param]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_settings_name_their_family_paper_and_policies(name):
    config = MODELS[name]
    assert config.family in CHANGES or config.family == "clip"
    assert config.paper
    assert config.position_policy
    assert isinstance(config, TranslationModelConfig | LabellingModelConfig) or config.size_policy
    assert not isinstance(config, ImageModelConfig) or config.min_size >= 1
    assert not isinstance(config, DetectionModelConfig) or config.scoring in ("softmax", "sigmoid")
    assert all(field.description for field in type(config).model_fields.values())


@pytest.mark.parametrize("name", sorted(name for name in MODELS if MODELS[name].family in CHANGES))
def test_the_stored_settings_are_those_of_the_same_model(name):
    settings = model_settings(name, **small_changes(name))
    assert config_from_settings(settings).build().config == shrink(name)


def test_the_seed_determines_the_weights(config):
    states = []
    for _ in range(2):
        torch.manual_seed(7)
        states.append(config.build().state_dict())
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


def test_a_saved_model_is_read_as_the_same(config, tmp_path):
    model = build_shaken(config, std=0.05)
    inputs = config.example_inputs(2, (7, 6) if isinstance(config, TranslationModelConfig) else None)
    name = next(each for each in MODELS if MODELS[each].family == config.family)
    settings = {"name": name, **config.model_dump(mode="json")}
    parts = {"preprocessing": {}, "class_names": [*"abcde"], "about": {}}
    LoadedModel(model, model_settings=settings, **parts).save(tmp_path / "model")

    again = load_model(tmp_path / "model").model.eval()

    assert again.state_dict().keys() == model.state_dict().keys()
    outputs, fresh, expected = (
        [each for each in tree_leaves(built(*inputs)) if each is not None]
        for built in (again, config.build().eval(), model)
    )
    assert all(torch.equal(one, other) for one, other in zip(outputs, expected, strict=True))
    assert not torch.equal(fresh[0], expected[0])
