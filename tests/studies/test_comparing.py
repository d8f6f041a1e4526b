"""Mixers and models side by side: same budget, one after the other, over several seeds, resumable."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path

import pytest

from making.box_scenes import make_scenes, write_coco
from making.small_runs import write_corpus
from vitrail.cli import main
from vitrail.core.errors import ConfigError, DataError
from vitrail.studies import comparing
from vitrail.studies.command import CommandError
from vitrail.studies.comparing import RunBegan, RunEnded, compare
from vitrail.studies.comparison import Comparison
from vitrail.tasks.detection.comparing import AVERAGE_PRECISION
from vitrail.tasks.registry import open_run
from vitrail.train.evaluate import Report

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
        self.copied: Path | None = None
        """A finished run that stands for every training."""

    def __call__(self, command, log, on_progress) -> None:
        assert command[1:4] == ["-m", "vitrail", "train"]
        self.given.append(command[4:])
        if self.trained()[-1] in self.failing:
            raise CommandError("it could not be trained")
        if self.copied is not None:
            shutil.copytree(self.copied, log.parent / self.trained()[-1])
            return
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
def commands(monkeypatch: pytest.MonkeyPatch, plain_pages: None) -> Commands:
    commands = Commands()
    monkeypatch.setattr(comparing, "run_to_the_end", commands)
    # Drawn by other tests, and more expensive than these trainings.
    monkeypatch.setattr(comparing, "write_comparison", lambda path, comparison: path.write_text("a page"))
    return commands


def test_figures_come_from_the_runs_and_a_failure_stops_nothing(commands, image_folder, tmp_path):
    commands.failing = {"pooling-seed5"}
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

    assert commands.trained() == ["fourier-seed5", "pooling-seed5", "lstm-seed5"]
    assert [event.name for event in told if isinstance(event, RunBegan)] == ["fourier", "pooling", "lstm"]
    assert told[-1] == "testing the differences"
    fourier, pooling, lstm = compared.comparison.runs
    assert (pooling.figures, pooling.error) == (None, "it could not be trained")
    for run in (fourier, lstm):
        folder = tmp_path / "c" / run.folder
        stored = open_run(folder)
        assert stored.experiment.model.mixer == run.name
        assert stored.experiment.train.seed == 5
        scores = Report.load(folder / "report.json").scores
        assert (run.figures.score, run.figures.lower) == (scores["accuracy"], scores["accuracy_lower"])
        model = stored.experiment.model.build()
        assert run.figures.parameters == sum(p.numel() for p in model.parameters())
        speeds = [entry["samples_per_s"] for entry in stored.metrics() if entry["kind"] == "train"]
        assert min(speeds) <= run.figures.samples_per_s <= max(speeds)
        assert run.figures.peak_memory_mib > 50
        assert run.figures.steps == 2
        validated = [entry for entry in stored.metrics() if entry["kind"] == "validation"]
        assert [point.score for point in run.figures.curve] == [e["scores"]["accuracy"] for e in validated]
    assert lstm.figures.macs > fourier.figures.macs > 0
    (pair,) = compared.comparison.pairs
    assert pair.test == "mcnemar"
    tree = json.loads((tmp_path / "c" / "comparison.json").read_text(encoding="utf-8"))
    assert Comparison.from_tree(tree) == compared.comparison
    assert compared.page.exists()


def test_more_mixers_and_more_seeds_join_without_training_anything_again(commands, image_folder, tmp_path):
    def go_on(mixers, seeds):
        commands.given.clear()
        events = []
        compared = compare(
            image_folder,
            mixers=mixers,
            changes=ON_NANO,
            output=tmp_path,
            name="c",
            seeds=seeds,
            on_event=events.append,
        )
        return compared, [(e.run.name, e.run.seed) for e in events if isinstance(e, RunEnded)]

    commands.failing = {"pooling-seed0"}
    first, _ = go_on(["fourier", "pooling"], 1)
    commands.failing, commands.copied = set(), tmp_path / "c" / "fourier-seed0"
    second, ended = go_on(["fourier", "pooling"], 2)

    assert commands.trained() == ["pooling-seed0", "fourier-seed1", "pooling-seed1"]
    assert ended == [("fourier", 0), ("pooling", 0), ("fourier", 1), ("pooling", 1)]
    assert second.comparison.runs[0] == first.comparison.runs[0]
    assert all(run.figures is not None for run in second.comparison.runs)
    assert {standing.over for standing in second.comparison.standings} == {"seeds"}
    assert {standing.seeds for standing in second.comparison.standings} == {(0, 1)}
    (pair,) = second.comparison.pairs
    assert pair.test == "welch and bootstrap"
    again, _ = go_on(["fourier", "pooling"], 2)
    assert not commands.given
    assert again.comparison == second.comparison


def test_a_training_that_was_stopped_is_resumed(commands, image_folder, tmp_path, monkeypatch):
    def stop(command, log, on_progress):
        commands(command, log, on_progress)
        (tmp_path / "c" / "fourier-seed0" / "report.html").unlink()  # the last that is written
        raise KeyboardInterrupt

    monkeypatch.setattr(comparing, "run_to_the_end", stop)
    arguments = {"mixers": ["fourier"], "changes": ON_NANO, "output": tmp_path, "name": "c"}
    with pytest.raises(KeyboardInterrupt, match=r"while fourier was trained.*--name c$"):
        compare(image_folder, **arguments)
    monkeypatch.setattr(comparing, "run_to_the_end", commands)
    commands.given.clear()

    compared = compare(image_folder, **arguments)

    assert commands.given == [["--resume", str(tmp_path / "c" / "fourier-seed0")]]
    assert compared.comparison.runs[0].figures is not None


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Hold 60 short pairs to train on, and a test of 9."""
    pytest.importorskip("sentencepiece", reason="needs the extra translation")
    return write_corpus(tmp_path / "corpus", train=60, test=9)


PAIRS = {
    "data.languages": ["en", "de"],
    "data.vocabulary_size": 60,
    "model.hidden_dim": 16,
    "model.encoder_depth": 1,
    "model.decoder_depth": 1,
    "train.batch_size": 200,
    "train.steps": 3,
    "train.validations": 0,
    "train.precision": "float32",
    "task.beam_size": 1,
}


def test_translators_are_compared_by_bleu(commands, corpus, tmp_path):
    compared = compare(
        corpus, models=["gru", "transformer_tiny"], changes=PAIRS, output=tmp_path / "runs", name="c"
    )

    comparison = compared.comparison
    assert [run.error for run in comparison.runs] == ["", ""]
    assert (comparison.kind, comparison.score) == ("model", "bleu")
    for run in comparison.runs:
        assert open_run(compared.folder / run.folder).experiment.model.name == run.name
        scores = Report.load(compared.folder / run.folder / "report.json").scores
        assert (run.figures.score, run.figures.further["chrf"]) == (scores["bleu"], scores["chrf"])
        assert run.figures.macs > 0
    (pair,) = comparison.pairs
    assert pair.test == "bootstrap"


def test_mixers_of_an_encoder_are_compared_with_positions_that_all_can_have(commands, corpus, tmp_path):
    changes = {**PAIRS, "model.width": 8, "model.num_heads": 2}
    compared = compare(
        corpus, mixers=["attention", "fourier"], changes=changes, output=tmp_path / "runs", name="c"
    )

    assert [run.error for run in compared.comparison.runs] == ["", ""]
    settings = [open_run(compared.folder / run.folder).experiment.model for run in compared.comparison.runs]
    assert [each.mixer for each in settings] == ["attention", "fourier"]
    assert {each.positions for each in settings} == {"sinusoidal"}


def test_detectors_are_compared_by_average_precision(commands, tmp_path, monkeypatch):
    pytest.importorskip("faster_coco_eval", reason="needs the extra detection")
    monkeypatch.setattr(AVERAGE_PRECISION, "least_resamples", 20)  # 40 for one pair; each takes a while
    data = write_coco(tmp_path / "cells", make_scenes(train=5, validation=2, test=3))
    changes = {
        "model.backbone_width": 4,
        "model.width": 16,
        "model.hidden_dim": 24,
        "model.num_heads": 2,
        "model.decoder_depth": 1,
        "model.num_queries": 9,
        "data.image_size": [32, 48],
        "train.batch_size": 4,
        "train.steps": 2,
        "train.validations": 0,
        "train.precision": "float32",
    }
    compared = compare(
        data, models=["sdetr_nano", "detr_nano"], changes=changes, output=tmp_path / "runs", name="c"
    )

    assert [run.error for run in compared.comparison.runs] == ["", ""]
    for run, standing in zip(compared.comparison.runs, compared.comparison.standings, strict=True):
        assert (compared.folder / run.folder / "found.safetensors").exists()
        assert 0 <= standing.lower <= standing.upper <= 1  # of the resamples, as reports have none
    assert len(compared.comparison.pairs) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mixers": ["furier"]}, "fourier"),
        ({"models": ["vit_nan"]}, "vit_nano"),
        ({"mixers": []}, "no mixer was named"),
        ({"mixers": ["mlp", "mlp"]}, "the mixer mlp is given twice"),
        ({"mixers": ["fourier"], "models": ["vit_nano"]}, "one or the other"),
        ({"models": ["vit_nano", "detr_nano"]}, "detr_nano is not for classification"),
        ({"mixers": ["fourier"], "changes": {"model.mixer": "mlp"}}, "what the runs differ in"),
        ({"models": ["vit_nano"], "changes": {"model.name": "vit_micro"}}, "what the runs differ in"),
        ({"models": ["vit_nano"], "changes": {"train.seed": 3}}, "Give --seeds instead"),
        ({"mixers": ["fourier"], "changes": {"model.name": "resnet18"}}, "has a mixer of its own"),
        ({"mixers": ["fourier"], "changes": {"model.name": "gru"}}, "is not for classification"),
        ({"mixers": ["fourier"], "changes": {"model.name": "vit_nan"}}, "vit_nano"),
        ({"mixers": ["fourier"], "changes": {"train.batchsize": 3}}, "batch_size"),
        ({"mixers": ["fourier"], "seeds": [1, 2, 1]}, "the seed 1 is given twice"),
        ({"mixers": ["fourier"], "seeds": [1, -2]}, "the seed -2 is negative"),
        ({"mixers": ["fourier"], "seeds": 0}, "no seed was asked for"),
        ({"mixers": ["fourier"], "seeds": [1, 2], "seed": 3}, "Leave out --seed"),
        ({"mixers": ["fourier"], "budget_s": 5.0}, "more than the 5 s"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_written(
    commands, tmp_path, arguments, message
):
    with pytest.raises(ConfigError, match=message):
        compare("photos", output=tmp_path, name="c", **arguments)
    assert not list(tmp_path.iterdir())
    assert not commands.given


def test_data_that_is_not_there_is_said_once_and_nothing_is_written(commands, tmp_path):
    with pytest.raises(DataError, match="missing-photos"):
        compare(tmp_path / "missing-photos", mixers=["fourier"], output=tmp_path / "runs", name="c")
    assert not (tmp_path / "runs").exists()
    assert not commands.given


def test_other_settings_under_the_same_name_are_refused(commands, image_folder, tmp_path):
    commands.failing = {"fourier-seed0"}
    compare(image_folder, mixers=["fourier"], budget_s=60, output=tmp_path, name="c")
    with pytest.raises(ConfigError, match=r"budget_s 60.0, not 90.0; changes \{\}, not"):
        compare(image_folder, mixers=["fourier"], budget_s=90, changes=ON_NANO, output=tmp_path, name="c")


def test_an_old_comparison_is_gone_on_with_and_stated_anew(commands, image_folder, tmp_path):
    commands.failing, given = {"fourier-seed0"}, {"mixers": ["fourier"], "output": tmp_path, "name": "c"}
    compare(image_folder, changes={**ON_NANO, "data.image_size": 8}, **given)
    stored = tmp_path / "c" / "comparison.json"
    stored.write_text(stored.read_text().replace("No mixer is finished", "Nothing is done"))

    again = compare(image_folder, changes={**ON_NANO, "data.image_size": [8, 8]}, **given).comparison

    assert again.statements == ("No mixer is finished: there is nothing to compare.",)


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
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1/1 synthesizer_factorized_dense, seed 0"
    assert any("step 2/2" in line for line in lines)
    place = next(place for place, line in enumerate(lines) if line.startswith("mixer "))
    assert lines[place].split()[:5] == ["mixer", "accuracy", "95", "%", "steps"]
    assert lines[place + 1].startswith("synthesizer_factorized_dense ")
    table_and_more = lines[place:-1]
    assert max(map(len, table_and_more)) <= 80
    assert any("alone is finished" in line for line in table_and_more)
    assert lines[-1] == f"report {tmp_path / 'c' / 'comparison.html'}"
    environment = json.loads(
        (tmp_path / "c" / "synthesizer_factorized_dense-seed0" / "environment.json").read_text()
    )
    assert "train" in environment["command"]  # not this process's, which is pytest's
