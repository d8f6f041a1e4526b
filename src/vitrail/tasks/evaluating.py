"""Evaluate a trained model on any suitable data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitrail.core.config import check_place
from vitrail.core.errors import ConfigError, DataError
from vitrail.core.files import expand
from vitrail.data.dataset import Split, contents_of
from vitrail.data.findings import some_of
from vitrail.data.settings import DataSettings
from vitrail.engines.loading import load_any, merged_source
from vitrail.models.checkpoint import LoadedModel
from vitrail.report.plots import check_picture_path
from vitrail.tasks.contract import Illustrating, Scoring, Sentences, Task
from vitrail.tasks.preparing import open_checked
from vitrail.tasks.registry import open_run, other_use, task_of_model, task_of_source
from vitrail.train.evaluate import Report
from vitrail.train.evaluate import evaluate as score
from vitrail.train.machine import inspect_machine
from vitrail.train.processes import single_process
from vitrail.train.settings import Experiment


def evaluate(
    run: str | Path,
    source: str | Path,
    *,
    split: str | None = None,
    batch_size: int | None = None,
    merge_tokens: int = 0,
    templates: Sequence[str] = (),
    names: Sequence[str] = (),
    figures: Path | None = None,
) -> Report:
    """Score a model on one split of a data set; classes are matched by name.

    Training data is split as it was then. Models run in float32, as when they are used. A CLIP does retrieval
    on captioned images and zero-shot classification on labelled ones.

    Args:
        split: by default test; of data that is not the training data and names no test split, all samples.
        batch_size: images, or tokens, per forward pass; does not change the scores.
        merge_tokens: tokens that each block of the model merges (ToMe), for speed.
        templates: CLIP only: prompts, as for ``ZeroShotClassifier``.
        names: CLIP only: class names in prompts, in the data's class order.
        figures: detectors only: a page (.html) or picture of scores by decoder block and of object queries.

    Raises:
        CheckpointError: there is no usable model.
        DataError: the data cannot be used, or has classes that the model does not know.
        ConfigError: there is no such split, the model cannot merge tokens, or names, templates or
            figures do not fit.
    """
    check_place(source)
    loaded = load_any(run)
    machine = inspect_machine()
    sentences = Sentences(templates, names)
    own = task_of_model(loaded)
    task = own.task_to_score(loaded, str(source), sentences)
    if figures is not None:
        if not isinstance(task, Illustrating):
            raise ConfigError(
                f"figures were asked for of {run}, a model for {task.name}",
                expected="a detector",
                remedy="Leave out --figures; vitrail explain draws what the model attends to",
            )
        check_picture_path(figures)
    dataset, signed = _open(task, own, run, loaded, source, split)
    split = split or "test"
    if task is not own:
        loaded, prompts = own.adapt(loaded, dataset, sentences)
        signed |= prompts
    scoring = _scoring(loaded, dataset, split)
    scoring.signature.update(signed)
    known, met = loaded.class_names, getattr(dataset, "class_names", ())
    if task is own and 0 < len(met) < len(known):
        scoring.signature["classes"] = f"{len(met)} of {len(known)}: {some_of(met, len(met))}"
    if merge_tokens:
        loaded = merged_source(loaded, merge_tokens)
        scoring.signature["merging"] = f"{merge_tokens} tokens a block"
    report = score(
        scoring.objective,
        loaded.model.to(machine.device),
        scoring.source,
        batch_size=batch_size or scoring.batch_size,
        class_names=tuple(loaded.class_names),
        signature=scoring.signature,
    )
    if isinstance(task, Illustrating) and figures is not None:
        task.draw_scored(figures, loaded, scoring, report)
    return task.as_published(report, dataset, split)


def open_scoring(run: str | Path, loaded: LoadedModel, source: str | Path, *splits: str) -> list[Scoring]:
    """Open splits of a data set for a saved model; training data is split as it was then.

    If test alone is asked for, it is all samples of other data that names no test split.

    Raises:
        DataError: the data cannot be used, or has classes that the model does not know.
        ConfigError: there is no such split.
    """
    task = task_of_model(loaded)
    split = None if splits == ("test",) else splits[0]
    dataset, signed = _open(task, task, run, loaded, source, split)
    scorings = [_scoring(loaded, dataset, split) for split in splits]
    scorings[0].signature.update(signed)
    return scorings


def load_classifier(run: str | Path) -> LoadedModel:
    """Return a trained image classifier.

    Raises:
        CheckpointError: there is no usable model.
        ConfigError: the model is of another task.
    """
    loaded = load_any(run)
    if task_of_model(loaded).name != "classification":
        raise ConfigError(
            f"{run} does not classify images",
            expected="a run that was trained on images with a class each",
            remedy=other_use(loaded.preprocessing),
        )
    return loaded


def trained_experiment(run: str | Path) -> Experiment | None:
    """Return the settings of a run directory; None for other sources of a model."""
    return open_run(run).experiment if (Path(run) / "config.json").is_file() else None


def _open(
    task: Task, own: Task, run: str | Path, loaded: LoadedModel, source: str | Path, split: str | None
) -> tuple[Any, dict[str, str]]:
    """Return a data set as it is scored, and how many of the scored samples are copies of training samples.

    Training data is split as it was then. Of other data all samples become the test, unless the data or the
    caller names a split. Copies are counted where the training data is still there.

    Args:
        task: opens the data.
        own: the task of the model.
    """
    trained = trained_experiment(run)
    data = task.data_settings(str(source), loaded)
    if trained is not None:  # the training data may be elsewhere by now
        shared = {name: getattr(trained.data, name) for name in DataSettings.model_fields}
        data = trained.data if _is_same(trained, source) else data.model_copy(update=shared)
        data = data.model_copy(update={"source": str(source)})
    try:
        dataset, _ = open_checked(task, data, single_process(), to_score=True)
    except DataError:
        found = task_of_source(str(source))
        if found.name == task.name or not found.recognises(str(source)):
            raise
        raise DataError(
            f"{source} holds {found.contents}",
            expected=f"{task.contents}, since {run} is a model for {task.name}",
            remedy=f"Name other data, or a model for {found.name}",
        ) from None
    is_changed = _is_untested(run, dataset)
    if trained is not None and _is_same(trained, source):
        is_drawn = not dataset.test_origin.startswith("from the source")
        return dataset, {"changed": "since the training"} if is_changed and is_drawn else {}
    # Of a folder of weights alone nobody knows: a part is scored which training leaves out by default.
    if Path(run).exists() and (trained is None or not is_changed):
        return dataset, {}
    dataset = dataset.as_test() if split is None else dataset
    return dataset, count_copies(own, trained, dataset.splits.get(split or "test"))


def count_copies(own: Task, trained: Experiment | None, scored: Split | None) -> dict[str, str]:
    """Return how many scored samples are copies of training samples, for a signature; nothing without any."""
    if trained is None or scored is None or not expand(trained.data.source).exists():
        return {}
    try:
        known = own.open(trained.data).train.contents
    except DataError:
        return {}
    contents = contents_of([*known, *scored.contents])
    seen = set(contents[: len(known)])
    copies = sum(content in seen for content in contents[len(known) :])
    return {"copies": f"{copies} of {len(scored)}"} if copies else {}


def _is_same(trained: Experiment, source: str | Path) -> bool:
    return expand(trained.data.source).resolve() == expand(source).resolve()


def _is_untested(run: str | Path, dataset: Any) -> bool:
    """Tell whether the test of a run's report was another one than that of a data set."""
    path = Path(run) / "report.json"
    if not path.is_file():
        return False
    _, _, fingerprint = Report.load(path).signature.get("data", "").rpartition("@")
    return bool(fingerprint != dataset.test.fingerprint)


def _scoring(loaded: LoadedModel, dataset: Any, split: str) -> Scoring:
    if split not in dataset.splits:
        raise ConfigError(
            f"there is no split {split!r}",
            expected=" or ".join(dataset.splits),
            remedy="Choose one of these",
        )
    return task_of_model(loaded).score(loaded, dataset, split)
