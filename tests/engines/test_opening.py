from __future__ import annotations

from pathlib import Path

import pytest
import torch

from making.deploy_models import small_vit
from vitrail.engines.export.package import PACKAGE_FILE, Comparison, Package, digest_files
from vitrail.engines.loading import ModelInTorch, open_source
from vitrail.models.checkpoint import LoadedModel, save_model

CPU = torch.device("cpu")


def save(folder: Path) -> LoadedModel:
    loaded = small_vit()
    save_model(
        folder,
        loaded.model,
        model_settings=loaded.model_settings,
        preprocessing=loaded.preprocessing,
        class_names=loaded.class_names,
        about={},
    )
    return loaded


def write_package(folder: Path) -> Package:
    """Write the description of a package beside a file that is no model."""
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"none")
    loaded = small_vit()
    package = Package(
        task="classification",
        format="onnx",
        precision="int8",
        model_settings=loaded.model_settings,
        preprocessing=loaded.preprocessing,
        class_names=tuple(loaded.class_names),
        about={},
        inputs=(),
        outputs=(),
        comparison=Comparison(
            images="none",
            num_images=0,
            largest_logit_difference=0,
            mean_logit_difference=0,
            top1_agreement=1,
        ),
        tolerance=1,
        files=digest_files(folder),
    )
    package.write(folder)
    assert (folder / PACKAGE_FILE).is_file()
    return package


def test_a_folder_is_a_model_or_a_package(tmp_path: Path) -> None:
    save(tmp_path / "model")
    write_package(tmp_path / "package")

    assert isinstance(open_source(tmp_path / "model"), LoadedModel)
    opened = open_source(tmp_path / "package")
    assert isinstance(opened, Package)
    assert open_source(opened) is opened


def test_a_model_on_disk_is_read_again_when_it_is_asked_for(tmp_path: Path) -> None:
    loaded = save(tmp_path / "model")
    in_torch = ModelInTorch(tmp_path / "model", CPU)

    model = in_torch.get()

    assert in_torch.get() is model
    assert not model.training
    pairs = zip(model.parameters(), loaded.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_loaded_model_is_the_one_that_is_shown() -> None:
    loaded = small_vit()

    assert ModelInTorch(loaded, CPU).get() is loaded.model


def test_packages_have_engines_and_precisions_of_their_own_and_no_inside(tmp_path: Path) -> None:
    from vitrail.core.errors import ConfigError
    from vitrail.engines.building import build_engine

    package = write_package(tmp_path / "package").model_copy(update={"folder": tmp_path / "package"})

    with pytest.raises(ConfigError, match="format onnx, not for torch"):
        build_engine(package, engine="torch")
    with pytest.raises(ConfigError, match="in int8, not in float32"):
        build_engine(package, precision="float32")
    with pytest.raises(ConfigError, match="exported from"):
        ModelInTorch(package, CPU).get()
