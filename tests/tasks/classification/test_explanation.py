"""Explanations of models of every shape: one grid for all layers, one for each, or no attention at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from making.image_folders import noise
from making.small_exports import small_vit
from making.small_models import PVT, PVTV2, RESNET, SWIN, VIT
from vitrail.core.errors import ConfigError, DataError
from vitrail.data.dataset import ImageSplit
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.source import ImageSample
from vitrail.interpret.viewer import explanation
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.models import build, model_settings
from vitrail.models.checkpoint import LoadedModel
from vitrail.tasks.classification import explanation as explaining
from vitrail.tasks.classification.predictor import Predictor
from vitrail.tasks.classification.report import explain_samples
from vitrail.tasks.classification.scores import classification_tables
from vitrail.tasks.explaining import ExplainOptions, WrittenExplanations, explain_files

NAMES = ["a", "b", "c", "d", "e"]


def _predictor(name: str, changes: dict, **more: object) -> Predictor:
    torch.manual_seed(3)
    changes = {**changes, **more}
    settings = model_settings(name, **changes)
    preprocessing = Preprocessing(image_size=(16, 24)).model_dump(mode="json")
    return Predictor(LoadedModel(build(name, **changes), settings, preprocessing, NAMES, {}))


def write(predictor: Predictor, files: list[Path], output: Path, **options: Any) -> WrittenExplanations:
    return explain_files(predictor.explain, files, ExplainOptions(output=output, **options))


def _explain(predictor: Predictor) -> Explanation:
    pixels = torch.randint(0, 256, (3, 16, 24), dtype=torch.uint8)
    return predictor.explain_pixels(pixels, "noise")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    noise((24, 16)).save(tmp_path / "noise.png")
    return tmp_path / "noise.png"


@pytest.mark.parametrize(("name", "changes"), [("swin_t", SWIN), ("pvt_t", PVT), ("pvtv2_b0", PVTV2)])
def test_a_pyramid_is_shown_by_the_attention_of_its_last_layer(name, changes, file, tmp_path):
    predictor = _predictor(name, changes)
    shown = _explain(predictor)

    assert not shown.has_rollout
    assert shown.default_method == "attention"
    assert torch.equal(shown.relevance(), shown.relevance("attention", layer=-1))
    assert shown.relevance().shape == shown.layers[-1].grid
    assert shown.sheet().width > 0
    page = write(predictor, [file], tmp_path / "out.html").files[0].read_text()
    assert '"name": "rollout"' not in page
    write(predictor, [file], tmp_path / "out.png")
    assert (tmp_path / "out.png").stat().st_size > 0


@pytest.mark.parametrize("name", ["out.png", "out.html"])
def test_rollout_of_a_pyramid_is_refused(file, tmp_path, name):
    with pytest.raises(ConfigError, match="do not attend over one set of tokens"):
        write(_predictor("swin_t", SWIN), [file], tmp_path / name, method="rollout")
    assert not (tmp_path / name).exists()


def test_reduced_keys_are_read_on_their_own_grid():
    shown = _explain(_predictor("pvtv2_b0", PVTV2))
    first = shown.layers[0]
    assert (first.query_grid, first.grid) == ((8, 12), (2, 3))
    torch.testing.assert_close(
        shown.relevance(layer=1, head=1), first.weights[0, 0].mean(dim=0).reshape(2, 3)
    )
    maps = shown.maps[0]
    assert maps.between_sides(first).shape == (1, 96, 6)
    assert maps.read(first.weights[0], first).shape == (1, 2 * 3)


def test_a_class_token_is_read_where_it_is_and_the_mean_before():
    shown = _explain(_predictor("pvt_t", PVT))
    last, maps = shown.layers[-1], shown.maps[0]
    assert maps.reader == "class"
    torch.testing.assert_close(shown.relevance(head=2), last.weights[0, 1, 0, 1:].reshape(1, 2))
    assert [maps.reader_of(layer) for layer in maps.layers] == ["mean"] * 4 + ["class"]
    assert maps.between_sides(last).shape == (2, 2, 2)


def test_a_mixing_matrix_is_shown_but_not_rolled_out():
    shown = _explain(_predictor("vit_b16", VIT, mixer="synthesizer_dense"))
    assert {each.kind for each in shown.layers} == {"mixing"}
    assert shown.default_method == "attention"


def test_fine_maps_are_joined_to_coarser_ones(monkeypatch):
    predictor = _predictor("swin_t", SWIN)
    whole = _explain(predictor)
    monkeypatch.setattr(explaining, "LONGEST_GRID", 6)
    coarse = _explain(predictor)
    assert [each.grid for each in whole.layers][:2] == [(8, 12), (8, 12)]
    assert [each.grid for each in coarse.layers][:2] == [(4, 6), (4, 6)]
    assert coarse.layers[0].weights.shape[-2:] == (24, 24)
    torch.testing.assert_close(
        coarse.layers[0].weights.sum(-1), torch.ones(coarse.layers[0].weights.shape[:-1])
    )


@pytest.mark.parametrize(
    ("name", "changes", "more"),
    [("resnet18", RESNET, {}), ("vit_b16", VIT, {"mixer": "fourier"})],
)
def test_a_model_without_attention_is_explained_by_covering_and_gradients_alone(
    name, changes, more, file, tmp_path
):
    predictor = _predictor(name, changes, **more)
    shown = _explain(predictor)

    assert shown.maps == ()
    assert shown.default_method == "occlusion"
    assert torch.equal(shown.relevance(), shown.relevance("occlusion"))
    assert shown.relevance("gradient_input").shape == (16, 24)
    page = write(predictor, [file], tmp_path / "out.html").files[0].read_text()
    assert '"name": "attention"' not in page
    assert '"name": "occlusion"' in page
    for method in ("attention", "rollout"):
        with pytest.raises(ConfigError, match="mixes the patches of an image without attention"):
            write(predictor, [file], tmp_path / "a.png", method=method)
    with pytest.raises(ConfigError, match="without attention"):
        shown.sheet()
    assert not (tmp_path / "a.png").exists()


@pytest.mark.parametrize("method", ["relevance", "gradient_input", "occlusion"])
@pytest.mark.parametrize(("name", "changes"), [("swin_t", SWIN), ("vit_b16", VIT)])
def test_methods_of_a_class_go_by_one_name_each(method, name, changes, file, tmp_path):
    predictor = _predictor(name, changes)
    shown = _explain(predictor)
    other = next(class_name for class_name in NAMES if class_name != shown.label)
    assert torch.equal(shown.relevance(method), shown.relevance(method, class_name=shown.label))
    assert not torch.equal(shown.relevance(method), shown.relevance(method, class_name=other))
    write(predictor, [file], tmp_path / "out.png", method=method, class_name=other)
    page = write(predictor, [file], tmp_path / "out.html", method=method, class_name=other)
    assert f'"name": "{method}", "className": "{other}"' in page.files[0].read_text()


def test_a_class_alone_is_explained_by_its_relevance():
    shown = _explain(_predictor("vit_b16", VIT))
    assert torch.equal(shown.relevance(class_name="a"), shown.relevance("relevance", class_name="a"))
    pooled = _explain(_predictor("resnet18", RESNET))
    assert torch.equal(pooled.relevance(class_name="a"), pooled.relevance("gradient_input", class_name="a"))


def test_a_class_that_is_not_there_or_not_asked_for_is_refused():
    shown = _explain(_predictor("vit_b16", VIT))
    with pytest.raises(ConfigError, match="no class named 'z'"):
        shown.relevance("relevance", class_name="z")
    with pytest.raises(ConfigError, match="the same for every class"):
        shown.relevance("rollout", class_name="a")
    with pytest.raises(ConfigError, match="kept without its model"):
        replace(shown, attributions=None).relevance("relevance")


def test_a_mixing_matrix_has_no_relevance_and_its_page_does_without(file, tmp_path):
    predictor = _predictor("vit_b16", VIT, mixer="synthesizer_dense")
    page = write(predictor, [file], tmp_path / "out.html").files[0].read_text()
    assert '"name": "gradient_input"' in page
    assert '"name": "relevance"' not in page
    with pytest.raises(ConfigError, match="mixes its tokens without attention"):
        _explain(predictor).relevance("relevance")


def test_what_speaks_against_a_class_is_dark_in_a_picture(monkeypatch):
    shown = _explain(_predictor("vit_b16", VIT))
    drawn = []
    monkeypatch.setattr(explanation, "overlay", lambda picture, values, **_: drawn.append(values) or picture)

    shown.overlay("gradient_input")
    assert shown.relevance("gradient_input").min() < 0
    assert drawn[0].min() == 0


class Pixels(list[torch.Tensor]):
    """A source of samples whose labels are their indices."""

    def load(self, index: int, generator: torch.Generator | None) -> ImageSample:
        return ImageSample(self[index], index, index)


def split_of(images: Sequence[torch.Tensor]) -> ImageSplit:
    """Return the photographs, so large that the model sees their middle, of pixels."""
    return ImageSplit(
        [np.asarray(Image.new("RGB", (40, 30), (*each[:, 0, 0].tolist(),))) for each in images],
        np.zeros(len(images)),
        [f"image {index}" for index in range(len(images))],
    )


def test_samples_of_a_model_without_attention_have_no_overlay():
    tables = classification_tables(torch.eye(5)[:2], torch.tensor([0, 1]), torch.tensor([0, 1]))
    source = Pixels(torch.full((2, 3, 16, 24), 1, dtype=torch.uint8))
    images = explain_samples(_predictor("resnet18", RESNET), source, tables, [1], split_of(source))

    assert [image.heat for image in images] == [None]
    assert images[0].shown.picture.getpixel((0, 0)) == (1, 1, 1)


def test_samples_have_the_last_layers_attention_though_only_that_is_recorded():
    torch.manual_seed(0)
    source = Pixels(torch.randint(0, 256, (2, 3, 16, 24), dtype=torch.uint8))
    tables = classification_tables(torch.eye(5)[:2], torch.tensor([0, 1]), torch.tensor([0, 1]))
    predictor = _predictor("swin_t", SWIN)
    images = explain_samples(predictor, source, tables, [0, 1], split_of(source))

    for each, image in zip(source, images, strict=True):
        assert torch.equal(image.heat.values, predictor.explain_pixels(each, "whole").heat().values)
        assert image.shown.picture.size == (40, 30)
        assert image.shown.crop == predictor.preprocessing.evaluation_box((30, 40))


@pytest.fixture(scope="module")
def colours() -> Predictor:
    """A small, untrained model of three colours."""
    return Predictor(small_vit())


def test_samples_are_explained_with_what_the_evaluation_said(colours: Predictor) -> None:
    source = Pixels(torch.full((3, 24, 16), index, dtype=torch.uint8) for index in range(9))
    probabilities = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    tables = classification_tables(probabilities, torch.tensor([0, 1]), torch.tensor([6, 4]))

    images = explain_samples(colours, source, tables, [1, 0], split_of(source))

    assert [(image.shown.name, image.true, image.shown.label) for image in images] == [
        ("image 4", "green", "red"),
        ("image 6", "blue", "blue"),
    ]
    assert [image.shown.probability for image in images] == pytest.approx([0.6, 0.7])
    assert images[0].shown.picture.getpixel((0, 0)) == (4, 4, 4)


def test_one_page_shows_several_images(colours: Predictor, image_folder: Path, tmp_path: Path) -> None:
    written = write(colours, [image_folder / "red"], tmp_path / "new" / "out.html")
    page = (tmp_path / "new" / "out.html").read_text()
    assert written.files == (tmp_path / "new" / "out.html",)
    assert len(written.explained) == 5
    assert all(f"red-{index}" in page for index in range(5))


def test_bad_files_are_reported_and_the_others_explained(
    colours: Predictor, image_folder: Path, tmp_path: Path
) -> None:
    names = [image_folder / "red" / "red-0.png", tmp_path / "missing.png"]
    written = write(colours, names, tmp_path / "out.html")
    assert [each.name for each in written.explained] == [str(names[0])]
    assert [name for name, _ in written.errors] == [str(names[1])]
    with pytest.raises(DataError, match="none of 2 images can be read"):
        write(colours, names[1:] * 2, tmp_path / "none.html")
    with pytest.raises(DataError, match=r"missing\.png does not exist\. Expected an image file"):
        write(colours, names[1:], tmp_path / "none.html")
    assert not (tmp_path / "none.html").exists()


def test_a_folder_gets_one_picture_for_each_image_under_its_own_name(
    colours: Predictor, image_folder: Path, tmp_path: Path
) -> None:
    names = [image_folder / "red" / "red-0.png", image_folder / "red" / "red-0.png", image_folder / "blue"]
    written = write(colours, names, tmp_path / "pictures")
    assert [file.name for file in written.files][:3] == ["red-0.png", "red-0-2.png", "blue-0.png"]
    assert len(list((tmp_path / "pictures").iterdir())) == len(written.files) == 7


def test_a_picture_shows_the_layer_and_the_head_that_were_named(
    colours: Predictor, image_folder: Path, tmp_path: Path
) -> None:
    image = image_folder / "red" / "red-0.png"
    pictures = {}
    for layer, head in ((None, None), (1, None), (1, 2), (2, None)):
        output = tmp_path / f"{layer}-{head}.png"
        written = write(colours, [image], output, method="attention", layer=layer, head=head)
        assert written.files == (output,)
        pictures[layer, head] = output.read_bytes()
    assert pictures[None, None] == pictures[2, None], "the last one by default"
    assert len(set(pictures.values())) == 3


@pytest.mark.parametrize(
    ("inputs", "name", "options", "message"),
    [
        ("red", "out.png", {}, "5 images were to be explained"),
        ("red", "out.html", {"method": "rolout"}, "Did you mean 'rollout'"),
        *(
            ("red/red-0.png", name, {"method": method, "layer": 1}, r"a layer or a head was named for the")
            for name, method in (("out.html", "rollout"), ("out.png", "rollout"), ("out.png", "relevance"))
        ),
    ],
)
def test_requests_that_do_not_fit_are_refused(
    colours: Predictor, image_folder: Path, tmp_path: Path, inputs: str, name: str, options: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        write(colours, [image_folder / inputs], tmp_path / name, **options)
    assert not (tmp_path / name).exists()
