"""An experiment holds everything that determines a run, and only values that make sense."""

from __future__ import annotations

from typing import Any

import pytest

from vitrail.core.config import Config
from vitrail.core.errors import ConfigError
from vitrail.models import configure
from vitrail.tasks.classification.settings import ClassificationExperiment, ImageDataSettings
from vitrail.tasks.registry import TASKS
from vitrail.train.settings import Experiment, Replan, TrainSettings


@pytest.fixture
def experiment() -> Experiment:
    return ClassificationExperiment(
        data=ImageDataSettings(source="photos", image_size=(28, 35)),
        model={"name": "vit_nano", "depth": 3},
        train=TrainSettings(steps=7, batch_size=5),
    )


def test_an_experiment_survives_json(experiment: Experiment) -> None:
    planned = experiment.with_changes({"train.replans": [{"at_step": 3, "steps": 5}], "budget_s": 90.0})
    again = ClassificationExperiment.model_validate_json(planned.model_dump_json())
    assert again == planned
    assert again.train.replans == (Replan(at_step=3, steps=5),)


def test_fields_of_the_model_are_changed_by_name(experiment: Experiment) -> None:
    assert experiment.with_changes({"model.depth": 2}).model == configure("vit_nano", depth=2)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("train.steps", 0),
        ("train.batch_size", 0),
        ("optim.learning_rate", 0),
        ("optim.name", "sgd"),
        ("task.label_smoothing", 1),
        ("augment.min_crop_area", 0),
        ("augment.rotation", 181),
        ("data.test_fraction", 1),
        ("data.image_size", [28]),
        ("train.precision", "float16"),
        ("train.accumulate", 0),
        ("train.patience", -1),
        ("train.keep", "first"),
        ("optim.schedule", "linear"),
        ("optim.average", "swa"),
        ("optim.tail_fraction", 0),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(experiment: Experiment, path: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=path.replace(".", r"\.")):
        experiment.with_changes({path: value})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"optim.warmup_fraction": 0}, "warmup_fraction is 0"),
        ({"optim.final_rate": 0.1}, "final_rate is the end"),
    ],
)
def test_what_the_inverse_square_root_cannot_use_is_refused(
    experiment: Experiment, changes: dict[str, Any], named: str
) -> None:
    assert experiment.with_changes({"optim.schedule": "inverse_sqrt"}).optim.schedule == "inverse_sqrt"
    with pytest.raises(ConfigError, match=named):
        experiment.with_changes({"optim.schedule": "inverse_sqrt"} | changes)


def test_a_field_with_a_typing_error_is_offered(experiment: Experiment) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'learning_rate'"):
        experiment.with_changes({"optim.learning_rat": 0.1})


def test_every_field_is_documented() -> None:
    def undocumented(config: type[Config]) -> list[str]:
        return [
            f"{config.__name__}.{name}"
            for name, field in config.model_fields.items()
            if not field.description
        ]

    configs = {Experiment, Replan}
    for experiment in (task.experiment for task in TASKS.values()):
        parts = {field.annotation for field in experiment.model_fields.values()}
        configs |= {
            experiment,
            *(part for part in parts if isinstance(part, type) and issubclass(part, Config)),
        }
    assert len(configs) == 30
    assert not [name for config in configs for name in undocumented(config)]
