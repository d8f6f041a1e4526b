from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from PIL import Image

import vitrail
from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.data.preprocessing import Preprocessing
from vitrail.engines.loading import load_any
from vitrail.models import MODELS, build
from vitrail.models.weights import files as hub
from vitrail.models.weights.conversion import export
from vitrail.models.weights.preparation import timm_preprocessing, transformers_preprocessing
from vitrail.models.weights.published import convert_to_folder, load_published

PUBLISHED = {
    "input_size": [3, 224, 224],
    "interpolation": "bicubic",
    "crop_pct": 0.9,
    "crop_mode": "center",
    "mean": [0.5, 0.5, 0.5],
    "std": [0.5, 0.5, 0.5],
}


@pytest.fixture
def timm_folder(tmp_path: Path) -> Path:
    """A folder laid out as timm saves its models, with three classes."""
    config = MODELS["vit_ti16"].with_changes({"num_classes": 3})
    state = {name: 0.1 * torch.randn_like(value) for name, value in config.build().state_dict().items()}
    folder = tmp_path / "vit_tiny"
    folder.mkdir()
    safetensors.torch.save_file(export(state, source="timm", config=config), folder / "model.safetensors")
    described = {
        "architecture": "vit_tiny_patch16_224",
        "num_classes": 3,
        "label_names": ["ant", "bee", "cat"],
        "model_args": {"num_classes": 3, "img_size": [224, 224]},
        "pretrained_cfg": PUBLISHED,
    }
    (folder / "config.json").write_text(json.dumps(described))
    return folder


@pytest.fixture
def hub_folder(tmp_path: Path) -> tuple[Path, torch.nn.Module]:
    """A folder as transformers saves a ViT with the geometry of ViT-Ti/16, and the model."""
    model = transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=192,
            num_hidden_layers=12,
            num_attention_heads=3,
            intermediate_size=768,
            layer_norm_eps=1e-12,
            id2label={0: "ant", 1: "bee"},
        )
    ).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    folder = tmp_path / "hub"
    model.save_pretrained(folder)
    prepared = {"size": {"height": 224, "width": 224}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps({**prepared, "resample": 2}))
    return folder, model


def test_a_timm_folder_brings_model_preprocessing_and_names(timm_folder):
    loaded = load_published(f"timm:{timm_folder}")

    assert loaded.model_settings["name"] == "vit_ti16"
    assert loaded.class_names == ["ant", "bee", "cat"]
    preprocessing = Preprocessing.from_tree(loaded.preprocessing)
    assert preprocessing.image_size == (224, 224)
    assert preprocessing.crop_fraction == 0.9
    assert preprocessing.mean == (0.5, 0.5, 0.5)
    assert not loaded.model.training


def test_a_hub_folder_gives_the_logits_of_transformers(hub_folder):
    folder, reference = hub_folder
    loaded = load_published(f"hf:{folder}")
    images = torch.randn(2, 3, 224, 224)

    with torch.no_grad():
        expected = reference(images).logits
        torch.testing.assert_close(loaded.model(images), expected, rtol=0, atol=1e-4 * expected.abs().max())
    assert loaded.class_names == ["ant", "bee"]
    assert loaded.preprocessing["resize"] == "squash"
    assert loaded.preprocessing["interpolation"] == "bilinear"


def test_published_models_predict_with_their_own_preprocessing(timm_folder, tmp_path):
    Image.fromarray(np.full((40, 60, 3), 99, dtype=np.uint8)).save(tmp_path / "a.png")
    prediction = vitrail.Predictor(f"timm:{timm_folder}").predict(tmp_path / "a.png")[0]

    assert prediction.error is None
    assert {name for name, _ in prediction.scores} == {"ant", "bee", "cat"}


def test_conversion_writes_a_folder_that_gives_the_same_outputs(timm_folder, tmp_path):
    lines = list(convert_to_folder(f"timm:{timm_folder}", tmp_path / "out"))
    images = torch.randn(1, 3, 224, 224)

    assert any("vit_ti16" in line for line in lines)
    written, direct = load_any(tmp_path / "out"), load_published(f"timm:{timm_folder}")
    assert torch.equal(written.model(images), direct.model(images))
    assert written.preprocessing == direct.preprocessing
    assert written.class_names == direct.class_names


def test_conversion_replaces_a_saved_model_and_nothing_else(timm_folder, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "cat.png").write_bytes(b"precious")
    with pytest.raises(CheckpointError, match="is not a saved model"):
        list(convert_to_folder(f"timm:{timm_folder}", photos))
    assert (photos / "cat.png").read_bytes() == b"precious"

    for _ in range(2):
        list(convert_to_folder(f"timm:{timm_folder}", tmp_path / "out"))
    assert (tmp_path / "out" / "model.json").is_file()


def test_a_file_alone_is_recognised_by_its_tensors(tmp_path):
    model = build("vit_ti16", num_classes=7)
    theirs = export(model.state_dict(), source="timm", config=model.config)
    torch.save({"model": theirs}, tmp_path / "weights.pth")
    arrays = export(model.state_dict(), source="jax", config=model.config)
    np.savez(tmp_path / "weights.npz", **{name: tensor.numpy() for name, tensor in arrays.items()})
    images = torch.randn(1, 3, 224, 224)

    for name in ("weights.pth", "weights.npz"):
        loaded = load_published(f"file:{tmp_path / name}")
        assert loaded.model_settings["num_classes"] == 7
        assert torch.equal(loaded.model(images), model.eval()(images))


def test_a_file_of_another_model_is_refused_with_what_differs(tmp_path):
    model = build("vit_ti16")
    theirs = export(model.state_dict(), source="timm", config=model.config)
    safetensors.torch.save_file(theirs, tmp_path / "a.safetensors")

    with pytest.raises(CheckpointError, match="not"):
        load_published(f"file:{tmp_path / 'a.safetensors'}", model="vit_s16")


def test_without_a_network_the_message_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match=r"hf download timm/vit_tiny_patch16_224.augreg_in21k"):
        load_published("timm:vit_tiny_patch16_224.augreg_in21k")
    with pytest.raises(CheckpointError, match="hub has no repository"):
        load_published("hf:no such/name/at all")


def test_a_file_of_torchvision_is_taken_from_its_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(hub, "PYTORCH_SERVER", (tmp_path / "server").as_uri() + "/")
    with pytest.raises(CheckpointError, match=r"vit_b_16-c867db91\.pth"):
        load_published("torchvision:vit_b_16")
    with pytest.raises(ConfigError, match="'vit_b_16'"):
        load_published("torchvision:vit_b_61")


def test_weights_that_fit_several_models_need_a_name(tmp_path):
    model = build("swinv2_t").eval()
    theirs = export(model.state_dict(), source="timm", config=model.config)
    safetensors.torch.save_file(theirs, tmp_path / "a.safetensors")

    with pytest.raises(ConfigError, match=r"fit .*swinv2_t, swinv2_t_w16.*Name the model"):
        load_published(f"file:{tmp_path / 'a.safetensors'}")
    loaded = load_published(f"file:{tmp_path / 'a.safetensors'}", model="swinv2_t_w16")
    assert loaded.model_settings["window_size"] == 16


def test_a_hub_folder_says_what_shapes_do_not(tmp_path):
    config = MODELS["swinv2_t_w16"]
    theirs = export(config.build().state_dict(), source="hf", config=config)
    safetensors.torch.save_file(theirs, tmp_path / "model.safetensors")
    described = {"model_type": "swinv2", "image_size": 256, "num_heads": [3, 6, 12, 24], "window_size": 16}
    described["pretrained_window_sizes"] = [0, 0, 0, 0]
    (tmp_path / "config.json").write_text(json.dumps(described))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": 256, "resample": 3}))

    assert load_published(f"hf:{tmp_path}").model_settings["name"] == "swinv2_t_w16"


def test_unknown_schemes_and_architectures_are_named(timm_folder):
    with pytest.raises(ConfigError, match="'timm'"):
        load_published("tim:vit")
    described = json.loads((timm_folder / "config.json").read_text())
    described["architecture"] = "vit_tinny_patch16_224"
    (timm_folder / "config.json").write_text(json.dumps(described))
    with pytest.raises(ConfigError, match="vit_tiny_patch16_224"):
        load_published(f"timm:{timm_folder}")


def test_preprocessing_of_a_short_edge_and_a_crop():
    settings = {"size": {"shortest_edge": 256}, "crop_size": 224, "do_center_crop": True, "resample": 3}
    preprocessing = transformers_preprocessing(settings)

    assert preprocessing.image_size == (224, 224)
    assert preprocessing.resize == "crop"
    assert preprocessing.crop_fraction == 0.875
    assert preprocessing.interpolation == "bicubic"


def test_a_crop_fraction_keeps_the_middle():
    preprocessing = timm_preprocessing({**PUBLISHED, "input_size": [3, 8, 8], "crop_pct": 0.8})
    pixels = np.zeros((20, 40, 3), dtype=np.uint8)
    pixels[2:18, 12:28] = 255  # the central 16 of 20, in the central square

    assert preprocessing.read(pixels)[:, 1:-1, 1:-1].float().min() > 230  # the filter reads past the edge


def test_a_file_that_transformers_wrote_is_recognised_by_its_tensors(tmp_path):
    sizes = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768}
    reference = transformers.ViTForImageClassification(transformers.ViTConfig(**sizes, num_labels=7)).eval()
    reference.save_pretrained(tmp_path)
    images = torch.randn(1, 3, 224, 224)

    loaded = load_published(f"file:{tmp_path / 'model.safetensors'}")

    assert loaded.model_settings["num_classes"] == 7
    # Published ViTs of that library have another epsilon in their norms, which a file alone does not tell.
    torch.testing.assert_close(loaded.model(images), reference(images).logits, rtol=1e-3, atol=1e-4)
