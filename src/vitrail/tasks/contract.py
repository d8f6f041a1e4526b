"""The interface of a task: from a path to a trained, scored and reported model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable
from unicodedata import normalize

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import nn

from vitrail.core.config import Config, RuleError
from vitrail.core.errors import ConfigError, DataError
from vitrail.data.dataset import Progress
from vitrail.data.findings import Verdict, some_of
from vitrail.data.settings import DataSettings
from vitrail.data.stream import SampleSource
from vitrail.models import MODELS, configure
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import ModelConfig, building
from vitrail.models.weights.transfer import copy_pretrained
from vitrail.report.sections import RunRecord
from vitrail.tasks.answer_files import FileResults
from vitrail.train.evaluate import Report
from vitrail.train.machine import Machine
from vitrail.train.objective import Objective
from vitrail.train.run import Choice
from vitrail.train.settings import Experiment, TrainSettings

if TYPE_CHECKING:
    from vitrail.engines.export.comparison import ExportObjective
    from vitrail.tasks.data_page import DataView
    from vitrail.tasks.explaining import ExplainOptions, WrittenExplanations


class Parts(NamedTuple):
    """The parts of a training."""

    dataset: Any
    """The data without unusable samples."""
    objective: Objective
    final_objective: Objective
    """Scores the test split; may be slower than ``objective``."""
    model: nn.Module
    """With its initial weights, determined by the seed."""
    train: SampleSource
    validation: SampleSource
    """May be empty."""
    test: SampleSource
    preprocessing: Config
    """Preprocessing, as saved with the model."""
    files: Mapping[str, bytes]
    """Other preprocessing files (vocabularies), by name."""
    class_names: tuple[str, ...] = ()
    """In label order."""


class Settled(NamedTuple):
    """A complete experiment, with files derived from the data."""

    experiment: Experiment
    files: Mapping[str, bytes]
    """Preprocessing files such as vocabularies, by name; a resumed run uses the stored ones."""


class Scoring(NamedTuple):
    """What scoring a saved model on one split needs."""

    objective: Objective
    """Collates and scores."""
    source: SampleSource
    signature: dict[str, str]
    """What must agree for scores to be comparable."""
    batch_size: int


class Diagnosis(NamedTuple):
    """What a run came to, in sentences."""

    result: str
    problems: tuple[str, ...] = ()
    """What is the matter; empty if nothing stands out."""
    remedy: str = ""
    """What to do about the problems."""


class FileOptions(NamedTuple):
    """Options of ``vitrail predict``."""

    source: Path | LoadedModel | Any
    """The run, the model or the exported model."""
    top: int | None = None
    """Classes or captions per image."""
    threshold: float | None = None
    """Confidence threshold of detections."""
    engine: str | None = None
    precision: str | None = None
    """Of the matrix products."""
    trust: bool = False
    """Whether torch.export programs may be loaded."""
    output: Path | None = None
    """Output file or folder."""
    as_json: bool = False
    """Whether to print JSON."""


@runtime_checkable
class Predicting(Protocol):
    """A task whose models need nothing but image files for prediction."""

    predict_options: frozenset[str]
    """The supported fields of ``FileOptions``, among those that not all tasks have."""

    def predict_files(self, files: Sequence[str], options: FileOptions) -> FileResults:
        """Predict, and write results that go into a folder."""


@runtime_checkable
class Repairing(Protocol):
    """A task whose doctor writes a repaired copy."""

    def refuse_folder(self, folder: Path, source: str) -> None:
        """Refuse a folder that cannot take the copy, before the data is read."""

    def write_clean(self, dataset: Any, folder: Path) -> Any:
        """Write a repaired copy; the source is only read."""


@runtime_checkable
class Illustrating(Protocol):
    """A task with figures of how its models predict the samples of a split."""

    def draw_scored(self, path: Path, loaded: LoadedModel, scoring: Scoring, report: Report) -> None:
        """Write them as a page, or as one .png, .svg or .pdf."""


class Sentences(NamedTuple):
    """Zero-shot prompts."""

    templates: Sequence[str] = ()
    """As for ``read_templates``; by default the plain one."""
    names: Sequence[str] = ()
    """Class names in prompts, in the data's class order; by default the data's own."""


@runtime_checkable
class ComparisonMetric(Protocol):
    """How runs of one task are compared on the same test samples."""

    score: str
    """The ranking score; a key of ``studies.comparison.SCORES``."""
    least_resamples: int
    """Minimum number of bootstrap resamples; more where many pairs are tested."""

    shared_settings: Mapping[str, Any] = MappingProxyType({})
    """Settings that runs of different mixers share, unless the user names a model."""

    def read(self, folder: Path) -> Any:
        """Return the outcome of each test sample of a finished run.

        Raises:
            VitrailError: a file is missing or damaged.
        """

    def resample(self, runs: Sequence[Any], num_resamples: int) -> Float64[np.ndarray, " {num_resamples}"]:
        """Return the mean score of runs on each resample of the test samples, the same ones at every call.

        Args:
            runs: as from ``read``.
        """

    def exact_p(self, first: Any, second: Any) -> float | None:
        """Return the p-value of an exact test of two outcomes from ``read``, if there is one."""
        return None


@runtime_checkable
class Task(Protocol):
    """One task: settings, data, doctor, model, scores and report."""

    name: str
    """As from ``tasks.registry.recognise``."""
    experiment: type[Experiment]
    """The experiment class."""
    models: type[ModelConfig]
    """The model config class."""
    headline: str
    """The headline score."""
    contents: str
    """What its data holds, in the plural, such as ``images with boxes``."""
    usage: str
    """The commands and the class that use its models, for error messages."""
    predictor: Callable[..., Any]
    """The class that uses its models in Python; takes a run directory."""
    samples: str = "images"
    """What one sample is, in the plural."""
    export_formats: frozenset[str] = frozenset()
    """Formats of ``vitrail export`` that its models have."""
    explain_options: frozenset[str] = frozenset()
    """The supported fields of ``ExplainOptions`` beside ``output``."""
    explains_texts: bool = False
    """Whether texts are explained, not image files."""
    unit: str = "images"
    """What ``train.batch_size`` counts, in the plural."""
    evaluation_batch: int
    """Batch size of evaluations, in that unit."""
    fewest: int = 1
    """Minimum number of training samples."""
    max_epochs: int
    """Upper limit where only the budget decides."""
    evaluation_share: float
    """Time of the final evaluation per sample, as a fraction of a train step's."""
    pretrained: str = ""
    """Published weights to start from, as an example of ``--weights``; empty if there are none."""
    has_several_texts: bool = False
    """Whether a batch pads several texts of one image to the same length."""

    def recognises(self, source: str) -> int:
        """Return how surely a source is data of this task, by a cheap look; 0 if not."""
        return 0

    def data_settings(self, source: str, loaded: LoadedModel | None = None) -> DataSettings:
        """Return settings that open a source; for a saved model, matching ones."""

    def open(self, data: Any) -> Any:
        """Open a data set; ``DataError`` if the data cannot be opened."""

    def check(self, dataset: Any, progress: Progress | None = None) -> Verdict:
        """Run the doctor, which tells how many images it has seen of how many."""

    def view(self, dataset: Any) -> DataView:
        """Return what the doctor's page shows of the samples."""

    def choose(self, dataset: Any, asked: Any, request: ModelRequest) -> tuple[Experiment, list[Choice]]:
        """Return an experiment with one step, before the user's settings are applied.

        Args:
            asked: of the class ``experiment``; ``is_given`` says which settings, apart from the model's,
                are the user's.
        """

    def choose_for_epochs(
        self, experiment: Any, asked: Any, parts: Parts, epochs: float
    ) -> tuple[Experiment, Parts, list[Choice]]:
        """Choose the settings that depend on the number of epochs, once that is known; by default none.

        Args:
            asked: as for ``choose``; its settings are kept.
        """
        return experiment, parts, []

    def settle(self, experiment: Any, dataset: Any) -> Settled:
        """Complete what depends on the final settings and on the data."""

    def assemble(self, experiment: Any, dataset: Any, files: Mapping[str, bytes]) -> Parts:
        """Build objective, model and sources, as a pure function.

        Args:
            files: from ``settle``.

        Raises:
            DataError: the data does not fit the settings.
        """

    def sign(self, dataset: Any, split: str, preprocessing: Config) -> dict[str, str]:
        """Return what must agree for scores on a split to be comparable."""

    def score(self, loaded: LoadedModel, dataset: Any, split: str) -> Scoring:
        """Return what scoring a saved model on one split needs.

        Raises:
            DataError: the data does not suit the model.
        """

    def export_objective(self, loaded: LoadedModel) -> ExportObjective | None:
        """Return what a model and its export are compared by; None if engines do not run such models."""
        return None

    def task_to_score(self, loaded: LoadedModel, source: str, sentences: Sentences) -> Task:
        """Return the task that opens data for scoring: this one, except for a CLIP on labelled images.

        Raises:
            ConfigError: prompts were given, but the model or the data does not use them.
            DataError: the data does not suit the model.
        """
        if sentences.templates or sentences.names:
            given = "templates were" if sentences.templates else "names of classes were"
            raise ConfigError(
                f"{given} given to score {loaded.model_settings.get('name', 'the model')} on {source}",
                expected="a CLIP, and images with classes",
                remedy="Leave them out",
            )
        return self

    def adapt(
        self, loaded: LoadedModel, dataset: Any, sentences: Sentences
    ) -> tuple[LoadedModel, dict[str, str]]:
        """Return the model adapted to another task's data, and the signature of its scores."""
        return loaded, {}

    def open_to_score(self, data: Any) -> Any:
        """Open a data set like ``open``, whether or not a model could be trained on it."""
        return self.open(data)

    def as_published(self, report: Report, dataset: Any, split: str) -> Report:
        """Add a benchmark's published metric to a report, and sign it; other reports stay as they are."""
        return report

    def headline_of(self, dataset: Any) -> str:
        """Return the headline score: a benchmark's published metric, if any."""
        return self.headline

    def conclude(self, report: Report) -> Diagnosis:
        """Say what the scores come to, and what is the matter with them; ``diagnose`` says the remedy."""

    def write_page(self, path: Path, loaded: LoadedModel, parts: Parts, record: RunRecord) -> None:
        """Write the report of a finished run as one HTML file."""

    def explain(
        self, loaded: LoadedModel, inputs: Sequence[str], options: ExplainOptions
    ) -> WrittenExplanations:
        """Explain image files, or texts where ``explains_texts``, and write what ``options.output`` asks for.

        Raises:
            ConfigError: an option does not fit.
            DataError: no input can be read.
        """

    def run_once(self, objective: Objective, model: nn.Module, batch: Any) -> None:
        """Run a model on a batch as it is meant to be called, so that its attention can be measured."""
        objective.loss(model, batch)

    def sample_data(self, loaded: LoadedModel, source: str) -> tuple[Scoring, str]:
        """Return the validation samples of any suitable data, and what they are, for measuring attention.

        Raises:
            DataError: the data cannot be used.
        """
        dataset = self.open(self.data_settings(source, loaded))
        return self.score(loaded, dataset, "validation"), f"validation {self.samples} of {source}"

    def image_encoder(self, loaded: LoadedModel) -> nn.Module | None:
        """Return the part of a model that has features of whole images, if any: the input of its ``head``."""
        return None

    def comparison_metric(self, source: str) -> ComparisonMetric | None:
        """Return the metric of comparisons on a data set, if supported."""
        return None


CACHE_SHARE = 0.3  # of the free memory, for decoded images
FIXED_BY_WEIGHTS = ("name", "image_size", "num_classes", "num_channels")


class ModelRequest:
    """What was requested of the model: its name, some of its settings, or nothing.

    Names of settings and values are checked by ``configure``: the family is only known with the name.

    >>> request = ModelRequest({"model.depth": "3", "train.steps": 9})
    >>> request.name, request.configure("vit_nano", num_classes=5).depth
    (None, 3)
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        own = {path: value for path, value in settings.items() if path.startswith("model.")}
        self.name: str | None = own.pop("model.name", None)
        self._own = {path.removeprefix("model."): value for path, value in own.items()}

    def get(self, field: str) -> Any:
        """Return the requested value of a setting; None if it was not requested."""
        return self._own.get(field)

    def configure(self, name: str, **defaults: Any) -> Any:
        """Return the config of a model: its own settings, then the defaults, then the requested ones.

        Raises:
            ConfigError: there is no such model or setting, or a value does not fit.
        """
        return configure(name, **{**defaults, **self._own})

    def check(self, names: Sequence[str]) -> None:
        """Check the requested settings before it is known which of some models is taken.

        Raises:
            ConfigError: they fit none of them, whatever the data.
        """
        errors: list[ConfigError] = []
        for name in names:
            try:
                self.configure(name)
            except RuleError:  # which the data may decide, as a patch size that does not divide the image
                return
            except ConfigError as error:
                errors.append(error)
            else:
                return
        raise errors[0]

    def apply(self, config: ModelConfig) -> ModelConfig:
        """Return a config with the requested settings.

        Raises:
            ConfigError: as ``configure``.
        """
        return self.configure(config.name, **config.model_dump(mode="json", exclude={"name"}))


def name_model(pretrained: LoadedModel | None, asked: str | None, usual: str, why: str) -> tuple[str, str]:
    """Return the name of the pretrained model, of the one asked for, or of the usual one; and why.

    Raises:
        ConfigError: another model was asked for than that of the weights.
    """
    if pretrained is None:
        return (usual, why) if asked is None else (asked, "you asked for it")
    name = str(pretrained.model_settings["name"])
    if asked is not None and asked != name:
        raise ConfigError(
            f"the model {asked!r} was asked for, and weights of {name!r}",
            expected="weights of the same model",
            remedy="Leave out --model, it follows from the weights",
        )
    return name, "the model of the weights"


def encoder_settings(pretrained: LoadedModel) -> tuple[str, dict[str, Any]]:
    """Return the name of a pretrained image model, and its settings that differ from the named ones.

    Sizes of images and numbers of classes and channels are left out.
    """
    name = str(pretrained.model_settings["name"])
    usual = MODELS[name].model_dump(mode="json")
    return name, {
        field: value
        for field, value in pretrained.model_settings.items()
        if field not in FIXED_BY_WEIGHTS and usual.get(field) != value
    }


def sign_images(preprocessing: Any) -> dict[str, str]:
    """Return the part of a signature that says how images are resized."""
    height, width = preprocessing.image_size
    return {"input": f"{height}x{width} {preprocessing.resize} {preprocessing.interpolation}"}


def build_model(experiment: Experiment, pretrained: LoadedModel | None) -> Any:
    """Build the model of an experiment, with pretrained weights or those that its seed determines."""
    torch.manual_seed(experiment.train.seed)
    with building(experiment.model):
        model: Any = experiment.model.build()
    if pretrained is not None:
        copy_pretrained(model, pretrained.model)
    return model


def check_num_classes(experiment: Any, dataset: Any) -> None:
    """Raise ``DataError`` unless the model is for as many classes as the data has."""
    expected, found = experiment.model.num_classes, len(dataset.class_names)
    if expected != found:
        raise DataError(
            f"{dataset.source} has {found} classes",
            expected=f"the {expected} classes that the settings give the model",
            remedy="Name the data that the settings are for, or leave model.num_classes to the data",
        )


def match_classes(dataset: Any, class_names: Sequence[str]) -> Int64[np.ndarray, " classes"]:
    """Return the label in a model of each class of a data set, by its name.

    Raises:
        DataError: the model does not know a class.
    """
    # macOS takes accents apart in names of folders
    label_of = {normalize("NFC", name): label for label, name in enumerate(class_names)}
    names = [normalize("NFC", name) for name in dataset.class_names]
    unknown = sorted(set(names) - label_of.keys())
    if unknown:
        folded = set(map(str.casefold, class_names))
        alike = [name for name in unknown if name.casefold() in folded]
        raise DataError(
            f"{dataset.source} has classes that the model does not know: {some_of(unknown, len(unknown))}",
            expected=f"classes among {some_of(class_names, len(class_names))}",
            remedy=f"Rename classes such as {alike[0]!r}, the model's but for upper and lower case"
            if alike
            else "Leave the others out, or evaluate on data with the classes that the model was trained on",
        )
    return np.array([label_of[name] for name in names], dtype=np.int64)


def choose_image_training(
    machine: Machine,
    asked: TrainSettings,
    *,
    batch_size: int,
    num_images: int,
    image_size: tuple[int, int],
) -> tuple[TrainSettings, list[Choice]]:
    """Choose batch, precision, and whether decoded images are kept in memory, for one step."""
    batch_size = asked.batch_size if asked.is_given("batch_size") else batch_size
    pixels = num_images * 3 * math.prod(image_size)
    fits = pixels <= CACHE_SHARE * machine.free_memory_bytes
    cache = asked.cache if asked.is_given("cache") else fits
    workers = 0 if cache and machine.device.type == "cpu" else min(8, machine.num_cores)
    train = TrainSettings(
        steps=1, batch_size=batch_size, precision=machine.precision, num_workers=workers, cache=cache
    )
    said = f"{pixels / 2**20:.0f} MiB of pixels {'fit into' if fits else 'are too much for'} memory"
    return train, [
        Choice(
            "train.batch_size", str(batch_size), f"{num_images:,} training images on {machine.device_name}"
        ),
        Choice("train.precision", machine.precision, precision_reason(machine.precision)),
        Choice("train.cache", str(cache).lower(), said),
    ]


def precision_reason(precision: str) -> str:
    """Return the reason for a precision."""
    if precision == "bfloat16":
        return "this hardware multiplies bfloat16 at twice the rate of float32"
    return "this hardware has no fast bfloat16"
