"""Exported models compute what the models do, and those that would not are not written."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from making.small_detection import small_split
from making.small_exports import generated, load_small, photos, scenes
from vitrail.cli.exporting import show_package
from vitrail.core.errors import CheckpointError, ConfigError, DataError
from vitrail.data.box_preprocessing import BoxPreprocessing
from vitrail.engines.export import comparison, exporting
from vitrail.engines.export.exporting import canvas_of, export_model
from vitrail.engines.export.formats import FORMATS, TorchFormat
from vitrail.engines.export.package import Package, is_package
from vitrail.models import MODELS
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import DetectionOutput, ImageModelConfig
from vitrail.nn.mixers import MIXERS

pytestmark = pytest.mark.compiled  # what is traced is not checked for shapes on the way

FAMILIES = {
    config.family: name
    for name, config in sorted(MODELS.items(), reverse=True)
    if isinstance(config, ImageModelConfig)
}
"""The first variant of each family of classifiers."""


def small_vit_of_five() -> LoadedModel:
    return load_small("vit_ti16", depth=1)


def outputs_of(package: Package, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the outputs of a package, opened anew from its folder."""
    read = Package.read(package.folder)
    return FORMATS[read.format].open(read.folder, read.precision, trust=True)(inputs)


@pytest.mark.parametrize("export_format", ["onnx", "openvino", "torch"])
def test_a_classifier_computes_the_same_for_any_batch(export_format, tmp_path):
    loaded = small_vit_of_five()

    package = export_model(loaded, tmp_path / "vit", export_format=export_format, samples=generated(loaded))

    for batch in (1, 2, 5):
        images = torch.randn(batch, 3, 16, 24)
        with torch.inference_mode():
            torch.testing.assert_close(
                outputs_of(package, images), (loaded.model(images),), rtol=1e-4, atol=1e-5
            )
    assert package.inputs[0].axes == ("batch", 3, 16, 24)
    assert package.class_names == tuple(loaded.class_names)
    assert package.preprocessing == loaded.preprocessing
    assert package.comparison.num_images == 6
    assert package.comparison.top1_agreement == 1.0
    assert package.comparison.images == "6 generated images"


@pytest.mark.further
@pytest.mark.parametrize("export_format", ["onnx", "openvino", "torch"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_exported(family, export_format, tmp_path):
    loaded = load_small(FAMILIES[family])

    package = export_model(loaded, tmp_path / family, export_format=export_format, samples=generated(loaded))

    assert package.comparison.largest_logit_difference < 1e-4


@pytest.mark.further
@pytest.mark.parametrize("mixer", [name for name in MIXERS if name != "attention"])
def test_every_mixer_can_be_exported_or_its_operation_is_named(mixer, tmp_path):
    loaded = load_small("vit_ti16", mixer=mixer, class_token=False, pool="mean")
    try:
        package = export_model(loaded, tmp_path / mixer, export_format="onnx", samples=generated(loaded))
    except ConfigError as error:
        assert "operation aten" in str(error)  # noqa: PT017 - either is right
    else:
        assert package.comparison.largest_logit_difference < 1e-4


def test_another_size_than_the_positions_were_made_for_is_exact(tmp_path):
    loaded = small_vit_of_five()
    loaded.preprocessing["image_size"] = (20, 12)

    package = export_model(loaded, tmp_path / "resized", export_format="torch", samples=generated(loaded))

    images = torch.randn(3, 3, 20, 12)
    with torch.inference_mode():
        torch.testing.assert_close(outputs_of(package, images)[0], loaded.model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "export_format",
    ["torch", *(pytest.param(each, marks=pytest.mark.further) for each in ("onnx", "openvino"))],
)
def test_a_network_of_convolutions_takes_any_size(export_format, tmp_path):
    loaded = load_small("resnet18", depths=(1, 1, 1, 1), image_size=(64, 96))

    package = export_model(
        loaded, tmp_path / "resnet", export_format=export_format, samples=generated(loaded)
    )

    assert package.inputs[0].axes == ("batch", 3, "height", "width")
    for size in ((64, 64), (96, 128)):
        assert all(length % package.inputs[0].multiple_of == 0 for length in size)
        images = torch.randn(2, 3, *size)
        with torch.inference_mode():
            torch.testing.assert_close(
                outputs_of(package, images)[0], loaded.model(images), rtol=1e-4, atol=1e-5
            )


def test_a_size_that_is_no_multiple_stays_the_only_one(tmp_path):
    loaded = load_small("resnet18", depths=(1, 1, 1, 1), image_size=(16, 24))

    package = export_model(loaded, tmp_path / "resnet", export_format="torch", samples=generated(loaded))

    assert package.inputs[0].axes == ("batch", 3, 16, 24)


LEAN = {
    "strides": (16,),
    "num_denoising": 0,
    "encoder_depth": 0,
    "decoder_depth": 1,
    "backbone_depths": (1, 1, 1, 1),
}


@pytest.mark.parametrize(
    ("name", "changes", "export_format"),
    [
        ("sdetr_nano", LEAN, "torch"),
        *(
            pytest.param(name, {}, export_format, marks=pytest.mark.further)
            for name in ("sdetr_nano", "detr_r50")
            for export_format in ("onnx", "openvino", "torch")
        ),
    ],
)
def test_a_detector_computes_the_same_with_padding_of_any_size(
    name, changes, export_format, tmp_path, capsys
):
    loaded = load_small(name, **changes)
    samples = scenes(small_split((3, 0, 2, 4, 1, 2)), loaded)

    package = export_model(loaded, tmp_path / "found", export_format=export_format, samples=samples)

    height, width = (128 if isinstance(axis, str) else axis for axis in package.inputs[0].axes[2:])
    images, sizes = torch.randn(2, 3, height, width), torch.tensor([[height, width - 9], [height - 14, 30]])
    with torch.inference_mode():
        expected: DetectionOutput = loaded.model(images, sizes)
    logits, boxes = outputs_of(package, images, sizes)
    torch.testing.assert_close(logits, expected.logits, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(boxes, expected.boxes, rtol=1e-3, atol=1e-4)
    assert package.task == "detection"
    assert set(package.comparison.scores) == {"ap", "ap50"}
    assert package.comparison.scores["ap"].model == pytest.approx(package.comparison.scores["ap"].export)
    assert (package.box_tolerance, Package.read(package.folder).box_tolerance) == (1e-3, 1e-3)
    show_package(package)
    assert "maximum allowed: 0.1 %" in " ".join(capsys.readouterr().out.split())


def test_int8_says_what_it_costs_and_is_refused_where_that_is_too_much(image_folder, tmp_path, monkeypatch):
    loaded, written = small_vit_of_five(), []
    samples = photos(image_folder, loaded)
    write = exporting._Export.write
    asked = {"export_format": "onnx", "precision": "int8", "samples": samples}

    def write_once(export: Any) -> Any:
        written.extend([] if written else [write(export)])
        return written[0]

    monkeypatch.setattr(exporting._Export, "write", write_once)
    package = export_model(loaded, tmp_path / "vit", **asked, allowed_points=100)

    assert package.comparison.num_scored == len(samples.source)
    assert 0 < package.comparison.mean_logit_difference < 0.1
    assert "QuantizeLinear" in operations_of(package)
    kept = Package.read(tmp_path / "vit")
    with pytest.raises(CheckpointError, match=r"loses -?\d+\.\d\d points of accuracy"):
        export_model(loaded, tmp_path / "vit", **asked, allowed_points=-101)
    assert Package.read(tmp_path / "vit") == kept  # the former one is as it was


def test_the_score_counts_in_float32_too_and_a_refused_export_leaves_nothing(
    image_folder, tmp_path, monkeypatch
):
    loaded, judged = small_vit_of_five(), []
    monkeypatch.setattr(comparison, "check_loss", lambda *given: judged.append(given))
    asked = {"export_format": "torch", "samples": photos(image_folder, loaded)}

    export_model(loaded, tmp_path / "vit", **asked, allowed_points=3)

    ((found, *rest),) = judged
    assert found.num_scored > 0
    assert rest == ["accuracy", "float32", 3]

    monkeypatch.setattr(
        TorchFormat, "open", lambda *_, **__: lambda inputs: (loaded.model(*inputs).detach() + 1,)
    )
    with pytest.raises(CheckpointError, match=r"logits differ by 1\.0e\+00, more than 1\.0e-03"):
        export_model(loaded, tmp_path / "other", **asked)
    assert {path.name for path in tmp_path.iterdir()} == {image_folder.name, "vit"}


@pytest.mark.further
def test_int8_of_openvino(image_folder, tmp_path):
    loaded = small_vit_of_five()

    package = export_model(
        loaded,
        tmp_path / "whole",
        export_format="openvino",
        precision="int8",
        samples=photos(image_folder, loaded),
        allowed_points=100,
    )

    assert 0 < package.comparison.mean_logit_difference < 0.1
    assert "FakeQuantize" in (package.folder / "model.xml").read_text()


@pytest.mark.further
def test_bfloat16_is_part_of_a_program_of_torch(tmp_path):
    loaded = small_vit_of_five()
    package = export_model(
        loaded, tmp_path / "narrow", export_format="torch", precision="bfloat16", samples=generated(loaded)
    )

    assert 1e-5 < package.comparison.mean_logit_difference < 0.05


def operations_of(package: Package) -> set[str]:
    """Return the operations of an ONNX graph."""
    import onnx

    return {node.op_type for node in onnx.load(package.folder / "model.onnx").graph.node}


@pytest.mark.parametrize(
    ("export_format", "precision", "error", "words"),
    [
        ("torch", "int8", ConfigError, "torch has no int8"),
        ("onnx", "bfloat16", ConfigError, "Choose --format openvino or torch for bfloat16"),
        ("onnx", "int8", DataError, "--data"),  # generated images have no labels
    ],
)
def test_a_precision_that_a_format_or_the_data_lacks_is_refused(
    export_format, precision, error, words, tmp_path
):
    loaded = small_vit_of_five()
    with pytest.raises(error, match=words):
        export_model(
            loaded,
            tmp_path / "vit",
            export_format=export_format,
            precision=precision,
            samples=generated(loaded),
        )


def test_a_folder_of_something_else_is_not_replaced(tmp_path):
    (tmp_path / "precious.txt").write_text("kept")

    loaded = small_vit_of_five()
    with pytest.raises(CheckpointError, match="not an exported model"):
        export_model(loaded, tmp_path, export_format="torch", samples=generated(loaded))

    assert not is_package(tmp_path)
    assert (tmp_path / "precious.txt").read_text() == "kept"


def test_a_missing_package_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)

    loaded = small_vit_of_five()
    with pytest.raises(ConfigError, match=r"pip install 'vitrail\[export\]'"):
        export_model(loaded, tmp_path / "vit", export_format="onnx", samples=generated(loaded))


@pytest.mark.parametrize(
    ("resize", "canvas"), [("fit", (48, 64)), ("squash", (48, 64)), ("shortest", (64, 64))]
)
def test_a_detector_gets_a_canvas_for_every_aspect(resize: Any, canvas):
    loaded = load_small("detr_r50")
    preprocessing = BoxPreprocessing(image_size=(48, 64), resize=resize).model_dump(mode="json")

    assert canvas_of(loaded._replace(preprocessing=preprocessing)) == canvas


def test_generated_images_are_the_same_at_every_call():
    source = generated(small_vit_of_five()).source

    assert torch.equal(source.load(1, None).image, source.load(1, None).image)
    assert not torch.equal(source.load(1, None).image, source.load(2, None).image)
