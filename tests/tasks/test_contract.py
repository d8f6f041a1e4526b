"""What every task answers: data recognised, a training that repeats, a model that predicts and explains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from making.image_folders import noise
from making.small_runs import SMALL_RUNS, SmallRun
from vitrail.cli import app, main
from vitrail.core.errors import CheckpointError, ConfigError, DataError
from vitrail.interpret.viewer.page import explanation_data
from vitrail.models.checkpoint import LoadedModel, load_model
from vitrail.tasks.classification.predictor import Predictor
from vitrail.tasks.contract import Predicting, Task
from vitrail.tasks.detection.predictor import Detector
from vitrail.tasks.evaluating import evaluate
from vitrail.tasks.preparing import Prepared, prepare
from vitrail.tasks.registry import TASKS, check, open_dataset, open_run, other_use, recognise, task_of_source
from vitrail.tasks.request import Request
from vitrail.tasks.serving import EngineChoice, Given, Options, open_servable
from vitrail.tasks.training import TrainedRun, train
from vitrail.train.evaluate import Report
from vitrail.train.events import Saved
from vitrail.train.processes import single_process

EVALUATED = {"data", "split", "samples"}  # of every signature


class Case(NamedTuple):
    """A finished training of a task."""

    task: Task
    small: SmallRun
    source: Path
    run: TrainedRun

    def load(self) -> LoadedModel:
        return load_model(self.run.folder / "model")


@pytest.fixture(scope="module", params=sorted(SMALL_RUNS))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    name = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))
        small = SMALL_RUNS[name]
        source = small.write(tmp_path_factory.mktemp(name))
        run = small.train(source, tmp_path_factory.mktemp("runs"), name="first", seed=3)
        yield Case(TASKS[name], small, source, run)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """An image, a file that is none, and the image again."""
    for name in ("one.png", "two.png"):
        noise((40, 30)).save(tmp_path / name)
    (tmp_path / "broken.png").write_bytes(b"no image")
    return [str(tmp_path / name) for name in ("one.png", "broken.png", "two.png")]


def rounded(tree: Any) -> Any:
    return json.loads(json.dumps(tree), parse_float=lambda text: round(float(text), 4))


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_model(folder / "model").model.state_dict()


def assert_same_weights(*folders: Path) -> None:
    first, second = map(weights_of, folders)
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_every_task_is_here() -> None:
    assert set(SMALL_RUNS) == set(TASKS)


def test_data_is_recognised_and_found_usable(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert recognise(case.source) == (case.small.recognised_as or case.task.name)
    assert task_of_source(str(case.source), {"model.name": case.small.model}) is case.task
    seen: list[tuple[int, int]] = []
    opened = case.task.open(case.task.data_settings(str(case.source)))
    verdict = case.task.check(opened, lambda done, total: seen.append((done, total)))
    assert verdict.usable
    assert check(open_dataset(case.source)) == check(str(case.source)) == verdict
    if "images" in verdict.counts:
        assert seen[-1] == (sum(verdict.counts["images"].values()),) * 2
    page = tmp_path / "page.html"
    assert main(["check", str(case.source), "--json", "-o", str(page)]) == 0
    assert json.loads(capsys.readouterr().out)["usable"]
    assert page.read_text().count('<figure class="shot"') > 3


def test_every_setting_is_chosen_or_given_and_made_into_a_training(case: Case) -> None:
    request = Request(source=case.source, model=case.small.model, changes=case.small.changes)
    prepared = prepare(request, single_process())

    assert type(prepared.experiment) is case.task.experiment
    assert isinstance(prepared.parts.model.config, case.task.models)
    chosen = [choice.setting for choice in prepared.choices]
    assert len(chosen) == len(set(chosen))
    assert set(case.small.changes) | {"model.name"} <= set(chosen)
    sample = [prepared.parts.train.load(index, torch.Generator().manual_seed(0)) for index in range(2)]
    batch = prepared.parts.objective.collate(sample, None)
    loss = prepared.parts.objective.loss(prepared.parts.model, batch)
    assert torch.isfinite(loss.total)


def test_a_run_leaves_a_model_its_files_and_scores(case: Case) -> None:
    folder, loaded = case.run.folder, case.load()

    assert case.run.headline == case.task.headline
    assert case.run.score == Report.load(folder / "report.json").scores[case.task.headline]
    assert loaded.preprocessing.get("task", "classification") == case.task.name
    assert open_run(folder).experiment.task.name == case.task.name
    stored = {path.name: path.read_bytes() for path in (folder / "files").glob("*")}
    assert stored == dict(loaded.files)

    assert (
        f"vitrail.{type(case.run.predictor()).__name__}" in case.task.usage or case.task.name == "contrastive"
    )
    assert list(case.run.model.state_dict()) == list(loaded.model.state_dict())
    assert case.run.model is case.run.model


def test_an_evaluation_finds_the_scores_of_the_report_again(case: Case) -> None:
    stored, again = Report.load(case.run.folder / "report.json"), evaluate(case.run.folder, case.source)

    assert again.scores == pytest.approx(stored.scores, abs=1e-6)
    assert set(again.signature) >= EVALUATED
    assert {name: again.signature[name] for name in EVALUATED} == {
        name: stored.signature[name] for name in EVALUATED
    }


def test_a_repeated_run_gives_the_same_bits(case: Case, tmp_path: Path) -> None:
    settings = case.run.folder / "config.json"
    small = case.small._replace(changes={}, model=None)  # type: ignore[arg-type]
    again = small.train(case.source, tmp_path, config=settings, name="again")

    assert_same_weights(case.run.folder, again.folder)


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(case: Case, tmp_path: Path) -> None:
    def stop_after_the_first(event: object) -> None:
        if isinstance(event, Saved) and event.step:
            raise KeyboardInterrupt

    changes = {"train.checkpoint_every_s": 1e-9}
    with pytest.raises(KeyboardInterrupt):
        case.small.train(
            case.source, tmp_path, name="cut", seed=3, changes=changes, on_event=stop_after_the_first
        )
    assert not (tmp_path / "cut" / "model").exists()
    train(resume=tmp_path / "cut")

    assert (tmp_path / "cut" / "report.html").stat().st_size > 1000
    assert_same_weights(case.run.folder, tmp_path / "cut")


def test_a_run_starts_from_the_weights_and_files_of_another(case: Case) -> None:
    kept = ("train.", "data.image_size", "data.languages")
    changes = {name: value for name, value in case.small.changes.items() if name.startswith(kept)}
    prepared = train(
        case.source, weights=case.run.folder, model=case.small.model, changes=changes, dry_run=True
    )

    assert isinstance(prepared, Prepared)
    assert prepared.parts.files == dict(case.load().files)
    own = prepared.parts.model.state_dict()
    assert all(torch.equal(own[name], tensor) for name, tensor in weights_of(case.run.folder).items())


def test_requests_of_another_task_are_refused(case: Case, tmp_path: Path) -> None:
    other = "vit_nano" if case.task.name != "classification" else "transformer_tiny"
    with pytest.raises(ConfigError, match=rf"{other} does not learn from .*{case.task.contents}"):
        train(case.source, model=other, changes={"train.steps": 1}, output=tmp_path)
    with pytest.raises(ConfigError, match="no_such_setting"):
        case.small.train(case.source, tmp_path, changes={"data.no_such_setting": 1})
    wrong = Detector if case.task.name == "classification" else Predictor
    with pytest.raises(CheckpointError, match=case.task.usage.split(",")[0]):
        wrong(case.run.folder)


def test_a_file_that_cannot_be_read_is_set_aside(
    case: Case, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["predict", str(case.run.folder), *files, "--json"])

    shown, error = capsys.readouterr()
    if not isinstance(case.task, Predicting):
        assert code == 2
        assert case.task.usage.split(",")[0] in " ".join(error.split())
        return
    first, broken, second = json.loads(shown)
    assert code == 1
    assert [each["source"] for each in (first, broken, second)] == files
    assert "error" in broken
    assert {**first, "source": ""} == {**second, "source": ""}


def test_inputs_are_served_in_order_and_bad_ones_refused(case: Case, files: list[str]) -> None:
    served = open_servable(case.run.folder, EngineChoice())
    other = Path(files[2]).with_name("other.png")
    noise((30, 40), seed=1).save(other)
    contents: list[bytes | str] = [Path(files[0]).read_bytes(), other.read_bytes()]
    bad: bytes | str = b"no image"
    if case.task.explains_texts:
        contents, bad = ["a dog runs", "a man sees"], b"\x00"
    options = Options(labels="red, blue" if "labels" in served.option_names else None)

    works = [served.read(Given(f"input {n}", each), options, 10**6) for n, each in enumerate(contents)]
    together, alone = served.answer(works), [served.answer([work])[0] for work in works]

    assert served.task == case.task.name
    assert served.group(options) is not None, "inputs of equal options share a batch"
    assert rounded(list(together)) == rounded(alone)
    with pytest.raises((DataError, ConfigError, ValueError)):
        served.read(Given("bad", bad), options, 10**6)
    assert explanation_data(served.explain(works[0]))["views"]
    assert {"family", "engine", "precision", "can_explain"} <= set(served.describe())


def test_inputs_are_explained_on_a_page(
    case: Case, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    inputs = ["--text", "a dog"] if case.task.explains_texts else [files[0]]
    if "text" in case.task.explain_options:
        inputs += ["--text", "a red square"]

    assert main(["explain", str(case.run.folder), *inputs, "-o", str(page)]) == 0

    assert capsys.readouterr().out.strip() == str(page)
    assert page.stat().st_size > 10_000
    assert main(["explain", str(case.run.folder), "-o", str(tmp_path / "learned.html")]) == 0
    assert "<svg" in (tmp_path / "learned.html").read_text()


def test_a_model_that_does_not_fit_is_sent_to_the_command_that_takes_it() -> None:
    assert {task.usage.split()[1].rstrip(",") for task in TASKS.values()} <= set(app)
    assert "vitrail predict" in other_use({})
    assert "vitrail retrieve" in other_use({"task": "contrastive"})
    assert "another command" in other_use({"task": "of the future"})
