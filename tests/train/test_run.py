"""Run directories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toy import toy_experiment

from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.tasks.registry import open_run
from vitrail.train.run import Choice, Run
from vitrail.train.settings import Replan


def test_a_new_run_holds_settings_choices_and_environment(tmp_path: Path) -> None:
    choice = Choice("model", "vit_nano", "the data is small")
    run = Run.create(tmp_path / "runs", toy_experiment(), [choice], verdict={"lines": ["OK"]})
    assert json.loads((run.path / "choices.json").read_text())["choices"] == [choice._asdict()]
    assert run.record().choices == (choice,)
    assert run.record().verdict_lines == ("OK",)
    environment = json.loads((run.path / "environment.json").read_text())
    assert {"torch", "numpy"} <= environment["packages"].keys()
    assert environment["threads"] == 1
    assert environment["command"]
    assert open_run(run.path).experiment == toy_experiment()


def test_names_say_data_and_model_and_never_collide(tmp_path: Path) -> None:
    experiment = toy_experiment(data__source="/photos/My Dogs!/")
    paths = {Run.create(tmp_path, experiment).path for _ in range(3)}
    assert len(paths) == 3
    assert all("-my-dogs-vit_nano" in path.name for path in paths)


def test_a_given_name_is_used(tmp_path: Path) -> None:
    assert Run.create(tmp_path, toy_experiment(), name="mine").path == tmp_path / "mine"
    assert Run.create(tmp_path, toy_experiment(), name="mine").path == tmp_path / "mine-2"


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="could not be written"):
        Run.create(tmp_path / "file", toy_experiment())


@pytest.mark.parametrize("text", [None, "{", "nothing"])
def test_a_directory_without_readable_settings_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        open_run(tmp_path)


def test_an_unknown_setting_is_named(tmp_path: Path) -> None:
    tree = toy_experiment().model_dump(mode="json") | {"speed": 3}
    (tmp_path / "config.json").write_text(json.dumps(tree))
    with pytest.raises(ConfigError, match="speed"):
        open_run(tmp_path)


def test_rewinding_drops_later_lines_and_a_torn_one(tmp_path: Path) -> None:
    run = Run.create(tmp_path, toy_experiment())
    for step in (1, 2, 3):
        run.log(kind="train", step=step)
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "tr')
    assert [entry["step"] for entry in run.metrics()] == [1, 2, 3]
    run.rewind(2)
    run.log(kind="train", step=3)
    assert [entry["step"] for entry in run.metrics()] == [1, 2, 3]


def test_a_replan_is_recorded(tmp_path: Path) -> None:
    run = Run.create(tmp_path, toy_experiment())
    run.replan(Replan(at_step=3, steps=5))
    run.replan(Replan(at_step=4, steps=7))
    stored = open_run(run.path).experiment.train
    assert stored == run.experiment.train
    assert stored.replans == (Replan(at_step=3, steps=5), Replan(at_step=4, steps=7))
    assert stored.steps == 23


def test_a_replan_drops_what_was_recorded_for_later_steps(tmp_path: Path) -> None:
    run = Run.create(tmp_path, toy_experiment(train__replans=[{"at_step": 3, "steps": 9}]))
    run.replan(Replan(at_step=2, steps=2))
    assert open_run(run.path).experiment.train.replans == (Replan(at_step=2, steps=2),)
