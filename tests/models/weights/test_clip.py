"""CLIP computes what transformers' does from the same weights, in all layouts in which it is published."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor
from transformers import CLIPConfig, CLIPModel

from making.clip_folder import build_hf_clip, clip_tokenizer, write_clip_folder
from making.random_weights import randomise
from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.engines.loading import load_any
from vitrail.models import MODELS, build
from vitrail.models.clip import CLIP
from vitrail.models.weights.clip import to_config
from vitrail.models.weights.conversion import SOURCES, convert, convert_to, export
from vitrail.models.weights.published import convert_to_folder
from vitrail.models.weights.table import to_theirs

TEXTS = ["a photo of cat", "dog", "of of of"]


def build_ours(reference: CLIPModel) -> CLIP:
    config = to_config(reference.config.to_dict(), origin="the test")
    model = config.build()
    model.load_state_dict(convert_to(reference.state_dict(), source="hf", config=config))
    return model.eval()


def texts_of_both() -> tuple[Tensor, Tensor]:
    """Return rows of subwords with their lengths; transformers finds the end by its number."""
    rows = clip_tokenizer()(TEXTS, padding=True, return_tensors="pt")
    return rows["input_ids"], rows["attention_mask"].sum(dim=1)


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
def test_both_towers_compute_what_those_of_transformers_do(activation: str) -> None:
    reference = build_hf_clip()
    if activation != "quick_gelu":
        for tower in ("vision", "text"):
            getattr(reference.config, f"{tower}_config").hidden_act = activation
        state = reference.state_dict()
        reference = CLIPModel(CLIPConfig(**reference.config.to_dict())).eval()
        reference.load_state_dict(state)
    model, images = build_ours(reference), torch.randn(2, 3, 40, 40)
    tokens, lengths = texts_of_both()

    with torch.no_grad():
        expected = reference(input_ids=tokens, pixel_values=images)
        output = model(images, tokens, lengths)

    assert expected.image_embeds[0].dot(expected.image_embeds[1]) < 0.999
    assert (output.images - expected.image_embeds).abs().max() <= 1e-4
    assert (output.texts - expected.text_embeds).abs().max() <= 1e-4
    logits = output.scale * output.images @ output.texts.T
    assert (logits - expected.logits_per_image).abs().max() <= 1e-4


def test_padding_changes_nothing() -> None:
    model = randomise(build_ours(build_hf_clip()))
    tokens, lengths = texts_of_both()
    other = tokens.clone()
    for row, length in enumerate(lengths):
        other[row, length:] = 7

    assert torch.equal(model.embed_texts(tokens, lengths), model.embed_texts(other, lengths))
    alone = model.embed_texts(tokens[1:2, : int(lengths[1])], lengths[1:2])
    torch.testing.assert_close(alone[0], model.embed_texts(tokens, lengths)[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("source", ["openai", "open_clip", "hf"])
def test_a_round_trip_through_a_layout_loses_nothing(source: str) -> None:
    model = build_ours(build_hf_clip())
    theirs = export(model.state_dict(), source=source, config=model.config)
    again = convert_to(theirs, source=source, config=model.config)

    assert again.keys() == model.state_dict().keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in model.state_dict().items())


def test_the_layout_of_the_authors_has_their_names_and_shapes() -> None:
    with torch.device("meta"):
        model = build("clip_b32")
    theirs = export(model.state_dict(), source="openai", config=MODELS["clip_b32"])
    shapes = {name: tuple(tensor.shape) for name, tensor in theirs.items()}

    assert shapes["visual.proj"] == (768, 512)
    assert shapes["text_projection"] == (512, 512)
    assert shapes["visual.class_embedding"] == (768,)
    assert shapes["visual.positional_embedding"] == (50, 768)
    assert shapes["transformer.resblocks.11.attn.in_proj_weight"] == (1536, 512)
    assert shapes["visual.conv1.weight"] == (768, 3, 32, 32)
    assert len(shapes) == 302


def test_a_text_tower_with_a_name_of_its_own_is_read() -> None:
    entries_of_named_text = SOURCES["open_clip"].other_tables["clip"]

    model = build_ours(build_hf_clip())
    theirs = to_theirs(entries_of_named_text(model.config), model.state_dict())
    theirs["attn_mask"] = torch.zeros(2, 2)
    assert "text.token_embedding.weight" in theirs

    again = convert_to(theirs, source="open_clip", config=model.config)

    assert all(torch.equal(again[name], tensor) for name, tensor in model.state_dict().items())


def test_a_folder_of_transformers_is_loaded_with_vocabulary_and_preparation(tmp_path: Path) -> None:
    reference = write_clip_folder(tmp_path / "published")
    lines = list(convert_to_folder(f"hf:{tmp_path / 'published'}", tmp_path / "ours"))
    loaded = load_any(tmp_path / "ours")
    tokens, lengths = texts_of_both()

    assert "embeddings of 14 values" in lines[0]
    assert loaded.preprocessing["task"] == "contrastive"
    assert loaded.preprocessing["image_size"] == [40, 40]
    assert loaded.preprocessing["mean"] == pytest.approx([0.48145466, 0.4578275, 0.40821073])
    with torch.no_grad():
        expected = reference(input_ids=tokens, pixel_values=torch.zeros(1, 3, 40, 40)).text_embeds
    assert (loaded.model.embed_texts(tokens, lengths) - expected).abs().max() <= 1e-4


def test_a_folder_of_open_clip_is_loaded_likewise(tmp_path: Path) -> None:
    reference = write_clip_folder(tmp_path / "published")
    model = build_ours(reference)
    folder = tmp_path / "open"
    folder.mkdir()
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(tmp_path / "published" / name, folder)
    towers = {
        "embed_dim": 14,
        "quick_gelu": True,
        "vision_cfg": {"image_size": 40, "layers": 3, "width": 24, "patch_size": 8, "head_width": 8},
        "text_cfg": {
            "context_length": 13,
            "vocab_size": model.config.vocabulary_size,
            "width": 20,
            "heads": 2,
            "layers": 2,
        },
    }
    settings = {"model_cfg": towers, "preprocess_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3}}
    (folder / "open_clip_config.json").write_text(json.dumps(settings))
    state = export(model.state_dict(), source="open_clip", config=model.config)
    safetensors.torch.save_file(state, folder / "open_clip_model.safetensors")

    loaded = load_any(f"hf:{folder}")

    images = torch.randn(2, 3, 40, 40)
    assert torch.equal(loaded.model.embed_images(images), model.embed_images(images))
    towers["vision_cfg"]["timm_model_name"] = "vit_base_patch16"
    (folder / "open_clip_config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match="timm_model_name is 'vit_base_patch16'"):
        load_any(f"hf:{folder}")


def test_models_unlike_ours_and_other_towers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="intermediate_size 50"):
        to_config(build_hf_clip(intermediate_size=50).config.to_dict(), origin="that")
    small = build("clip_tiny")
    with pytest.raises(ConfigError, match="image tower is vit_micro"):
        export(small.state_dict(), source="hf", config=small.config)
    with pytest.raises(CheckpointError, match="missing"):
        convert({}, source="openai", model="clip_b32")
    safetensors.torch.save_file({"x": torch.zeros(1)}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="no vocabulary"):
        load_any(f"file:{tmp_path / 'x.safetensors'}", model="clip_b32")
