"""Files of DETR's authors are read: their Transformer, made of torch's own layers, computes the same."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from making.random_weights import randomise
from making.small_models import DETR
from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.models import MODELS, build
from vitrail.models.weights import published
from vitrail.models.weights.conversion import convert, convert_to, export
from vitrail.models.weights.published import load_published
from vitrail.nn.detr_attention import sine_positions_inside
from vitrail.nn.feature_maps import map_to_tokens

TOLERANCE = 1e-9  # in float64


class AuthorsLayer(nn.Module):
    """A block with the names that the authors' files have."""

    def __init__(self, config, *, reads_context: bool) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(config.width, config.num_heads, batch_first=True)
        if reads_context:
            self.multihead_attn = nn.MultiheadAttention(config.width, config.num_heads, batch_first=True)
        self.linear1 = nn.Linear(config.width, config.hidden_dim)
        self.linear2 = nn.Linear(config.hidden_dim, config.width)
        for number in (1, 2, 3) if reads_context else (1, 2):
            setattr(self, f"norm{number}", nn.LayerNorm(config.width))

    def forward(self, x: Tensor, places: Tensor, context: Tensor | None = None, keys: Tensor | None = None):
        x = self.norm1(x + self.self_attn(x + places, x + places, x)[0])
        last = self.norm2
        if context is not None:
            x, last = self.norm2(x + self.multihead_attn(x + places, keys, context)[0]), self.norm3
        return last(x + self.linear2(self.linear1(x).relu()))


class AuthorsDetector(nn.Module):
    """All but the backbone, under the names of the authors' files."""

    def __init__(self, config) -> None:
        super().__init__()
        side = {"encoder": config.encoder_depth, "decoder": config.decoder_depth}
        self.transformer = nn.ModuleDict()
        for name, depth in side.items():
            layers = [AuthorsLayer(config, reads_context=name == "decoder") for _ in range(depth)]
            self.transformer[name] = nn.ModuleDict({"layers": nn.ModuleList(layers)})
        self.transformer["decoder"]["norm"] = nn.LayerNorm(config.width)
        self.class_embed = nn.Linear(config.width, config.num_classes + 1)
        widths = [config.width] * 3 + [4]
        layers = [nn.Linear(before, after) for before, after in pairwise(widths)]
        self.bbox_embed = nn.ModuleDict({"layers": nn.ModuleList(layers)})
        self.query_embed = nn.Embedding(config.num_queries, config.width)
        self.input_proj = nn.Conv2d(config.resnet.channels[-1], config.width, 1)

    def forward(self, features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        x = map_to_tokens(self.input_proj(features))
        for layer in self.transformer["encoder"]["layers"]:
            x = layer(x, positions)
        queries = self.query_embed.weight.expand(len(x), -1, -1)
        state = torch.zeros_like(queries)
        for layer in self.transformer["decoder"]["layers"]:
            state = layer(state, queries, x, x + positions)
        boxes = state = self.transformer["decoder"]["norm"](state)
        for index, layer in enumerate(self.bbox_embed["layers"]):
            boxes = layer(boxes).relu() if index < 2 else layer(boxes).sigmoid()
        return self.class_embed(state), boxes


@pytest.fixture
def small() -> nn.Module:
    return randomise(build("detr_r50", **DETR))


def test_the_authors_transformer_computes_the_same(small):
    small.double()  # random queries answer almost alike
    state = export(small.state_dict(), source="detr", config=small.config)
    rest = {name: tensor for name, tensor in state.items() if not name.startswith("backbone.0.body.")}
    reference = AuthorsDetector(small.config).double().eval()
    reference.load_state_dict(rest)  # every name and shape, and no other
    images = torch.randn(2, 3, 64, 80).double()

    with torch.no_grad():
        output, features = small(images), small.backbone(images)[-1]
        inside = (torch.ones(1, length, dtype=torch.bool) for length in features.shape[-2:])
        logits, boxes = reference(features, sine_positions_inside(*inside, small.config.width).double())

    assert boxes.std(dim=1).max() > 1e4 * TOLERANCE
    assert (output.logits - logits).abs().max() <= TOLERANCE
    assert (output.boxes - boxes).abs().max() <= TOLERANCE


def test_conversion_can_be_reversed(small):
    state = export(small.state_dict(), source="detr", config=small.config)
    names = ("conv1.weight", "bn1.running_var", "layer1.0.downsample.0.weight", "layer3.1.conv3.weight")
    assert all(f"backbone.0.body.{name}" in state for name in names)
    again = convert_to(state, source="detr", config=small.config)
    assert again.keys() == small.state_dict().keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in small.state_dict().items())


def test_the_number_of_classes_is_read_off_the_weights(small):
    state = export(small.state_dict(), source="detr", config=small.config)
    settings = {name: value for name, value in DETR.items() if name != "num_classes"}
    assert convert(state, source="detr", model="detr_r50", **settings)["class_head.bias"].shape == (6,)


@pytest.fixture
def small_file(small, tmp_path, monkeypatch):
    """A file laid out as the authors', of a small model that stands in for two variants."""
    variants = {name: MODELS[name].with_changes(DETR) for name in ("detr_r50", "detr_r50_dc5")}
    monkeypatch.setattr(published, "MODELS", variants)
    path = tmp_path / "detr-r50-e632da11.pth"
    torch.save({"model": export(small.state_dict(), source="detr", config=small.config)}, path)
    return path


def test_a_file_of_the_authors_is_loaded_with_the_papers_preparation(small, small_file):
    loaded = load_published(f"file:{small_file}", model="detr_r50")
    images = torch.randn(1, 3, 48, 64)
    assert torch.equal(loaded.model(images).boxes, small(images).boxes)
    assert loaded.model_settings["name"] == "detr_r50"
    assert loaded.preprocessing["image_size"] == [800, 1333]
    assert loaded.preprocessing["resize"] == "shortest"
    assert loaded.class_names == ["0", "1", "2", "3", "4"]


def test_a_file_that_does_not_say_whether_it_is_dilated_asks_for_the_model(small_file):
    with pytest.raises(ConfigError, match=r"fit detr_r50, detr_r50_dc5") as refused:
        load_published(f"file:{small_file}")
    assert "--model" in refused.value.remedy


def test_a_file_of_another_detector_says_what_does_not_fit(small_file):
    state = torch.load(small_file, weights_only=True)["model"]
    del state["query_embed.weight"]
    torch.save(state, small_file)
    with pytest.raises(CheckpointError, match=r"query_embed\.weight"):
        load_published(f"file:{small_file}", model="detr_r50")


def test_a_file_of_no_detector_is_refused_where_one_is_named(small_file, tmp_path):
    torch.save({"fc.weight": torch.zeros(3, 5)}, tmp_path / "other.pth")
    with pytest.raises(CheckpointError, match=r"unexpected: fc\.weight"):
        load_published(f"file:{tmp_path / 'other.pth'}", model="detr_r50")
