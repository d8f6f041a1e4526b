"""What a task answers: from a path to a trained, scored and reported model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64
from torch import nn

from vitrail.core.config import Config
from vitrail.core.errors import ConfigError
from vitrail.data.findings import Verdict
from vitrail.data.sampling import SampleSource
from vitrail.data.settings import DataSettings
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import ModelConfig
from vitrail.report.sections import RunRecord
from vitrail.tasks.answer_files import Answers
from vitrail.tasks.choosing import Choice
from vitrail.train.evaluate import Report
from vitrail.train.objective import Objective
from vitrail.train.settings import Experiment

if TYPE_CHECKING:
    from vitrail.engines.opening import Source
    from vitrail.tasks.serving import EngineChoice, Servable


class Parts(NamedTuple):
    """What takes part in a training."""

    dataset: Any
    """The data without its unusable samples."""
    objective: Objective
    """Joins samples, gives the loss and scores the validation."""
    final_objective: Objective
    """Scores the test split; it may take more time than ``objective``."""
    model: nn.Module
    """With the initial weights that the seed determines."""
    train: SampleSource
    """What is learned from."""
    validation: SampleSource | None
    """What the validation curve is measured on."""
    test: SampleSource
    """What the final score is measured on."""
    preprocessing: Config
    """How inputs are prepared, as it is saved with the model."""
    class_names: tuple[str, ...]
    """Names of the classes in label order; empty where there are none."""
    unit: str
    """What ``train.batch_size`` counts, in the plural."""
    evaluation_batch: int
    """How much the final score takes at once, in that unit."""
    max_epochs: int
    """How often a sample is seen at most where only the budget decides."""
    evaluation_share: float
    """Time that the final score takes for a sample, as a share of a train step's time for it."""
    files: Mapping[str, bytes]
    """Further files that inputs are prepared with, by name."""


class Settled(NamedTuple):
    """An experiment that is complete, with what was made of the data for it."""

    experiment: Experiment
    """Every setting."""
    files: Mapping[str, bytes]
    """What inputs are prepared with, such as vocabularies, by name; a resumed run takes those it stored."""


class Scoring(NamedTuple):
    """What it takes to score a saved model on one split."""

    objective: Objective
    """Joins samples and scores."""
    source: SampleSource
    """The samples of the split."""
    signature: dict[str, str]
    """What two scores must agree in to be compared."""
    batch_size: int
    """Samples of one forward pass, or what a source counts instead."""


class FileOptions(NamedTuple):
    """What ``vitrail predict`` was asked for, beside the files."""

    source: Path | LoadedModel | Any
    """The run, the model or the exported model."""
    top: int | None = None
    """Classes or captions to show for each image."""
    threshold: float | None = None
    """Confidence threshold of detections."""
    engine: str | None = None
    """What runs the model."""
    precision: str | None = None
    """Number type of its matrix products."""
    trust: bool = False
    """Whether programs of torch.export may be read."""
    output: Path | None = None
    """Where predictions are to be written."""
    as_json: bool = False
    """Whether they are to be printed as JSON."""


class FileResults(NamedTuple):
    """Predictions for files in every form in which they are shown."""

    tree: list[Any]
    """Plain JSON values, one for each file."""
    columns: tuple[str, ...]
    """The header of the table; all columns after the second are numbers."""
    rows: list[tuple[str, ...]]
    """The cells of the table."""
    errors: list[tuple[str, str]]
    """Files that could not be read, each with the reason."""
    answers: Answers | None = None
    """What is still to be written to ``output``; None where it is written or is none."""
    notes: tuple[str, ...] = ()
    """Lines that follow the table."""


@runtime_checkable
class Predicting(Protocol):
    """A task whose models answer about image files without being told more."""

    predict_options: frozenset[str]
    """The fields of ``FileOptions`` that it takes, among those that not all tasks take."""

    def predict_files(self, files: Sequence[str], options: FileOptions) -> FileResults:
        """Predict, and write what belongs into a folder."""
        ...


@runtime_checkable
class Repairing(Protocol):
    """A task whose doctor draws what it found, and writes a clean copy."""

    def draw_findings(self, path: Path, dataset: Any, verdict: Verdict) -> None:
        """Write a page with samples of each finding."""
        ...

    def write_clean(self, dataset: Any, verdict: Verdict, folder: Path) -> Any:
        """Write a copy without what can be repaired; the source is only read."""
        ...


class Sentences(NamedTuple):
    """What a CLIP is told of the classes."""

    templates: Sequence[str] = ()
    """As for ``read_templates``; the plain one where there is none."""
    names: Sequence[str] = ()
    """Names of the classes in the order of the data's; the data's own where there is none."""


@runtime_checkable
class ComparisonMetric(Protocol):
    """How runs of one task are compared on the same test samples."""

    score: str
    """What they are ranked by, as reports name it; a key of ``studies.comparison.SCORES``."""
    least_resamples: int
    """Resamples of the test samples, at least; more where many pairs are tested."""

    def shared_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings that runs of different mixers must share, beside those asked for."""
        return {}

    def read(self, folder: Path) -> Any:
        """Return the outcome of each test sample of a finished run.

        Raises:
            VitrailError: a file is missing or damaged.
        """
        ...

    def resample(self, runs: Sequence[Any], num_resamples: int) -> Float64[np.ndarray, " {num_resamples}"]:
        """Return the mean score of runs on each resample of the test samples, the same ones at every call.

        Args:
            runs: what ``read`` returned of each.
            num_resamples: how often samples are drawn.
        """
        ...

    def exact_p(self, first: Any, second: Any) -> float | None:
        """Return the p of an exact test of two outcomes that ``read`` returned; None where there is none."""
        return None


@runtime_checkable
class Task(Protocol):
    """One task: its settings, its data and doctor, its model, its scores and its report."""

    name: str
    """What ``tasks.recognising.recognise`` calls it."""
    experiment: type[Experiment]
    """The settings of its runs."""
    models: type[ModelConfig]
    """The settings of its models."""
    headline: str
    """The score that stands for all of them."""
    contents: str
    """What its data holds, in the plural, such as ``images with boxes``."""

    def data_settings(self, source: str, loaded: LoadedModel | None = None) -> DataSettings:
        """Return settings that open a source; for a saved model, those that suit it."""
        ...

    def open(self, data: Any) -> Any:
        """Open a data set.

        Args:
            data: settings, of the class that ``data_settings`` returns.

        Raises:
            DataError: the data cannot be opened.
        """
        ...

    def check(self, dataset: Any) -> Verdict:
        """Return what the doctor finds."""
        ...

    def choose(self, dataset: Any, asked: Any, budget_s: float) -> tuple[Experiment, list[Choice]]:
        """Return an experiment with one step to go, before the user's settings are applied.

        Args:
            dataset: without its unusable samples.
            asked: settings of the class ``experiment``; ``is_given`` tells those that were asked for.
            budget_s: wall-clock seconds for everything.
        """
        ...

    def settle(self, experiment: Any, dataset: Any) -> Settled:
        """Complete what follows from the settings that were finally made, and from the data."""
        ...

    def assemble(self, experiment: Any, dataset: Any, files: Mapping[str, bytes]) -> Parts:
        """Make objective, model and sources; a function of the arguments alone.

        Args:
            experiment: the resolved settings.
            dataset: without its unusable samples.
            files: what ``settle`` made of the data.

        Raises:
            DataError: the data does not fit the settings.
        """
        ...

    def sign(self, dataset: Any, split: str, preprocessing: Config) -> dict[str, str]:
        """Return what two scores on a split must agree in to be compared."""
        ...

    def score(self, loaded: LoadedModel, dataset: Any, split: str) -> Scoring:
        """Return what it takes to score a saved model on one split.

        Raises:
            DataError: the data does not suit the model.
        """
        ...

    def task_to_score(self, loaded: LoadedModel, source: str, sentences: Sentences) -> Task:
        """Return the task that opens data to score on: this one, but for a CLIP on images with classes.

        Raises:
            ConfigError: sentences about classes were given, and the model or the data has no use for them.
            DataError: the data does not suit the model.
        """
        if sentences.templates or sentences.names:
            told = "templates were" if sentences.templates else "names of classes were"
            raise ConfigError(
                f"{told} given to score {loaded.model_settings.get('name', 'the model')} on {source}",
                expected="a CLIP, and images with classes",
                remedy="Leave them out",
            )
        return self

    def adapt(
        self, loaded: LoadedModel, dataset: Any, sentences: Sentences
    ) -> tuple[LoadedModel, dict[str, str]]:
        """Return the model for the data of another task, and what its scores are signed with."""
        return loaded, {}

    def open_benchmark(self, data: Any) -> Any:
        """Open a benchmark as papers score it, with nothing left out; None for other data."""
        return None

    def check_benchmark(self, dataset: Any) -> None:
        """Find beforehand what the published score of a benchmark would fail on at its end.

        Raises:
            DataError: something that the score needs is missing.
        """
        return

    def as_published(self, report: Report, dataset: Any, split: str) -> Report:
        """Add the score that papers report on a benchmark, and sign it; other reports stay as they are."""
        return report

    def headline_of(self, dataset: Any) -> str:
        """Return the score that stands for all: of a benchmark the one that papers report."""
        return self.headline

    def write_page(self, path: Path, loaded: LoadedModel, parts: Parts, record: RunRecord) -> None:
        """Write the report of a finished run as one HTML file."""
        ...

    def serve(self, source: Source, choice: EngineChoice) -> Servable:
        """Return a model as the server asks it.

        Raises:
            ConfigError: the engine is missing or does not fit.
        """
        ...

    def comparison_metric(self, source: str) -> ComparisonMetric | None:
        """Return what runs on a data set are compared by; None where they cannot be compared."""
        ...
