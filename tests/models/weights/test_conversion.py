from __future__ import annotations

import pytest
import torch

from making.small_models import shrink
from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.models import MODELS, build
from vitrail.models.vit import ViTConfig
from vitrail.models.weights.conversion import SOURCES, convert, convert_to, export, fit_config

TINY = {"width": 12, "depth": 2, "num_heads": 3, "num_classes": 5, "patch_size": 8, "image_size": (16, 24)}
HEADLESS = {name: value for name, value in TINY.items() if name != "num_classes"}


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    return {name: torch.randn_like(tensor) for name, tensor in build("vit_b16", **TINY).state_dict().items()}


@pytest.fixture
def config() -> ViTConfig:
    return MODELS["vit_b16"].with_changes(TINY)


@pytest.mark.parametrize("source", ["timm", "hf", "torchvision", "jax"])
def test_there_and_back_again(state, config, source):
    published = export(state, source=source, config=config)
    again = convert_to(published, source=source, config=config)

    assert published.keys() != state.keys()
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], state[name]) for name in state)


def test_the_number_of_classes_is_read_off_the_head(state, config):
    published = export(state, source="timm", config=config)
    assert convert(published, source="timm", model="vit_b16", **HEADLESS)["head.bias"].shape == (5,)


def test_missing_and_unexpected_tensors_are_listed(state, config):
    published = export(state, source="timm", config=config)
    published["surplus.weight"] = published.pop("norm.weight")

    with pytest.raises(CheckpointError, match=r"1 missing: norm\.weight; 1 unexpected: surplus\.weight"):
        convert_to(published, source="timm", config=config)


def test_other_shapes_are_listed(state, config):
    published = export(state, source="timm", config=config)
    published["norm.weight"] = torch.randn(7)

    with pytest.raises(CheckpointError, match=r"norm\.weight is \(7,\), not \(12,\)"):
        convert_to(published, source="timm", config=config)


def test_weights_of_another_size_are_refused(state, config):
    with pytest.raises(CheckpointError):
        convert(export(state, source="timm", config=config), source="timm", model="vit_s16")


def test_unknown_names_are_answered_with_the_nearest(state):
    with pytest.raises(ConfigError, match="'timm'"):
        convert(state, source="tim", model="vit_b16")
    with pytest.raises(ConfigError, match="'vit_b16'"):
        convert(state, source="timm", model="vit_b61")


@pytest.mark.parametrize("source", sorted(SOURCES))
def test_every_published_name_is_one_of_our_models_with_a_table(source):
    names = SOURCES[source].names
    assert names
    for architecture, variant in names.items():
        assert MODELS[variant].family in SOURCES[source].tables, architecture


@pytest.mark.parametrize("source", sorted(SOURCES))
def test_every_table_names_each_tensor_of_its_models_once(source):
    chosen = SOURCES[source]
    by_fields: dict[object, str] = {}  # one variant for each family and depth: the large ones take long
    for variant in sorted(set(chosen.names.values())):
        fields = MODELS[variant].model_dump()
        by_fields.setdefault(
            (MODELS[variant].family, str(fields.get("depth", fields.get("depths")))), variant
        )
    for variant in by_fields.values():
        config = MODELS[variant]
        with torch.device("meta"):
            expected = config.build().state_dict()
        entries = list(chosen.tables[config.family](config))
        ours = [name for entry in entries for name in entry.ours]
        theirs = [name for entry in entries for name in entry.theirs]

        assert sorted(ours) == sorted(expected), variant
        assert len(theirs) == len(set(theirs)), variant


@pytest.mark.parametrize(
    ("name", "source"),
    [("vit_ti16", "timm"), ("deit_ti16_distilled", "hf"), ("mvit_b16", "slowfast"), ("pvt_t", "hf")],
)
def test_weights_alone_show_the_number_of_classes_and_the_image_size(name, source):
    config = shrink(name).with_changes({"image_size": (32, 32)})
    theirs = export(config.build().state_dict(), source=source, config=config)
    other = config.with_changes({"image_size": (48, 48), "num_classes": 7})
    assert fit_config(theirs, source=source, config=other) == config
    flat = config.with_changes({"image_size": (16, 64)})  # as many patches
    assert fit_config(theirs, source=source, config=flat) == flat
