from __future__ import annotations

from pathlib import Path

import pytest
import torch

from making.small_models import SWIN
from vitrail.core.errors import ConfigError, DataError
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.source import ImageSample
from vitrail.models import build, model_settings
from vitrail.models.checkpoint import LoadedModel
from vitrail.tasks.classification.predictor import Predictor
from vitrail.tasks.classification.report import explain_samples
from vitrail.tasks.classification.scores import classification_tables
from vitrail.tasks.explaining import explain_files

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
