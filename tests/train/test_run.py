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


@pytest.mark.parametrize(
    ("line", "is_whole"),
    [
        (b'{"step": 3}', True),
        (b"", False),
        (b"{", False),
        (b"\xff", False),
        (b"[3]", False),
        (b"{}", False),
        (b'{"step": "3"}', False),
        (b'{"step": true}', False),
        (b'{"step": 1e3}', False),
        (b'{"step": 99999999999999999999}', False),
        (b"[" * 100_000, False),
    ],
)
def test_a_damaged_line_of_the_metrics_is_named(tmp_path: Path, line: bytes, is_whole: bool) -> None:
    run = Run.create(tmp_path, toy_experiment())
    run.log(kind="train", step=1)
    with (run.path / "metrics.jsonl").open("ab") as file:
        file.write(line + b"\n")
    if is_whole:
        assert run.metrics()[-1] == {"step": 3}
        return
    with pytest.raises(CheckpointError, match=r"line 2 of \S+metrics\.jsonl is damaged"):
        run.rewind(5)


def test_metrics_that_were_changed_after_a_checkpoint_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run.create(tmp_path, toy_experiment())
    run.log(kind="train", step=1, loss=0.5)
    mark = run.flush_metrics()
    run.log(kind="train", step=2, loss=0.25)
    run.rewind(2, mark)
    assert [entry["step"] for entry in run.metrics()] == [1, 2]
    path = run.path / "metrics.jsonl"
    whole = path.read_text()
    path.write_text(whole.replace("0.5", "0.4"))
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl was damaged or changed after it was written"):
        run.rewind(2, mark)
    path.write_text(whole[:5])
    run.rewind(2, mark)
    assert "lacks lines, as after a power failure" in caplog.text


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("config.json", '"seed": 11', '"seed": 12', "does not match its digest"),
        ("choices.json", "the data is small", "the data is large", "does not match its digest"),
        ("environment.json", '"cores": ', '"cores": 1', "does not match its digest"),
        ("verdict.json", '"OK"', '"Ok"', "does not match its digest"),
        ("verdict.json", None, "[]", "holds a list, not an object"),
        ("verdict.json", None, '{"lines": 3}', r"verdict_lines must be a tuple, not 3"),
        ("choices.json", None, '{"choices": [1]}', r"choices\.json or verdict\.json of \S+ cannot be used"),
        ("choices.json", None, "\x00", r"choices\.json cannot be read"),
    ],
)
def test_a_changed_file_of_a_run_is_refused(
    tmp_path: Path, name: str, old: str | None, new: str, message: str
) -> None:
    choices = [Choice("model", "vit_nano", "the data is small")]
    run = Run.create(tmp_path, toy_experiment(), choices, verdict={"lines": ["OK"]})
    path = run.path / name
    path.write_text(new if old is None else path.read_text().replace(old, new))
    with pytest.raises(CheckpointError, match=message):
        open_run(run.path).record()


def test_a_change_on_purpose_is_accepted_without_the_digest(tmp_path: Path) -> None:
    run = Run.create(tmp_path, toy_experiment())
    path = run.path / "config.json"
    lines = path.read_text().replace('"seed": 11', '"seed": 12').splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"digest"' not in line))
    assert open_run(run.path).experiment.train.seed == 12


def test_a_run_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(run: Run, choices: object) -> None:
        raise CheckpointError("the disk is full", expected="space", remedy="Free some")

    monkeypatch.setattr(Run, "write_choices", fail)
    with pytest.raises(CheckpointError):
        Run.create(tmp_path, toy_experiment())
    assert list(tmp_path.iterdir()) == []


def test_choices_of_an_older_run_are_read(tmp_path: Path) -> None:
    run = Run.create(tmp_path, toy_experiment())
    choice = Choice("model", "vit_nano", "small data")
    (run.path / "choices.json").write_text(json.dumps([choice._asdict()]))
    assert run.record().choices == (choice,)


def test_a_locked_run_is_cleared_of_what_killed_processes_left(tmp_path: Path) -> None:
    run = Run.create(tmp_path, toy_experiment())
    (run.path / ".report.json.writing-4194305").touch()
    (run.path / ".model.writing-4194305").mkdir()
    with run.locked():
        assert {path.name for path in run.path.glob(".*")} == {".lock"}
    assert not list(run.path.glob(".*"))
