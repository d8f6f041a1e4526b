"""A detector starts from the weights of an image model; weights of other tasks are refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from making.box_scenes import make_scenes, write_coco
from making.bright_boxes import small_detr
from making.image_folders import write_image_folder
from making.small_models import CHANGES, small_captioner
from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.data.preprocessing import Preprocessing
from vitrail.engines.loading import load_any
from vitrail.models import build, model_settings
from vitrail.models.checkpoint import LoadedModel
from vitrail.nn.convolution import FrozenBatchNorm
from vitrail.tasks.detection.predictor import Detector
from vitrail.tasks.preparing import Prepared
from vitrail.tasks.training import TrainedRun, train

pytest.importorskip("scipy", reason="needs the extra detection")
pytest.importorskip("faster_coco_eval", reason="needs the extra detection")

SIZE = {"image_size": (33, 35), "num_classes": 4}
RESNET = {**SIZE, "block": "basic", "width": 4, "depths": (1, 1, 1, 1)}
IMAGE_MODELS: dict[str, dict[str, Any]] = {
    "resnet18": RESNET,
    "vit_nano": {**SIZE, "width": 12, "depth": 1, "num_heads": 3},
    "swin_t": {**CHANGES["swin"], **SIZE, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 2, 2)},
}
DETECTORS: dict[str, dict[str, Any]] = {
    "detr_r50": {"model.width": 16, "model.hidden_dim": 12, "model.num_heads": 2, "model.encoder_depth": 1},
    "sdetr_nano": {"model.width": 16, "model.hidden_dim": 12, "model.num_heads": 2},
}
BRIEF = {
    "data.image_size": [48, 64],
    "model.num_queries": 5,
    "model.decoder_depth": 1,
    "train.steps": 1,
    "train.validations": 1,
    "train.batch_size": 3,
    "train.precision": "float32",
}


def save_image_model(folder: Path, name: str, **changes: Any) -> Path:
    settings = {**IMAGE_MODELS[name], **changes}
    torch.manual_seed(5)
    model = build(name, **settings).eval()
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.1 * torch.rand_like(tensor))
    images = Preprocessing(image_size=settings["image_size"], mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    names = [str(label) for label in range(4)]
    stored = LoadedModel(
        model, model_settings(name, **settings), images.model_dump(mode="json"), names, {}, {}
    )
    stored.save(folder / name)
    return folder / name


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_coco(tmp_path_factory.mktemp("cells"), make_scenes(train=5, validation=2, test=2))


def prepare(source: Path, weights: Path, name: str | None, **changes: Any) -> Prepared:
    settings = {**BRIEF, **(DETECTORS[name] if name else {}), **changes}
    prepared = train(source, model=name, weights=weights, changes=settings, dry_run=True)
    assert isinstance(prepared, Prepared)
    return prepared


@pytest.mark.parametrize(
    ("detector", "backbone"),
    [("detr_r50", "resnet18"), ("detr_r50", "vit_nano"), ("detr_r50", "swin_t"), ("sdetr_nano", "resnet18")],
)
def test_the_backbone_has_the_weights_and_the_preprocessing_of_the_image_model(
    cells: Path, tmp_path: Path, detector: str, backbone: str
) -> None:
    weights = save_image_model(tmp_path, backbone)

    prepared = prepare(cells, weights, detector)

    model: Any = prepared.parts.model
    sources = load_any(weights).model.state_dict()
    inner = model.backbone.model if detector == "detr_r50" else model.backbone.backbone
    targets = inner.state_dict()
    assert targets
    assert all(torch.equal(tensor, sources[name]) for name, tensor in targets.items())
    assert not [each for each in inner.modules() if isinstance(each, torch.nn.BatchNorm2d)]
    assert any(isinstance(each, FrozenBatchNorm) for each in inner.modules()) == (backbone == "resnet18")
    preprocessing: Any = prepared.parts.preprocessing
    assert preprocessing.mean == (0.1, 0.2, 0.3)
    assert preprocessing.image_size == (48, 64)
    reasons = {choice.setting: (choice.value, choice.reason) for choice in prepared.choices}
    assert reasons["model.backbone"] == (backbone, "that of the weights")


def test_the_features_are_those_of_the_image_model(cells: Path, tmp_path: Path) -> None:
    weights = save_image_model(tmp_path, "resnet18")
    model: Any = prepare(cells, weights, "detr_r50").parts.model.eval()
    images = torch.randn(2, 3, 48, 64)
    with torch.no_grad():
        expected = load_any(weights).model.features(images)[-1]
        found = model.backbone(images)

    assert found.grid == expected.shape[-2:]
    torch.testing.assert_close(found.features, expected.flatten(2).transpose(1, 2))


@pytest.mark.parametrize(("backbone", "name"), [("resnet18", "sdetr_nano"), ("vit_nano", "detr_nano")])
def test_without_a_model_one_is_chosen_that_reads_such_a_backbone(
    cells: Path, tmp_path: Path, backbone: str, name: str
) -> None:
    prepared = prepare(cells, save_image_model(tmp_path, backbone), None)
    assert prepared.experiment.model.name == name


def test_a_run_from_image_weights_is_whole_weights_for_the_next(cells: Path, tmp_path: Path) -> None:
    changes = {**BRIEF, **DETECTORS["detr_r50"]}
    weights = save_image_model(tmp_path, "resnet18")
    first = train(cells, model="detr_r50", weights=weights, changes=changes, output=tmp_path, name="first")
    assert isinstance(first, TrainedRun)

    second = prepare(cells, first.folder, None, **{"data.image_size": [32, 48]})

    learned = Detector(first.folder).model.state_dict()
    assert all(torch.equal(tensor, learned[name]) for name, tensor in second.parts.model.state_dict().items())


def test_a_named_backbone_without_weights_learns_its_norm(cells: Path) -> None:
    changes = {**BRIEF, **DETECTORS["detr_r50"], "model.backbone": "resnet18"}
    prepared = train(cells, model="detr_r50", changes=changes, dry_run=True)
    assert isinstance(prepared, Prepared)
    model: Any = prepared.experiment.model
    assert (model.backbone_norm, model.num_frozen) == ("batch", 0)
    assert all(each.requires_grad for each in prepared.parts.model.parameters())


@pytest.mark.parametrize(
    ("detector", "backbone", "built", "changes", "message"),
    [
        ("detr_r50", "resnet18", {}, {"model.backbone": "resnet34"}, "'resnet34' was asked for, and weights"),
        (
            "detr_r50",
            "resnet18",
            {},
            {"model.backbone": None},
            "None was asked for, and weights of 'resnet18'",
        ),
        ("detr_r50", "resnet18", {"num_channels": 1}, {}, "resnet18, for images with 1 channel"),
        (
            "detr_r50",
            "vit_nano",
            {},
            {"model.num_frozen": 3},
            "num_frozen is 3, more than the parts of vit_nano: 1",
        ),
        ("sdetr_nano", "vit_nano", {}, {}, r"model.backbone is vit_nano.*swin_t"),
        ("detr_r50", "resnet18", {}, {"model.backbone_changes": {"width": 8}}, "differ from the encoder"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    cells: Path,
    tmp_path: Path,
    detector: str,
    backbone: str,
    built: dict[str, Any],
    changes: dict[str, Any],
    message: str,
) -> None:
    weights = save_image_model(tmp_path, backbone, **built)
    with pytest.raises((CheckpointError, ConfigError), match=message):
        prepare(cells, weights, detector, **changes)


def test_weights_of_another_task_are_refused(cells: Path, tmp_path: Path) -> None:
    small_detr().save(tmp_path / "detector")
    small_captioner().save(tmp_path / "captioner")
    photos = write_image_folder(tmp_path / "photos", per_class=6)
    steps = {"train.steps": 1}

    with pytest.raises(CheckpointError, match=r"detr_r50, a model for detection.*for classification"):
        train(photos, weights=tmp_path / "detector", changes=steps, dry_run=True)
    with pytest.raises(CheckpointError, match=r"a model for captioning.*for detection, or an image model"):
        train(cells, weights=tmp_path / "captioner", changes=steps, dry_run=True)


def test_a_missing_package_for_scores_is_named_before_anything_is_measured(
    cells: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    with pytest.raises(ConfigError, match="faster-coco-eval, which is not installed"):
        train(cells, model="sdetr_nano", budget_s=5, dry_run=True)
