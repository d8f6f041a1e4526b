"""Mixers and models side by side: same budget, one after the other, resumable."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest

from vitrail.cli import main
from vitrail.errors import ConfigError
from vitrail.evaluate import Report
from vitrail.models import build_from_settings
from vitrail.nn.mixers import MIXERS
from vitrail.pipeline import compare, comparing
from vitrail.pipeline.command import CommandError
from vitrail.pipeline.comparing import RunBegan, RunEnded
from vitrail.report.comparison import Comparison
from vitrail.train.run import Run

TINY = {
    "train.steps": 2,
    "train.batch_size": 4,
    "train.precision": "float32",
    "train.validations": 1,
    "model.width": 8,
    "model.depth": 1,
    "model.num_heads": 2,
}
ON_NANO = {**TINY, "model.name": "vit_nano"}


class Commands:
    """Run the training commands in this process, and note them; some fail."""

    def __init__(self) -> None:
        self.given: list[list[str]] = []
        self.failing: set[str] = set()

    def __call__(self, command, log, on_progress) -> None:
        assert command[1:4] == ["-m", "vitrail", "train"]
        self.given.append(command[4:])
        if self.trained()[-1] in self.failing:
            raise CommandError("it could not be trained")
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
            if main(command[3:]) != 0:
                raise CommandError(errors.getvalue())
        on_progress("step 2/2")

    def trained(self) -> list[str]:
        """Return the names of the run directories that were to be made or filled."""
        return [
            Path(words[1]).name if words[0] == "--resume" else words[words.index("--name") + 1]
            for words in self.given
        ]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    commands = Commands()
    monkeypatch.setattr(comparing, "run_to_the_end", commands)
    return commands


def test_figures_come_from_the_runs_and_a_failure_stops_nothing(commands, image_folder, tmp_path):
    commands.failing = {"pooling"}
    told = []

    compared = compare(
        image_folder,
        mixers=["fourier", "pooling", "lstm"],
        changes=ON_NANO,
        seed=5,
        output=tmp_path,
        name="c",
        on_event=told.append,
    )

    assert commands.trained() == ["fourier", "pooling", "lstm"]
    assert [event.name for event in told if isinstance(event, RunBegan)] == ["fourier", "pooling", "lstm"]
    fourier, pooling, lstm = compared.comparison.runs
    assert (pooling.figures, pooling.error) == (None, "it could not be trained")
    for run in (fourier, lstm):
        folder = tmp_path / "c" / run.folder
        stored = Run.open(folder)
        assert stored.experiment.model["mixer"] == run.name
        assert stored.experiment.train.seed == 5
        assert run.figures.accuracy == Report.load(folder / "report.json").scores["accuracy"]
        model = build_from_settings(stored.experiment.model)
        assert run.figures.parameters == sum(p.numel() for p in model.parameters())
        speeds = [entry["samples_per_s"] for entry in stored.metrics() if entry["kind"] == "train"]
        assert min(speeds) <= run.figures.samples_per_s <= max(speeds)
        assert run.figures.peak_memory_mib > 50
        assert run.figures.steps == 2
    assert lstm.figures.macs > fourier.figures.macs > 0
    tree = json.loads((tmp_path / "c" / "comparison.json").read_text(encoding="utf-8"))
    assert Comparison.from_tree(tree) == compared.comparison
    assert compared.page.exists()


def test_a_comparison_goes_on_without_training_anything_again(commands, image_folder, tmp_path):
    def go_on(mixers):
        commands.given.clear()
        events = []
        compared = compare(
            image_folder,
            mixers=mixers,
            changes=ON_NANO,
            output=tmp_path,
            name="c",
            on_event=events.append,
        )
        return compared, [event.run.name for event in events if isinstance(event, RunEnded)]

    commands.failing = {"pooling"}
    first, _ = go_on(["fourier", "pooling"])
    commands.failing = set()
    second, ended = go_on(["fourier", "pooling", "mlp"])

    assert commands.trained() == ["pooling", "mlp"]
    assert ended == ["fourier", "pooling", "mlp"]
    assert second.comparison.runs[0] == first.comparison.runs[0]
    assert all(run.figures is not None for run in second.comparison.runs)


def test_a_training_that_was_stopped_is_resumed(commands, image_folder, tmp_path, monkeypatch):
    def stop(command, log, on_progress):
        commands(command, log, on_progress)
        (tmp_path / "c" / "fourier" / "report.html").unlink()  # the last that is written
        raise KeyboardInterrupt

    monkeypatch.setattr(comparing, "run_to_the_end", stop)
    arguments = {"mixers": ["fourier"], "changes": ON_NANO, "output": tmp_path, "name": "c"}
    with pytest.raises(KeyboardInterrupt, match=r"while fourier was trained.*--name c$"):
        compare(image_folder, **arguments)
    monkeypatch.setattr(comparing, "run_to_the_end", commands)
    commands.given.clear()

    compared = compare(image_folder, **arguments)

    assert commands.given == [["--resume", str(tmp_path / "c" / "fourier")]]
    assert compared.comparison.runs[0].figures is not None


def test_models_are_compared_too(commands, image_folder, tmp_path):
    changes = {path: value for path, value in TINY.items() if path != "model.depth"}
    compared = compare(image_folder, models=["vit_micro"], changes=changes, output=tmp_path, name="c")
    assert compared.comparison.kind == "model"
    for run in compared.comparison.runs:
        assert Run.open(tmp_path / "c" / run.folder).experiment.model["name"] == run.name
        assert run.figures is not None


def test_all_mixers_are_every_one_of_them_with_attention_first():
    kind, names = comparing._contestants(["all"], None)
    assert kind == "mixer"
    assert names[0] == "attention"
    assert set(names) == set(MIXERS)
    assert comparing._contestants(None, None) == (kind, names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mixers": ["furier"]}, "fourier"),
        ({"models": ["vit_nan"]}, "vit_nano"),
        ({"mixers": ["fourier"], "models": ["vit_nano"]}, "one or the other"),
        ({"mixers": ["fourier"], "changes": {"model.mixer": "mlp"}}, "what the runs differ in"),
        ({"models": ["vit_nano"], "changes": {"model.name": "vit_micro"}}, "what the runs differ in"),
        ({"mixers": ["fourier"], "changes": {"model.name": "resnet18"}}, "has a mixer of its own"),
        ({"mixers": ["fourier"], "changes": {"train.batchsize": 3}}, "batch_size"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_written(
    commands, tmp_path, arguments, message
):
    with pytest.raises(ConfigError, match=message):
        compare("photos", output=tmp_path, name="c", **arguments)
    assert not list(tmp_path.iterdir())
    assert not commands.given


def test_other_settings_under_the_same_name_are_refused(commands, image_folder, tmp_path):
    commands.failing = {"fourier"}
    compare(image_folder, mixers=["fourier"], budget_s=60, output=tmp_path, name="c")
    with pytest.raises(ConfigError, match=r"budget_s 60.0, not 90.0; changes \{\}, not"):
        compare(image_folder, mixers=["fourier"], budget_s=90, changes=ON_NANO, output=tmp_path, name="c")


def test_a_folder_of_something_else_is_refused(commands, image_folder, tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds no comparison"):
        compare(image_folder, mixers=["fourier"], output=tmp_path, name="c")


def test_several_processes_are_refused(commands, monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="without torchrun"):
        compare("photos", output=tmp_path)


def test_the_command_trains_in_a_process_of_its_own_and_shows_a_table(
    image_folder, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assignments = [part for path, value in ON_NANO.items() for part in ("--set", f"{path}={value}")]
    where = ["--output", str(tmp_path), "--name", "c", "--budget", "60s"]

    code = main(
        ["compare", str(image_folder), "--mixers", "synthesizer_factorized_dense", *where, *assignments]
    )

    assert code == 0
    *shown, header, row, last = capsys.readouterr().out.splitlines()
    assert shown[0] == "1/1 synthesizer_factorized_dense"
    assert any("step 2/2" in line for line in shown)
    assert header.split() == ["mixer", "accuracy", "steps", "parameters", "MACs", "samples/s", "peak", "MiB"]
    assert row.startswith("synthesizer_factorized_dense ")
    assert max(len(header), len(row)) <= 80
    assert last == f"report {tmp_path / 'c' / 'comparison.html'}"
    environment = json.loads(
        (tmp_path / "c" / "synthesizer_factorized_dense" / "environment.json").read_text()
    )
    assert "train" in environment["command"]  # not this process's, which is pytest's
