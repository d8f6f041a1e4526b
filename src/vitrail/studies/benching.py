"""Benchmark the engines of a model, given by name, run or folder, on the images of its data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from vitrail.core.errors import ConfigError, check_name
from vitrail.data.box_preprocessing import BoxPreprocessing
from vitrail.data.preprocessing import Preprocessing
from vitrail.engines.bench import BenchReport, BenchSettings, bench
from vitrail.engines.choice import choices_folder
from vitrail.engines.contract import ENGINES, PRECISIONS
from vitrail.engines.loading import load_any
from vitrail.models import MODELS, build, model_settings
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import DetectionModelConfig, ImageModelConfig
from vitrail.models.describe import parse_size
from vitrail.models.weights.published import is_published
from vitrail.studies.exporting import find_samples
from vitrail.tasks.registry import task_of_model

SEED = 0  # of the random weights of a named model


def bench_model(
    source: str,
    *,
    batches: str = "1,8",
    engines: str | None = None,
    precisions: str | None = None,
    size: str | None = None,
    data: str | None = None,
    threads: int | None = None,
    rounds: int = 7,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> BenchReport:
    """Measure every engine and precision, and store the results that ``engine="auto"`` chooses by.

    Nothing is stored for a model given by name.

    Args:
        source: a run directory, the folder of a saved model, a published model, or the name of a model, which
            gets random weights.
        batches: batch sizes, comma-separated.
        engines: comma-separated (default: all).
        precisions: comma-separated (default: all).
        size: height and width of the images, such as ``384x512`` (default: the model's own).
        data: any data that ``vitrail.train`` takes, instead of the run's own.
        threads: of each engine (default: as many as torch uses).
        rounds: interleaved timing rounds.
        on_stage: called with the current stage.

    Raises:
        ConfigError: a name or a number is wrong, or the model takes no images.
        CheckpointError: there is no usable model.
        DataError: the data cannot be used.
    """
    settings = BenchSettings(
        batches=_parse_batches(batches),
        engines=_parse_names(engines, ENGINES, "engine"),
        precisions=_parse_names(precisions, PRECISIONS, "precision"),
        rounds=rounds,
        threads=torch.get_num_threads() if threads is None else threads,
    )
    is_name = source in MODELS and not Path(source).exists()
    loaded = build_named(source) if is_name else load_any(source)
    _check_images(getattr(loaded.model, "config", None), loaded.model_settings.get("name", "the model"))
    if size is not None:
        pixels = list(parse_size(size))
        loaded = loaded._replace(preprocessing={**loaded.preprocessing, "image_size": pixels})
    samples = find_samples(source, loaded, task_of_model(loaded), data, on_stage)
    known = loaded if is_published(source) else source
    # Nobody predicts with random weights, and another image size may need another choice.
    store = None if is_name or size is not None else choices_folder(known, loaded)
    return bench(loaded, settings, samples=samples, store=store, on_stage=on_stage)


def build_named(name: str) -> LoadedModel:
    """Return a named model with reproducible random weights.

    Raises:
        ConfigError: there is no such model, or it takes no images.
    """
    config = _check_images(MODELS[name], name)
    torch.manual_seed(SEED)
    model = build(name).eval()
    is_detector = isinstance(config, DetectionModelConfig)
    preprocessing = (BoxPreprocessing if is_detector else Preprocessing)(image_size=config.image_size)
    names = [f"class {label}" for label in range(config.num_classes)]
    tree = preprocessing.model_dump(mode="json")
    return LoadedModel(model, model_settings(name), tree, names, {"weights": "random"})


def _check_images(config: object, name: str) -> ImageModelConfig | DetectionModelConfig:
    if isinstance(config, ImageModelConfig | DetectionModelConfig):
        return config
    remedy = "See benchmarks/translate.py for translators"
    expected = "a classifier of images or a detector"
    raise ConfigError(f"{name} reads no images", expected=expected, remedy=remedy)


def _parse_batches(text: str) -> tuple[int, ...]:
    try:
        batches = tuple(int(part) for part in text.split(","))
    except ValueError:
        batches = (0,)
    if min(batches) < 1:
        raise ConfigError(
            f"the batches are {text!r}",
            expected="numbers of images separated by commas",
            remedy="Write them as in --batch 1,8",
        )
    return tuple(dict.fromkeys(batches))


def _parse_names(text: str | None, known: Sequence[str], what: str) -> tuple[str, ...]:
    if text is None:
        return tuple(known)
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        check_name(what, name, known)
    return names
