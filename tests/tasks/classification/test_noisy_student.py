"""Noisy Student: what the teacher says of unlabelled images, and what the student learns from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from making.saved_vit import save_vit
from vitrail.core.errors import CheckpointError, ConfigError, DataError
from vitrail.core.sealed import read_sealed
from vitrail.data.dataset import ImageSplit
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.settings import AugmentSettings
from vitrail.tasks.classification.noisy_student import add_pseudo_labels
from vitrail.tasks.classification.objective import ClassificationObjective
from vitrail.tasks.classification.predictor import Predictor
from vitrail.tasks.classification.task import TASK
from vitrail.tasks.training import TrainedRun, train

NAMES = ("cat", "dog", "owl")
TINY: dict[str, Any] = {
    "model.name": "vit_nano",
    "model.width": 8,
    "model.depth": 1,
    "model.num_heads": 2,
    "train.steps": 2,
    "train.batch_size": 4,
    "train.precision": "float32",
}


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    return save_vit(tmp_path / "teacher", class_names=("owl", "cat", "dog"), sharpness=3.0)


@pytest.fixture
def unlabelled(tmp_path: Path) -> Path:
    folder = tmp_path / "unlabelled"
    folder.mkdir()
    rng = np.random.default_rng(2)
    for index in range(5):
        Image.fromarray(rng.integers(0, 256, (12, 8, 3), dtype=np.uint8)).save(folder / f"{index}.png")
    (folder / "3.png").write_bytes(b"broken")
    return folder


def labelled() -> ImageSplit:
    images = np.zeros((2, 12, 8, 3), dtype=np.uint8)
    return ImageSplit(images, np.array([2, 0]), ["a", "b"])


def test_labels_are_the_teacher_s_probabilities_in_the_order_of_the_data(
    teacher: Path, unlabelled: Path
) -> None:
    split, targets = add_pseudo_labels(
        labelled(), NAMES, teacher=str(teacher), unlabelled=str(unlabelled), least_confidence=0.0
    )

    said = [dict(each.scores) for each in Predictor(teacher).predict(unlabelled, top=3) if not each.error]
    assert len(said) == 4
    torch.testing.assert_close(targets[2:], torch.tensor([[each[name] for name in NAMES] for each in said]))
    assert targets[:2].tolist() == [[0, 0, 1], [1, 0, 0]]
    assert split.names[2:] == tuple(str(unlabelled / f"{index}.png") for index in (0, 1, 2, 4))
    assert split.labels.tolist() == targets.argmax(dim=1).tolist()


def test_images_of_which_the_teacher_is_unsure_are_left_out(teacher: Path, unlabelled: Path) -> None:
    sure = sorted(each.probability for each in Predictor(teacher).predict(unlabelled))[-1]

    split, _ = add_pseudo_labels(
        labelled(), NAMES, teacher=str(teacher), unlabelled=str(unlabelled), least_confidence=sure - 1e-6
    )

    assert len(split) == 3
    with pytest.raises(DataError, match="sure of none of 5 images"):
        add_pseudo_labels(
            labelled(), NAMES, teacher=str(teacher), unlabelled=str(unlabelled), least_confidence=1.0
        )


def test_a_batch_has_the_soft_labels_of_its_images_in_training_alone() -> None:
    targets = torch.tensor([[0.0, 1.0, 0.0], [0.2, 0.3, 0.5]])
    objective = ClassificationObjective(
        3, Preprocessing(image_size=(4, 4)), AugmentSettings(mix_probability=0.0), targets=targets
    )
    samples = [objective.unlabelled(torch.zeros(3, 4, 4, dtype=torch.uint8), index) for index in (1, 0)]

    batch = objective.collate(samples, torch.Generator().manual_seed(0)).to(torch.device("cpu"))

    assert torch.equal(batch.targets, targets[[1, 0]])
    assert batch.labels.tolist() == [2, 1]
    assert objective.collate(samples, None).labels.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"task.teacher": "runs/a"}, ConfigError, "teacher and unlabelled belong together"),
        ({"task.unlabelled": "more"}, ConfigError, "teacher and unlabelled belong together"),
        ({"task.least_confidence": 2}, ConfigError, "least_confidence"),
        ({"task.teacher": "no-run", "task.unlabelled": "more"}, CheckpointError, "no-run"),
        ({"task.teacher": "DIGITS", "task.unlabelled": "no-folder-*"}, DataError, "holds no image"),
        (
            {"task.teacher": "TEACHER", "task.unlabelled": "UNLABELLED"},
            ConfigError,
            "the 10 classes of the data",
        ),
    ],
)
def test_what_cannot_be_taught_is_refused(
    teacher: Path, unlabelled: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    digits = save_vit(teacher.with_name("digits"), class_names=tuple("0123456789"))
    paths = {"TEACHER": str(teacher), "DIGITS": str(digits), "UNLABELLED": str(unlabelled)}
    given = {name: paths.get(value, value) for name, value in changes.items()}
    with pytest.raises(error, match=message):
        train("digits", changes=TINY | given, dry_run=True)


def test_the_recipe_trains_a_student_with_more_images(tmp_path: Path) -> None:
    more = tmp_path / "more"
    more.mkdir()
    rng = np.random.default_rng(3)
    for index in range(7):
        Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(more / f"{index}.png")
    digits = save_vit(tmp_path / "teacher", class_names=tuple("0123456789"))
    changes = {"task.teacher": str(digits), "task.unlabelled": str(more), "task.least_confidence": 0.0}
    small = {name: value for name, value in TINY.items() if name.startswith("train.")}

    student = train(
        "digits", recipe="noisy-student", changes=small | changes, output=tmp_path / "runs", name="student"
    )

    assert isinstance(student, TrainedRun)
    settings = read_sealed(student.folder / "config.json")
    assert (settings["model"]["depth"], settings["model"]["drop_path"]) == (4, 0.2)
    experiment = TASK.experiment.from_tree(settings)
    parts = TASK.assemble(experiment, TASK.open(experiment.data), {})  # type: ignore[arg-type]
    assert len(parts.train) == len(parts.dataset.train) + 7
