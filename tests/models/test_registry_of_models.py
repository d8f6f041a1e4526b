from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from vitrail.core.errors import ConfigError
from vitrail.models import MODELS, build, config_from_settings, list_models, model_settings

TINY = {"width": 12, "depth": 2, "num_heads": 3, "num_classes": 5, "patch_size": 8, "image_size": (16, 24)}


def test_models_are_listed_sorted_by_name():
    assert list_models() == sorted(MODELS)
    assert {"vit_b16", "deit_s16_distilled", "vit_nano"} <= set(list_models())


def test_a_wrong_name_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"no model named 'vit_b61'.*'vit_b16'"):
        build("vit_b61")


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ("vit_small", "'vit_s16' or 'vit_s32'"),
        ("vit_tiny", "'vit_ti16'"),
        ("swin_tiny", "'swin_t'?"),
        ("resnet", "'resnet18' or"),
        ("ViT_S16", "'vit_s16'?"),
        ("vit_base_patch16_224.augreg_in21k", "'vit_b16'?"),
        ("timm:deit_small_patch16_224", "'deit_s16'?"),
        ("timm/resnet18.a1_in1k", "'resnet18'?"),
        ("google/vit-base-patch16-224", "'vit_b16'?"),
        ("facebook/detr-resnet-50", "'detr_r50'?"),
        ("bert-base-uncased", "'bert_base'?"),
        ("ViT-B/32", "'clip_b32'?"),
    ],
)
def test_the_name_of_another_library_is_answered_with_ours(asked, nearest):
    with pytest.raises(ConfigError) as caught:
        MODELS[asked]
    assert caught.value.remedy.startswith(f"Did you mean {nearest}")


def test_a_repository_that_is_no_model_is_given_as_weights():
    with pytest.raises(
        ConfigError, match="Give --weights hf:Helsinki-NLP/opus-mt-en-de for a published model"
    ):
        MODELS["Helsinki-NLP/opus-mt-en-de"]


def test_a_wrong_field_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"'vit_b16' has no setting 'num_clases'.*'num_classes'"):
        build("vit_b16", num_clases=3)


def test_settings_survive_json_and_build_the_same_model():
    stem = {"channels": [5], "strides": [2], "norm": "batch"}
    settings = model_settings("vit_s16", **TINY, stem=stem)
    again = config_from_settings(json.loads(json.dumps(settings))).build()

    assert settings["name"] == "vit_s16"
    assert again.config == build("vit_s16", **TINY, stem=stem).config
    assert {"name": "vit_s16", **again.config.model_dump(mode="json")} == settings


def test_stored_settings_override_those_of_the_name():
    model = config_from_settings({"name": "vit_s16", **TINY}).build()
    assert model(torch.randn(2, 3, 16, 24)).shape == (2, 5)


def test_settings_without_a_name_are_refused():
    with pytest.raises(ConfigError, match="hold no name"):
        config_from_settings(TINY).build()


def test_the_package_of_models_does_not_import_torch():
    code = "import sys, vitrail.models; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
