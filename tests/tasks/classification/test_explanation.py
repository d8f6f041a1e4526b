"""Explanations of models of every shape: one grid for all layers, one for each, or no attention at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from making.image_folders import noise
from making.small_models import PVT, PVTV2, RESNET, SWIN, VIT
from vitrail.core.errors import ConfigError, DataError
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
from vitrail.tasks.explaining import explain_files

NAMES = ["a", "b", "c", "d", "e"]


def _predictor(name: str, changes: dict, **more: object) -> Predictor:
    torch.manual_seed(3)
    changes = {**changes, **more}
    settings = model_settings(name, **changes)
    preprocessing = Preprocessing(image_size=(16, 24)).model_dump(mode="json")
    return Predictor(LoadedModel(build(name, **changes), settings, preprocessing, NAMES, {}))


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
    page = explain_files(predictor.explain, [file], output=tmp_path / "out.html").files[0].read_text()
    assert '"name": "rollout"' not in page
    explain_files(predictor.explain, [file], output=tmp_path / "out.png")
    assert (tmp_path / "out.png").stat().st_size > 0


def test_rollout_of_a_pyramid_is_refused(file, tmp_path):
    with pytest.raises(ConfigError, match="do not attend over one set of tokens"):
        explain_files(_predictor("swin_t", SWIN).explain, [file], output=tmp_path / "a.png", method="rollout")


def test_reduced_keys_are_read_on_their_own_grid():
    shown = _explain(_predictor("pvtv2_b0", PVTV2))
    first = shown.layers[0]
    assert (first.query_grid, first.grid) == ((8, 12), (2, 3))
    torch.testing.assert_close(
        shown.relevance(layer=0, head=0), first.weights[0, 0].mean(dim=0).reshape(2, 3)
    )
    maps = shown.maps[0]
    assert maps.between_sides(first).shape == (1, 96, 6)
    assert maps.read(first.weights[0], first).shape == (1, 2 * 3)


def test_a_class_token_is_read_where_it_is_and_the_mean_before():
    shown = _explain(_predictor("pvt_t", PVT))
    last, maps = shown.layers[-1], shown.maps[0]
    assert maps.reader == "class"
    torch.testing.assert_close(shown.relevance(head=1), last.weights[0, 1, 0, 1:].reshape(1, 2))
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
    page = explain_files(predictor.explain, [file], output=tmp_path / "out.html").files[0].read_text()
    assert '"name": "attention"' not in page
    assert '"name": "occlusion"' in page
    for method in ("attention", "rollout"):
        with pytest.raises(ConfigError, match="mixes the patches of an image without attention"):
            explain_files(predictor.explain, [file], output=tmp_path / "a.png", method=method)
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
    explain_files(predictor.explain, [file], output=tmp_path / "out.png", method=method, class_name=other)
    page = explain_files(
        predictor.explain, [file], output=tmp_path / "out.html", method=method, class_name=other
    )
    assert f'"name": "{method}", "className": "{other}"' in page.files[0].read_text()


def test_a_class_alone_is_explained_by_its_relevance():
    shown = _explain(_predictor("vit_b16", VIT))
    assert torch.equal(shown.relevance(class_name="a"), shown.relevance("relevance", class_name="a"))
    pooled = _explain(_predictor("resnet18", RESNET))
    assert torch.equal(pooled.relevance(class_name="a"), pooled.relevance("gradient_input", class_name="a"))


def test_a_class_that_is_not_there_or_not_asked_for_is_refused():
    shown = _explain(_predictor("vit_b16", VIT))
    with pytest.raises(ConfigError, match="knows no class 'z'"):
        shown.relevance("relevance", class_name="z")
    with pytest.raises(ConfigError, match="the same for every class"):
        shown.relevance("rollout", class_name="a")
    with pytest.raises(ConfigError, match="kept without its model"):
        replace(shown, attributions=None).relevance("relevance")


def test_a_mixing_matrix_has_no_relevance_and_its_page_does_without(file, tmp_path):
    predictor = _predictor("vit_b16", VIT, mixer="synthesizer_dense")
    page = explain_files(predictor.explain, [file], output=tmp_path / "out.html").files[0].read_text()
    assert '"name": "gradient_input"' in page
    assert '"name": "relevance"' not in page
    with pytest.raises(ConfigError, match="mixes its tokens without attention"):
        _explain(predictor).relevance("relevance")


def test_what_speaks_against_a_class_is_dark_in_a_picture(monkeypatch):
    shown = _explain(_predictor("vit_b16", VIT))
    drawn = []
    monkeypatch.setattr(explanation, "overlay", lambda picture, values: drawn.append(values) or picture)

    shown.overlay("gradient_input")
    assert shown.relevance("gradient_input").min() < 0
    assert drawn[0].min() == 0


def test_samples_of_a_model_without_attention_have_no_overlay():
    class Source:
        def __len__(self) -> int:
            return 2

        def load(self, index: int, generator: torch.Generator | None) -> ImageSample:
            return ImageSample(torch.full((3, 16, 24), index, dtype=torch.uint8), index, index)

    tables = classification_tables(torch.eye(5)[:2], torch.tensor([0, 1]), torch.tensor([0, 1]))
    images = explain_samples(_predictor("resnet18", RESNET), Source(), tables, [1])

    assert [image.overlay for image in images] == [None]
    assert images[0].picture.getpixel((0, 0)) == (1, 1, 1)


def test_samples_are_overlaid_with_the_last_layers_attention_though_only_that_is_recorded():
    torch.manual_seed(0)
    pixels = torch.randint(0, 256, (2, 3, 16, 24), dtype=torch.uint8)

    class Source:
        def __len__(self) -> int:
            return 2

        def load(self, index: int, generator: torch.Generator | None) -> ImageSample:
            return ImageSample(pixels[index], index, index)

    tables = classification_tables(torch.eye(5)[:2], torch.tensor([0, 1]), torch.tensor([0, 1]))
    predictor = _predictor("swin_t", SWIN)
    images = explain_samples(predictor, Source(), tables, [0, 1])

    for each, image in zip(pixels, images, strict=True):
        expected = predictor.explain_pixels(each, "whole").overlay()
        assert image.overlay.tobytes() == expected.tobytes()


CHANGES = {
    "image_size": (12, 8),
    "patch_size": 4,
    "stem": "patch",
    "width": 16,
    "depth": 2,
    "num_heads": 2,
    "num_classes": 3,
}


@pytest.fixture
def predictor() -> Predictor:
    """A small, untrained model."""
    torch.manual_seed(3)
    preprocessing = Preprocessing(image_size=(12, 8)).model_dump(mode="json")
    settings = model_settings("vit_nano", **CHANGES)
    return Predictor(LoadedModel(build("vit_nano", **CHANGES), settings, preprocessing, ["a", "b", "c"], {}))


def test_one_page_shows_several_images(predictor: Predictor, image_folder: Path, tmp_path: Path) -> None:
    written = explain_files(predictor.explain, [image_folder / "red"], output=tmp_path / "new" / "out.html")
    page = (tmp_path / "new" / "out.html").read_text()
    assert written.files == (tmp_path / "new" / "out.html",)
    assert len(written.explained) == 5
    assert all(f"red-{index}" in page for index in range(5))


def test_bad_files_are_reported_and_the_others_explained(
    predictor: Predictor, image_folder: Path, tmp_path: Path
) -> None:
    names = [image_folder / "red" / "red-0.png", tmp_path / "missing.png"]
    written = explain_files(predictor.explain, names, output=tmp_path / "out.html")
    assert [each.name for each in written.explained] == [str(names[0])]
    assert [name for name, _ in written.errors] == [str(names[1])]


def test_a_picture_is_written_for_one_image(predictor: Predictor, image_folder: Path, tmp_path: Path) -> None:
    written = explain_files(
        predictor.explain,
        [image_folder / "red" / "red-0.png"],
        output=tmp_path / "out.png",
        method="attention",
    )
    assert written.files == (tmp_path / "out.png",)
    assert (tmp_path / "out.png").stat().st_size > 0


def test_a_folder_gets_one_picture_for_each_image_under_its_own_name(
    predictor: Predictor, image_folder: Path, tmp_path: Path
) -> None:
    names = [image_folder / "red" / "red-0.png", image_folder / "red" / "red-0.png", image_folder / "blue"]
    written = explain_files(predictor.explain, names, output=tmp_path / "pictures")
    assert [file.name for file in written.files][:3] == ["red-0.png", "red-0-2.png", "blue-0.png"]
    assert len(list((tmp_path / "pictures").iterdir())) == len(written.files) == 7


def test_several_images_do_not_fit_one_picture(
    predictor: Predictor, image_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="5 images were to be explained"):
        explain_files(predictor.explain, [image_folder / "red"], output=tmp_path / "out.png")


def test_a_picture_shows_the_layer_and_the_head_that_were_named(
    predictor: Predictor, image_folder: Path, tmp_path: Path
) -> None:
    image = image_folder / "red" / "red-0.png"
    pictures = {}
    for layer, head in ((None, None), (0, None), (0, 1), (1, None)):
        output = tmp_path / f"{layer}-{head}.png"
        explain_files(predictor.explain, [image], output=output, method="attention", layer=layer, head=head)
        pictures[layer, head] = output.read_bytes()
    assert pictures[None, None] == pictures[1, None], "the last one by default"
    assert len(set(pictures.values())) == 3


@pytest.mark.parametrize(
    ("name", "method"), [("out.html", "attention"), ("out.png", None), ("out.png", "relevance")]
)
def test_a_layer_is_refused_where_none_is_shown_alone(
    predictor: Predictor, image_folder: Path, tmp_path: Path, name: str, method: str | None
) -> None:
    image = image_folder / "red" / "red-0.png"
    with pytest.raises(ConfigError, match=r"a layer or a head was named for the (page|method)"):
        explain_files(predictor.explain, [image], output=tmp_path / name, method=method, layer=0)
    assert not (tmp_path / name).exists()


def test_an_unknown_method_is_refused(predictor: Predictor, image_folder: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'rollout'"):
        explain_files(predictor.explain, [image_folder], method="rolout")


def test_nothing_but_bad_files_is_an_error(predictor: Predictor, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none of 1 images can be read"):
        explain_files(predictor.explain, [tmp_path / "missing.png"], output=tmp_path / "out.html")
    assert not (tmp_path / "out.html").exists()


def test_samples_are_explained_with_what_the_evaluation_said(predictor: Predictor) -> None:
    class Source:
        def __len__(self) -> int:
            return 9

        def load(self, index: int, generator: torch.Generator | None) -> ImageSample:
            return ImageSample(torch.full((3, 12, 8), index, dtype=torch.uint8), index % 3, index)

    probabilities = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    tables = classification_tables(probabilities, torch.tensor([0, 1]), torch.tensor([6, 4]))

    images = explain_samples(predictor, Source(), tables, [1, 0])

    assert [(image.name, image.true, image.predicted) for image in images] == [
        ("image 4", "b", "c"),
        ("image 6", "a", "a"),
    ]
    assert [image.confidence for image in images] == pytest.approx([0.6, 0.7])
    assert images[0].picture.getpixel((0, 0)) == (4, 4, 4)


def test_a_method_that_a_model_has_not_is_refused_for_a_page_too(image_folder: Path, tmp_path: Path) -> None:
    changes = {**SWIN, "num_classes": 2}
    preprocessing = Preprocessing(image_size=(16, 24)).model_dump(mode="json")
    settings = model_settings("swin_t", **changes)
    windowed = Predictor(LoadedModel(build("swin_t", **changes), settings, preprocessing, ["a", "b"], {}))
    with pytest.raises(ConfigError, match="rollout"):
        explain_files(
            windowed.explain, [image_folder / "red"], output=tmp_path / "out.html", method="rollout"
        )
    assert not (tmp_path / "out.html").exists()
