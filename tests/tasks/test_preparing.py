"""What is decided before the first step, and every request that is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from vitrail.core.errors import ConfigError, DataError
from vitrail.data.findings import Verdict
from vitrail.tasks.classification.doctor import check
from vitrail.tasks.classification.opening import open_dataset
from vitrail.tasks.preparing import OVERRUN_S, REPORT_S, Budget, Prepared, open_checked, plan_steps, prepare
from vitrail.tasks.registry import TASKS
from vitrail.tasks.request import RECIPES, Request
from vitrail.tasks.training import train
from vitrail.train.budget import StepTimes
from vitrail.train.processes import Processes, single_process
from vitrail.train.settings import TrainSettings

NANO = {"model.name": "vit_nano", "train.batch_size": 5, "train.validations": 2, "model.depth": 1}
CHOSEN = {**NANO, "train.steps": 3}


def prepared(source: Path, **request: Any) -> Prepared:
    return prepare(Request(source=source, **request), single_process())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": 5}, "source: 5 is of the type int. Expected a path or a name"),
        ({"output": None}, "output: None is of the type NoneType"),
        ({"budget_s": "10m"}, "budget_s must be a number, not '10m'"),
        ({"seed": "first", "name": 3}, "name must be a string, not 3; seed must be a whole number"),
        ({"changes": ["train.steps=3"]}, r"changes must be a dictionary, not \['train.steps=3'\]"),
    ],
)
def test_arguments_of_a_wrong_type_are_answered_like_wrong_settings(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Request.from_tree(arguments)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("epochs", r'budget_s=SECONDS, or changes=\{"train.steps": COUNT\}'),
        ("lr", r'Write changes=\{"optim.learning_rate": VALUE\}'),
        ("budget", "Did you mean 'budget_s'"),
        ("colour", "has no argument 'colour'"),
    ],
)
def test_arguments_of_other_libraries_are_answered_with_ours(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train("digits", **{name: 3})


@pytest.mark.parametrize(
    ("name", "lines", "found"),
    [
        ("test.tsv", "a cat\tun chat\na dog\tun chien\n", "has 0 sentence pairs to train on"),
        ("test.csv", "image,caption\na.png,a red square\n", "has 0 images to train on"),
    ],
)
def test_data_without_a_training_split_is_named(tmp_path: Path, name: str, lines: str, found: str) -> None:
    Image.new("RGB", (40, 40), "red").save(tmp_path / "a.png")
    (tmp_path / name).write_text(lines)
    with pytest.raises(DataError, match=f"{found}. Expected a training split of"):
        prepared(tmp_path)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({}, "no data was named"),
        ({"budget_s": 0}, "budget_s must be greater than 0, not 0"),
        ({"budget_s": -7.5}, "budget_s must be greater than 0, not -7.5"),
        ({"recipe": "nope"}, "no recipe named 'nope'"),
        ({"changes": {"optim.learning_rat": 1}}, "Did you mean 'learning_rate'"),
        ({"changes": {"data.split_sed": 1}}, "Did you mean 'split_seed'"),
        ({"changes": {"model.heads": 2}}, "heads"),
        ({"model": "vit_nanoo"}, "Did you mean 'vit_nano'"),
        ({"changes": {"train.batch_size": 0}}, "greater than or equal to 1"),
        ({"config": "missing.json"}, "missing.json cannot be read"),
        (
            {"config": "config.json", "model": "vit_nano", "budget_s": 9},
            "--model and --budget require a training without --config",
        ),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(
    image_folder: Path, request_: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train(image_folder if request_ else None, dry_run=True, **request_)


SETTLED = {
    "--model": {"model": "vit_nano"},
    "--recipe": {"recipe": "some"},
    "--config": {"config": "config.json"},
    "--set": {"changes": {"train.steps": 3}},
    "--output": {"output": "elsewhere"},
    "--name": {"name": "other"},
    "--seed": {"seed": 0},
    "--dry-run": {"dry_run": True},
}


def test_a_resumed_run_takes_no_other_option() -> None:
    for option, extra in SETTLED.items():
        with pytest.raises(ConfigError, match=f"^{option} requires a training without --resume"):
            train(resume="runs/first", **extra)


def test_a_budget_that_is_no_time_is_refused_of_a_finished_run_too() -> None:
    with pytest.raises(ConfigError, match="budget_s must be greater than 0"):
        train(resume="runs/first", budget_s=0)


def test_given_settings_go_before_the_automatic_choices(image_folder: Path) -> None:
    chosen = prepared(image_folder, changes=CHOSEN, seed=7)

    assert chosen.experiment.train.model_dump()["steps"] == 3
    assert chosen.experiment.train.seed == 7
    assert chosen.deadline is None
    reasons = {choice.setting: choice.reason for choice in chosen.choices}
    assert len(reasons) == len(chosen.choices)
    assert reasons["train.seed"] == reasons["model.name"] == "you set it"


def test_a_budget_beside_given_steps_is_said_to_have_no_effect(image_folder: Path) -> None:
    (reason,) = (
        choice.reason
        for choice in prepared(image_folder, changes=CHOSEN, budget_s=60.0).choices
        if choice.setting == "train.steps"
    )
    assert reason == "you set it, and the budget is not used: leave out one of the two"


def test_a_recipe_goes_before_the_choices_and_behind_the_user(
    image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = {**CHOSEN, "optim.learning_rate": 0.25}
    monkeypatch.setattr(RECIPES, "_entries", {"fixed": lambda: recipe})

    chosen = prepared(image_folder, recipe="fixed", changes={"train.steps": 7})

    assert chosen.experiment.optim.learning_rate == 0.25
    assert chosen.experiment.train.steps == 7
    reasons = {choice.setting: choice.reason for choice in chosen.choices}
    assert reasons["optim.learning_rate"] == "recipe fixed"
    assert reasons["train.steps"] == "you set it"


@pytest.mark.parametrize(("may_reduce", "validations"), [(False, 2), (True, 1)])
def test_a_budget_becomes_steps_and_the_time_when_they_end(
    image_folder: Path, monkeypatch: pytest.MonkeyPatch, may_reduce: bool, validations: int
) -> None:
    times = StepTimes(start_s=9.0, step_s=0.5, validation_s=4.0)
    monkeypatch.setattr("vitrail.tasks.preparing.calibrate", lambda *_, **__: times)
    experiment = prepared(image_folder, changes={**CHOSEN, "train.precision": "float32"}).experiment
    parts = TASKS["classification"].assemble(experiment, open_dataset(image_folder), {})
    started = time.monotonic()

    given = {} if may_reduce else {"validations": 2}
    asked = TrainSettings.from_tree({"steps": 1, "batch_size": 1, **given})
    planned, choices, deadline = plan_steps(experiment, parts, Budget(30.0, started), single_process(), asked)
    assert planned.train.validations == validations

    evaluation_s = TASKS["classification"].evaluation_share * 0.5 * len(parts.test) / 5
    after_s = 2 * (REPORT_S + evaluation_s) - OVERRUN_S  # of a machine that becomes half as fast then
    left_s = 30.0 - after_s - validations * 4.0 - 9.0
    assert planned.train.steps == pytest.approx(left_s / 0.5, abs=2)  # the test takes some time itself
    assert planned.budget_s == 30.0
    epochs = planned.train.steps * 5 / len(parts.train)
    assert [choice.setting for choice in choices] == ["train.steps", "train.validations"][: 3 - validations]
    assert choices[0].reason == f"{epochs:.1f} epochs fit into 30s, at 10 images/s"
    assert deadline is not None
    assert deadline.ends_at == started + 30.0
    slower, calibrated = deadline.left_s(1.0), deadline.left_s(0.5)
    assert calibrated - slower == pytest.approx(OVERRUN_S, abs=0.1)  # all takes twice as long, not 4 times


def test_a_model_too_large_for_the_budget_is_refused_before_it_is_built(
    image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.tasks.preparing.measure_matrix_products", lambda *_: 1e6)
    monkeypatch.setattr("vitrail.tasks.contract.build_model", None)
    for budget_s, changes in ((60.0, NANO), (None, {**NANO, "data.image_size": 256})):
        with pytest.raises(
            ConfigError, match=r"enough for \d training steps?: one takes.*m, or a smaller .*data\.image_size"
        ):
            prepared(image_folder, changes=changes, budget_s=budget_s)


@pytest.mark.parametrize(
    ("steps", "changes", "values"),
    [
        (20, {}, ("0", "0")),
        (40, {}, ("0", "0.25")),
        (90, {}, ("1", "0.25")),
        (90, {"augment.cutmix": 0.5}, (None, "0.25")),
    ],
)
def test_augmentation_follows_the_epochs_that_are_trained(
    image_folder: Path, steps: int, changes: dict[str, Any], values: tuple[str | None, ...]
) -> None:
    chosen = prepared(image_folder, changes={**NANO, "train.steps": steps, **changes})

    choices = {choice.setting: choice for choice in chosen.choices}
    expected = steps * 5 / len(chosen.parts.train)
    for name, value in zip(("cutmix", "erase"), values, strict=True):
        choice = choices[f"augment.{name}"]
        if value is None:
            assert choice.reason == "you set it"
            continue
        assert choice.value == value
        assert choice.reason.startswith(f"{expected:.1f} epochs planned at first; ")
        assert getattr(chosen.parts.objective.augment, name) == float(value)
    assert chosen.parts.objective.augment == chosen.experiment.augment
    assert choices["optim.learning_rate"].reason == "for batches of 5"


def test_a_budget_is_measured_on_a_copy_of_the_model(image_folder: Path) -> None:
    chosen = prepared(image_folder, changes=NANO, budget_s=40.0)

    fresh = TASKS["classification"].assemble(chosen.experiment, chosen.parts.dataset, {}).model.state_dict()
    assert all((tensor == fresh[name]).all() for name, tensor in chosen.parts.model.state_dict().items())
    assert chosen.parts.train.is_cached
    steps = next(choice.value for choice in chosen.choices if choice.setting == "train.steps")
    assert int(steps) == chosen.experiment.train.steps > 0


def test_time_that_is_over_already_counts_towards_the_budget(image_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"^1m 00s are enough for 0 training steps: .* start (59|1m 0)"):
        prepared(image_folder, changes=NANO, budget_s=60.0, spent_s=59.0)


def test_stored_settings_are_repeated_with_their_corrections(image_folder: Path, tmp_path: Path) -> None:
    experiment = prepared(image_folder, changes=CHOSEN).experiment
    shortened = experiment.with_changes({"train.replans": [{"at_step": 1, "steps": 2}]})
    stored = tmp_path / "config.json"
    stored.write_text(json.dumps(shortened.model_dump(mode="json")))

    again = prepared(image_folder, config=stored)
    longer = prepared(image_folder, config=stored, changes={"train.steps": 5})

    assert again.experiment.model_dump(mode="json") == json.loads(stored.read_text())
    assert [replan.steps for replan in again.experiment.train.replans] == [2]
    assert again.deadline is None
    assert (longer.experiment.train.steps, longer.experiment.train.replans) == (5, ())


def test_settings_for_another_number_of_classes_are_refused(image_folder: Path) -> None:
    with pytest.raises(DataError, match=r"has 3 classes. Expected the 5 classes"):
        prepared(image_folder, changes={**CHOSEN, "model.num_classes": 5})


def test_wrong_settings_are_found_before_the_data_is_opened() -> None:
    for changes, message in (
        ({"optim.learning_rat": 1}, "Did you mean 'learning_rate'"),
        ({"train.seed": "x"}, "train.seed must be a whole number"),
        ({"model.name": "vit_nanoo"}, "Did you mean 'vit_nano'"),
        ({"model.image_size": "a"}, "^model.image_size.0 must be a whole number, not 'a'"),
        ({"model.name": "vit_nano", "model.depth": "deep"}, "^model.depth must be a whole number"),
        ({"model.name": "detr_r50"}, "detr_r50 does not learn from images with classes"),
    ):
        with pytest.raises(ConfigError, match=message):
            prepared(Path("missing"), changes=changes)


def test_only_the_first_process_checks_the_data(image_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = check(open_dataset(image_folder))

    class Second(Processes):
        def from_first(self, make: object) -> Verdict:
            return verdict

    second = Second(rank=1, world_size=2, device=torch.device("cpu"))
    monkeypatch.setattr("vitrail.tasks.classification.task.check_images", None)

    task = TASKS["classification"]
    assert open_checked(task, task.data_settings(str(image_folder)), second)[1] is verdict


def test_data_that_the_doctor_refuses_is_refused(image_folder: Path) -> None:
    for name in ("green", "red"):
        for path in (image_folder / name).iterdir():
            path.write_bytes(b"")

    with pytest.raises(DataError, match="vitrail check"):
        prepared(image_folder, changes=CHOSEN)


def test_small_images_suit_a_model_whose_patches_were_made_smaller() -> None:
    changes = {"model.patch_size": 2, "model.depth": 1, "train.steps": 1}
    prepared = prepare(Request(source="digits", model="vit_ti16", changes=changes), single_process())
    assert prepared.experiment.model.patch_size == 2  # of images of 8x8 pixels, less than a patch of 16

    changes = {"data.image_size": [32, 32], "model.depth": 1, "train.steps": 1}
    prepared = prepare(Request(source="digits", model="vit_ti16", changes=changes), single_process())
    assert prepared.experiment.model.image_size == (32, 32)
