"""DETR computes what transformers' does from the same weights, and its files are read."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

from making.references import published_names
from vitrail.core.errors import CheckpointError
from vitrail.engines.cpu import accelerate
from vitrail.engines.loading import load_any
from vitrail.interpret import record_attention
from vitrail.models import MODELS, build
from vitrail.models.weights.conversion import SOURCES, convert_to, export, rename
from vitrail.models.weights.detr import read_preprocessing, to_config
from vitrail.models.weights.layouts.hf import RENAMED
from vitrail.models.weights.published import convert_to_folder, load_published
from vitrail.models.weights.table import to_ours, to_theirs

entries, own_entries = SOURCES["hf"].tables["detr"], SOURCES["hf"].other_tables["detr"]
TOLERANCE = 1e-4  # of logits of a scale of about one, and of boxes, in float32
TINY = {
    "backbone_width": 8,
    "backbone_depths": (1, 2, 1, 1),
    "width": 24,
    "hidden_dim": 20,
    "num_heads": 3,
    "encoder_depth": 2,
    "decoder_depth": 3,
    "num_classes": 5,
    "num_queries": 7,
    "dropout": 0.0,
}


def _settings(config) -> DetrConfig:
    backbone = ResNetConfig(
        embedding_size=config.backbone_width,
        hidden_sizes=list(config.resnet.channels),
        depths=list(config.backbone_depths),
        out_features=[f"stage{len(config.backbone_depths)}"],
    )
    return DetrConfig(
        use_timm_backbone=False,
        backbone_config=backbone,
        d_model=config.width,
        encoder_layers=config.encoder_depth,
        decoder_layers=config.decoder_depth,
        encoder_ffn_dim=config.hidden_dim,
        decoder_ffn_dim=config.hidden_dim,
        encoder_attention_heads=config.num_heads,
        decoder_attention_heads=config.num_heads,
        num_queries=config.num_queries,
        dropout=config.dropout,
        id2label={number: f"thing {number}" for number in range(config.num_classes)},
    )


def _randomise(model: nn.Module) -> nn.Module:
    """Draw weights that keep the scale of what they are given, and statistics that are no one's default."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        with torch.no_grad():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 2.0)
            elif "norm" in name and name.endswith("weight"):
                tensor.normal_(mean=0.8 if "backbone" in name else 1.0, std=0.1)
            elif "position" in name:
                tensor.normal_(std=2.0)
            elif tensor.ndim > 1:
                is_compared = "q_proj" in name or "k_proj" in name  # else all queries would see the mean
                tensor.normal_(std=(4 if is_compared else 1) * tensor[0].numel() ** -0.5)
            elif tensor.is_floating_point():
                tensor.normal_(std=0.05)
    return model.eval()


def _pair(name: str = "detr_r50", **changes: object) -> tuple[nn.Module, nn.Module]:
    config = MODELS[name].with_changes(changes)
    reference = _randomise(DetrForObjectDetection(_settings(config)))
    model = config.build().eval()
    model.load_state_dict(convert_to(reference.state_dict(), source="hf", config=config))
    return reference, model


@pytest.fixture
def tiny() -> tuple[nn.Module, nn.Module]:
    return _pair(**TINY)


def _pad(images: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the images with zeros for padding, as published processors make them, and their masks."""
    mask = torch.zeros(len(images), *images.shape[2:], dtype=torch.int64)
    for each, (height, width) in zip(mask, sizes.tolist(), strict=True):
        each[:height, :width] = 1
    return images * mask[:, None], mask


def _assert_equal(output, expected) -> None:
    assert 0.3 < expected.logits.std() < 3
    assert (output.logits - expected.logits).abs().max() <= TOLERANCE
    assert (output.boxes - expected.pred_boxes).abs().max() <= TOLERANCE
    assert expected.pred_boxes.std(dim=1).max() > 20 * TOLERANCE  # the queries answer differently


@pytest.mark.parametrize("size", [(64, 96), (67, 131), (33, 40)])
def test_logits_and_boxes_equal_those_of_transformers(tiny, size):
    reference, model = tiny
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        _assert_equal(model(images), reference(images))


@pytest.mark.parametrize("sizes", [[[130, 67], [97, 150], [40, 41]], [[131, 150], [131, 64], [131, 150]]])
def test_logits_and_boxes_of_padded_images_equal_those_of_transformers(tiny, sizes):
    reference, model = tiny
    sizes = torch.tensor(sizes)
    images, mask = _pad(torch.randn(3, 3, 131, 150), sizes)
    with torch.no_grad():
        expected = reference(images, pixel_mask=mask)
        _assert_equal(model(images, sizes), expected)
        assert (model(images).logits - expected.logits).abs().max() > TOLERANCE


def test_the_published_architecture_equals_that_of_transformers():
    reference, model = _pair()
    sizes = torch.tensor([[160, 131], [100, 192]])
    images, mask = _pad(torch.randn(2, 3, 160, 192), sizes)
    with torch.no_grad():
        _assert_equal(model(images, sizes), reference(images, pixel_mask=mask))


def test_auxiliary_predictions_are_those_of_the_earlier_decoder_layers(tiny):
    reference, model = tiny
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        states = reference(images, output_hidden_states=True).decoder_hidden_states
        output = model.train()(images)
    assert len(output.auxiliary) == 2
    for each, state in zip(output.auxiliary, states[1:-1], strict=True):
        normed = reference.model.decoder.layernorm(state)
        logits, boxes = reference.class_labels_classifier(normed), reference.bbox_predictor(normed).sigmoid()
        assert (each.logits - logits).abs().max() <= TOLERANCE
        assert (each.boxes - boxes).abs().max() <= TOLERANCE


def test_recorded_attention_equals_that_of_transformers(tiny):
    reference, model = tiny
    reference.set_attn_implementation("eager")
    sizes = torch.tensor([[96, 70], [41, 131]])
    images, mask = _pad(torch.randn(2, 3, 96, 131), sizes)
    with torch.no_grad(), record_attention(model) as maps:
        model(images, sizes)
    with torch.no_grad():
        expected = reference(images, pixel_mask=mask, output_attentions=True)
    by_layer = {each.layer: each for each in maps}
    inside = torch.zeros(2, 3, 5, dtype=torch.bool)  # patches in the padding ask, too, but nobody reads them
    inside[0, :, :3] = inside[1, :2] = True
    for index, weights in enumerate(expected.encoder_attentions):
        each = by_layer[f"encoder.{index}.attention"]
        assert (each.kind, each.grid, each.query_grid) == ("self", (3, 5), (3, 5))
        rows = (side.transpose(1, 2)[inside.flatten(1)] for side in (each.weights, weights))
        torch.testing.assert_close(*rows, rtol=0, atol=1e-5)
    for index, weights in enumerate(expected.decoder_attentions):
        each = by_layer[f"decoder.{index}.self_attention"]
        assert (each.kind, each.grid) == ("self", None)
        torch.testing.assert_close(each.weights, weights, rtol=0, atol=1e-5)
    for index, weights in enumerate(expected.cross_attentions):
        each = by_layer[f"decoder.{index}.cross_attention"]
        assert (each.kind, each.grid, each.query_grid) == ("cross", (3, 5), None)
        torch.testing.assert_close(each.weights, weights, rtol=0, atol=1e-5)


def test_bfloat16_stays_as_near_to_float32_as_that_of_transformers(tiny):
    reference, model = tiny
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        wide = reference(images)
        theirs = copy.deepcopy(reference).bfloat16()(images.bfloat16())
        ours = copy.deepcopy(model).bfloat16()(images.bfloat16())
    for narrow, expected, own in (
        (theirs.logits, wide.logits, ours.logits),
        (theirs.pred_boxes, wide.pred_boxes, ours.boxes),
    ):
        assert own.dtype == torch.bfloat16
        assert (own - expected).abs().mean() <= 2 * (narrow - expected).abs().mean()


def test_the_table_of_the_librarys_own_backbone_names_every_tensor_of_both_sides():
    for name in ("detr_r50", "detr_r101"):
        with torch.device("meta"):
            model = build(name)
            reference = DetrForObjectDetection(_settings(model.config))
        ours = to_ours(own_entries(model.config), reference.state_dict())
        expected = {key: value.shape for key, value in model.state_dict().items()}
        assert {key: value.shape for key, value in ours.items()} == expected


def test_conversion_can_be_reversed_in_both_layouts(tiny):
    reference, model = tiny
    state = reference.state_dict()
    back = to_theirs(own_entries(model.config), model.state_dict())
    assert back.keys() == state.keys()
    assert all(torch.equal(back[key], state[key]) for key in state)

    exported = export(model.state_dict(), source="hf", config=model.config)
    assert "model.backbone.model.layer2.0.downsample.1.running_var" in exported
    assert exported["model.backbone.model.conv1.weight"].shape == (8, 3, 7, 7)
    again = convert_to(exported, source="hf", config=model.config)
    assert all(torch.equal(again[key], value) for key, value in model.state_dict().items())


def test_counted_batches_of_a_frozen_backbone_are_left_out(tiny):
    reference, model = tiny
    norm = "model.backbone.model.embedder.embedder.normalization.num_batches_tracked"
    state = {**reference.state_dict(), norm: torch.tensor(7)}
    assert norm not in convert_to(state, source="hf", config=model.config)


def test_names_of_the_hubs_files_become_those_of_the_models():
    published = {  # facebook/detr-resnet-50: names that differ from those of today's models
        "model.backbone.conv_encoder.model.layer1.0.bn1.weight": "model.backbone.model.layer1.0.bn1.weight",
        "model.backbone.conv_encoder.model._backbone.conv1.weight": "model.backbone.model.conv1.weight",
        "model.encoder.layers.5.self_attn.out_proj.bias": "model.encoder.layers.5.self_attn.o_proj.bias",
        "model.decoder.layers.0.fc1.weight": "model.decoder.layers.0.mlp.fc1.weight",
        "bbox_predictor.layers.2.bias": "bbox_predictor.layers.2.bias",
    }
    renamed = rename(dict.fromkeys(published, torch.zeros(1)), RENAMED["detr"])
    assert list(renamed) == list(published.values())
    for name in published_names("hf", "detr").values():
        wanted = {key for entry in entries(MODELS[name]) for key in entry.theirs}
        assert set(published.values()) <= wanted


# Folders and files.


@pytest.fixture
def hub_folder(tmp_path: Path, tiny) -> Path:
    """A folder as transformers saves a DETR with its own backbone."""
    folder = tmp_path / "hub"
    tiny[0].save_pretrained(folder)
    prepared = {"size": {"shortest_edge": 96, "longest_edge": 150}, "resample": 2}
    (folder / "preprocessor_config.json").write_text(json.dumps(prepared))
    return folder


def test_a_hub_folder_brings_model_preprocessing_and_names(hub_folder, tiny):
    loaded = load_published(f"hf:{hub_folder}")
    images = torch.randn(2, 3, 64, 96)

    assert loaded.class_names == [f"thing {number}" for number in range(5)]
    assert loaded.preprocessing["task"] == "detection"
    assert (loaded.preprocessing["image_size"], loaded.preprocessing["resize"]) == ([96, 150], "shortest")
    assert loaded.model.config.image_size == (96, 150)
    with torch.no_grad():
        _assert_equal(loaded.model(images), tiny[0](images))


def test_conversion_writes_a_folder_that_gives_the_same_outputs(hub_folder, tmp_path):
    lines = list(convert_to_folder(f"hf:{hub_folder}", tmp_path / "out"))
    images = torch.randn(1, 3, 64, 96)

    assert "5 classes" in lines[0]
    written, direct = load_any(tmp_path / "out"), load_published(f"hf:{hub_folder}")
    with torch.no_grad():
        direct_boxes = accelerate(direct.model)(images).boxes  # as loaded models are
        assert torch.equal(written.model(images).boxes, direct_boxes)
    assert written.preprocessing == direct.preprocessing


def test_settings_of_the_hub_are_ours():
    described = {"backbone": "resnet101", "dilation": True, "id2label": {str(i): "x" for i in range(91)}}
    config = to_config(described, origin="x")
    assert config.model_copy(update={"name": "detr_r101_dc5"}) == MODELS["detr_r101_dc5"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"activation_function": "gelu"}, "activation_function is 'gelu'"),
        ({"position_embedding_type": "learned"}, "position_embedding_type is 'learned'"),
        ({"backbone": "resnet18d"}, "its backbone is 'resnet18d'"),
        ({"encoder_ffn_dim": 3, "decoder_ffn_dim": 5}, "3 and 5 as ffn_dim"),
        ({"d_model": 30, "encoder_attention_heads": 4, "decoder_attention_heads": 4}, "does not divide"),
        (
            {"backbone_config": {"depths": [1], "embedding_size": 8, "layer_type": "basic"}},
            "layer_type is 'basic'",
        ),
    ],
)
def test_a_detr_unlike_ours_is_refused_with_what_differs(change, fault):
    with pytest.raises(CheckpointError) as refused:
        to_config(change, origin="someone/detr")
    assert fault in refused.value.given


def test_the_preparation_of_published_files_is_read():
    usual = read_preprocessing({})
    assert (usual.image_size, usual.resize, usual.interpolation) == ((800, 1333), "shortest", "bilinear")
    assert usual.input_size((480, 640)) == (800, 1066)
    assert read_preprocessing({"size": 600, "max_size": 1000}).image_size == (600, 1000)
    with pytest.raises(CheckpointError, match="shortest_edge"):
        read_preprocessing({"size": {"height": 3, "width": 5}})
