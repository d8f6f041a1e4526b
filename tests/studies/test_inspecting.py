"""What a saved model has learned: on a run's own data, on other data, and without any."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from making.caption_folders import write_csv
from making.clip_folder import write_clip_folder
from making.image_folders import write_image_folder
from making.saved_vit import save_vit
from making.small_runs import write_untrained_run
from making.small_translators import small_translator
from vitrail.cli import main
from vitrail.core.errors import CheckpointError, ConfigError, DataError
from vitrail.data.preprocessing import Preprocessing
from vitrail.engines.loading import load_any
from vitrail.models import build, model_settings
from vitrail.models.checkpoint import LoadedModel
from vitrail.studies.inspecting import HEAD_PANELS, inspect_learned

MIXER = {"image_size": (8, 8), "patch_size": 4, "width": 12, "depth": 1, "num_classes": 3}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_vit(tmp_path / "model")


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A run directory as a training leaves it, beside the folder of its images."""
    photos = write_image_folder(tmp_path / "photos", per_class=6)
    return write_untrained_run(tmp_path / "runs", photos, load_any(save_vit(tmp_path / "model")))


def test_heads_are_measured_on_the_run_s_own_validation_images(trained: Path) -> None:
    done: list[int] = []

    found, again = (inspect_learned(trained, num_samples=2, on_sample=done.append) for _ in range(2))
    other = inspect_learned(trained, num_samples=2, seed=1)

    assert found.heads is not None
    assert done == [1, 2, 1, 2]
    assert found.left_out == {}
    assert found.heads.origin.startswith("validation images of ")
    assert found.heads.layers == again.heads.layers
    assert found.heads.layers != other.heads.layers


def test_where_the_run_s_data_is_gone_heads_are_left_out_with_the_reason(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = trained.parents[1] / "photos"
    moved.rename(moved.with_name("elsewhere"))
    try:
        found = inspect_learned(trained)
        assert main(["explain", str(trained), "-o", str(tmp_path / "learned.html")]) == 0
        measured = inspect_learned(trained, data=str(moved.with_name("elsewhere")), num_samples=1)
    finally:
        moved.with_name("elsewhere").rename(moved)

    assert found.heads is None
    assert set(found.left_out) == set(HEAD_PANELS)
    assert "--data" in found.left_out["Head entropy"]
    assert "photos" in found.left_out["Head entropy"]
    shown = capsys.readouterr().out
    assert "not drawn: Attention distance, Head entropy, Head similarity" in " ".join(shown.split())
    page = (tmp_path / "learned.html").read_text()
    assert "none was named with --data" in page
    assert "Attention distance</h2>" not in page
    assert measured.heads is not None


def test_a_saved_model_without_data_shows_its_weights_alone(saved: Path) -> None:
    found = inspect_learned(saved)

    assert found.filters is not None
    assert (found.filters.weights.shape, found.filters.is_patch_embedding) == ((12, 3, 2, 2), True)
    assert found.positions[0].grid == (6, 4)
    assert found.heads is None
    assert "does not say what it was trained on" in found.left_out["Head similarity"]


def test_other_images_need_no_labels_and_broken_ones_are_passed_over(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "unsorted"
    folder.mkdir()
    for number in range(3):
        Image.new("RGB", (20, 30), (80 * number, 10, 10)).save(folder / f"{number}.png")
    (folder / "broken.png").write_bytes(b"no image")

    of_folder = inspect_learned(saved, data=str(folder)).heads
    of_pattern = inspect_learned(saved, data=f"{folder}/[01].png").heads
    of_other_classes = inspect_learned(saved, data="digits", num_samples=1).heads

    assert (of_folder.num_samples, of_folder.num_unreadable, of_folder.image_size) == (3, 1, (12, 8))
    assert (of_pattern.num_samples, of_pattern.num_unreadable) == (2, 0)
    assert of_other_classes.origin == "validation images of digits"


def test_a_model_without_positions_and_attention_says_so(tmp_path: Path) -> None:
    LoadedModel(
        build("mixer_s16", **MIXER),
        model_settings=model_settings("mixer_s16", **MIXER),
        preprocessing=Preprocessing(image_size=(8, 8)).model_dump(mode="json"),
        class_names=["blue", "green", "red"],
        about={},
    ).save(tmp_path / "mixer")
    found = inspect_learned(tmp_path / "mixer")

    assert found.filters is not None
    assert found.positions == ()
    assert "no learned ones" in found.left_out["Position embeddings"]
    assert found.left_out["Attention distance"] == "this model has no attention"


def test_a_translator_has_no_filters_and_one_that_learns_positions_shows_them(tmp_path: Path) -> None:
    loaded = small_translator(positions="learned", max_length=40)
    loaded.save(tmp_path / "model")

    found = inspect_learned(tmp_path / "model")

    assert "Filters" in found.left_out
    assert [len(each.table) for each in found.positions] == [40] * len(found.positions)
    assert found.positions


def test_of_a_clip_with_several_captions_an_image_the_image_s_patches_are_measured(tmp_path: Path) -> None:
    write_clip_folder(tmp_path / "published")
    captions = write_csv(tmp_path / "captioned", 24)

    found = inspect_learned(f"hf:{tmp_path / 'published'}", data=str(captions), num_samples=1)

    assert [each.grid for each in found.positions] == [(5, 5), None]
    assert found.heads is not None
    assert len(found.heads.layers) == 3
    assert all(each.distance_px is not None for each in found.heads.layers)


def test_unusable_requests_are_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="0 samples"):
        inspect_learned(saved, num_samples=0)
    with pytest.raises(DataError, match="nowhere"):
        inspect_learned(saved, data="nowhere")
    with pytest.raises(CheckpointError, match="there is no "):
        inspect_learned(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "rollout"], "--method requires a file. Expected no --method otherwise. See vitrail"),
        (["--layer", "1", "--head", "1"], "--layer and --head require a file"),
        (["a.png", "--data", "digits"], "--data requires RUN alone, without files"),
        (["--images", "0"], "Must be >= 1"),
        (["-o", "learned.txt"], "ends in .html, .png, .svg or .pdf"),
    ],
)
def test_options_that_would_have_no_effect_are_errors(
    saved: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["explain", str(saved), *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_the_command_shows_each_layer_in_80_columns(
    saved: Path,
    image_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    folder = tmp_path / "shown"
    photos = image_folder.relative_to(tmp_path)  # a path that is too long for a line is not broken

    assert main(["explain", str(saved), "--data", str(photos), "--images", "2", "-o", "shown"]) == 0

    shown = capsys.readouterr().out.splitlines()
    assert "layer 2, attention" in "".join(shown)
    assert max(map(len, shown)) <= 80
    assert "shown/learned.html" in shown
    assert {file.name for file in folder.iterdir()} == {
        "learned.html",
        "filters.png",
        "positions.png",
        "distance.png",
        "entropy.png",
        "similarity.png",
    }
