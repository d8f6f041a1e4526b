"""How good the features of a frozen model are for other data: nearest neighbours, and a linear classifier."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from vitrail import __version__
from vitrail.core.errors import ConfigError, DataError
from vitrail.data.dataset import ImageDataset, ImageSplit
from vitrail.data.feature_cache import FeatureCache, cache_folder, digest_of
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.source import ImageSource
from vitrail.engines.loading import load_any
from vitrail.studies.frozen_features import feature_width, image_part, read_features
from vitrail.studies.linear_probe import choose_probe, probe_logits
from vitrail.studies.neighbours import NUM_NEIGHBOURS, TEMPERATURE, weighted_votes
from vitrail.tasks.captioning.kept_features import digest_of_weights
from vitrail.tasks.classification.benchmarks import benchmark_of
from vitrail.tasks.classification.opening import open_dataset
from vitrail.tasks.classification.published_scores import as_prepared, as_published, check_published
from vitrail.tasks.classification.scores import classification_tables, headline_scores
from vitrail.tasks.preparing import open_checked
from vitrail.tasks.registry import TASKS
from vitrail.train.evaluate import Report
from vitrail.train.machine import Machine, autocast, inspect_machine
from vitrail.train.processes import single_process

ProbeProtocol = Literal["linear", "knn"]
Preparing = Literal["published", "model"]
OnProgress = Callable[[str, int, int], None]
"""Told what is done, and how many of how many parts of it; the total may be 0 where it is not known."""

BATCH_SIZE = 64


class Features(NamedTuple):
    """What a frozen model makes of a split."""

    values: Float[Tensor, "n dim"]
    """One row for each image."""
    labels: Int[Tensor, " n"]
    """Their classes."""


class FeatureReader(NamedTuple):
    """A frozen model with what its features depend on."""

    model: nn.Module
    """In evaluation mode, on the machine's device."""
    preprocessing: Preprocessing
    """How images are prepared."""
    width: int
    """Numbers of an image."""
    machine: Machine
    """Where, and in which precision, features are computed."""
    digest: str
    """Changes with anything that the features depend on, the images apart."""


def probe(
    run: str | Path,
    source: str | Path,
    *,
    protocol: ProbeProtocol = "linear",
    preparation: Preparing = "published",
    num_neighbours: int = NUM_NEIGHBOURS,
    temperature: float = TEMPERATURE,
    batch_size: int = BATCH_SIZE,
    on_progress: OnProgress | None = None,
) -> Report:
    """Score the features of a frozen model on the test split of a data set, whose classes may be others.

    Features are computed once, and kept in the user's cache for the next time.

    Args:
        run: a run directory, the folder of a saved model or a published model; a CLIP's image tower.
        source: any images with classes that ``vitrail.train`` takes.
        protocol: ``linear``, logistic regression whose strength is chosen on the validation split, or
            ``knn``, the weighted vote of the nearest images of train and validation.
        preparation: how the images of a benchmark are resized: as papers did, or as the ``model`` was
            trained; size and colour statistics are the model's in any case.
        num_neighbours: how many vote.
        temperature: how much the nearest counts.
        batch_size: images of one forward pass.
        on_progress: told how far it is.

    Raises:
        CheckpointError: there is no usable model.
        DataError: the data cannot be used.
        ConfigError: the model has no features of whole images; or a number is not positive.
    """
    _check_vote(num_neighbours, temperature)
    loaded = load_any(run)
    dataset = _open(str(source))
    check_published(dataset)
    model, preprocessing = image_part(loaded)
    prepared = "as the model's"
    if preparation == "published":
        preprocessing, prepared = as_prepared(preprocessing, str(source))
    reader = open_reader(model, preprocessing)
    parts = {
        name: read_split(dataset, name, reader, batch_size, on_progress)
        for name in ("train", "validation", "test")
    }
    if protocol == "knn":
        how, probabilities = _neighbours(dataset, parts, num_neighbours, temperature, reader.machine)
    else:
        how, probabilities = _linear(dataset, parts, reader.machine, on_progress)
    labels = parts["test"].labels
    signature = TASKS["classification"].sign(dataset, "test", preprocessing) | {
        "protocol": how,
        "resized": prepared,
        "features": f"{reader.width} of {Path(run).name}",
        "samples": str(len(labels)),
        "precision": reader.machine.precision,
        "vitrail": __version__,
    }
    report = _report(dataset, probabilities, labels, signature)
    return as_published(report, dataset, "test")


def open_reader(model: nn.Module, preprocessing: Preprocessing) -> FeatureReader:
    """Bring a model to where it is fastest, and say what its features depend on."""
    machine = inspect_machine()
    digest = digest_of(
        "pooled",
        digest_of_weights(model),
        repr(getattr(model, "config", type(model).__name__)),
        preprocessing.model_dump_json(),
        machine.precision,
    )
    model = model.to(machine.device).eval()
    return FeatureReader(model, preprocessing, feature_width(model, preprocessing), machine, digest)


def read_split(
    dataset: ImageDataset,
    name: str,
    reader: FeatureReader,
    batch_size: int = BATCH_SIZE,
    on_progress: OnProgress | None = None,
) -> Features:
    """Return the features of a split, from the cache where they were computed before.

    Raises:
        DataError: an image cannot be read.
    """
    split: ImageSplit = dataset.splits[name]

    @torch.inference_mode()
    def encode(pixels: UInt8[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch 1 dim"]:
        images = reader.preprocessing.normalise(pixels).to(reader.machine.device)
        with autocast(reader.machine.precision, reader.machine.device):
            return read_features(reader.model, images)[:, None]

    def tell(done: int, total: int) -> None:
        if on_progress is not None:
            on_progress(f"features of {name}", done, total)

    cache = FeatureCache(
        ImageSource(split, reader.preprocessing),
        encode,
        path=cache_folder() / "features" / f"{digest_of(reader.digest, split.fingerprint)}.f16",
        shape=(1, reader.width),
        batch_size=batch_size,
        progress=tell,
    )
    cache.prepare()
    rows = [cache.load(index)[0] for index in range(len(cache))]
    values = torch.stack(rows).float() if rows else torch.empty(0, reader.width)
    return Features(values, torch.from_numpy(split.labels.copy()))


def _check_vote(num_neighbours: int, temperature: float) -> None:
    if num_neighbours < 1 or temperature <= 0:
        raise ConfigError(
            f"{num_neighbours} neighbours and a temperature of {temperature:g}",
            expected="one neighbour or more, and a temperature above 0",
            remedy=f"Take {NUM_NEIGHBOURS} and {TEMPERATURE}, as Caron et al. 2021",
        )


def _report(
    dataset: ImageDataset,
    probabilities: Float[Tensor, "n classes"],
    labels: Int[Tensor, " n"],
    signature: dict[str, str],
) -> Report:
    tables = classification_tables(probabilities, labels, torch.arange(len(labels)))
    return Report(
        signature=signature,
        scores=headline_scores(probabilities, labels),
        tables=tables.model_dump(mode="json"),
        class_names=dataset.class_names,
    )


def _open(source: str) -> ImageDataset:
    """Open images with classes; nothing is left out of a benchmark that others are scored on."""
    if benchmark_of(source) is not None:
        return open_dataset(source)
    task = TASKS["classification"]
    dataset: ImageDataset
    dataset, _ = open_checked(task, task.data_settings(source), single_process())
    return dataset


def _neighbours(
    dataset: ImageDataset,
    parts: dict[str, Features],
    num_neighbours: int,
    temperature: float,
    machine: Machine,
) -> tuple[str, Float[Tensor, "n classes"]]:
    bank = [
        torch.cat(pair).to(machine.device) for pair in zip(parts["train"], parts["validation"], strict=True)
    ]
    votes = weighted_votes(
        bank[0],
        bank[1],
        parts["test"].values.to(machine.device),
        num_classes=len(dataset.class_names),
        num_neighbours=num_neighbours,
        temperature=temperature,
    )
    how = f"weighted {min(num_neighbours, len(bank[0]))}-nn of {len(bank[0])}, temperature {temperature:g}"
    return how, votes.cpu()


def _linear(
    dataset: ImageDataset, parts: dict[str, Features], machine: Machine, on_progress: OnProgress | None
) -> tuple[str, Float[Tensor, "n classes"]]:
    if not len(parts["validation"].labels):
        raise DataError(
            f"{dataset.source} has no validation images, on which the strength of the probe is chosen",
            expected="a validation split, or enough images to hold some out",
            remedy="Add images, or use --protocol knn, which has nothing to choose",
        )
    # Apple's GPU has no float64, in which the probe is fitted.
    device = torch.device("cpu") if machine.device.type == "mps" else machine.device
    train, validation, test = (
        tuple(tensor.to(device) for tensor in parts[name]) for name in ("train", "validation", "test")
    )
    chosen = choose_probe(
        (train[0], train[1]),
        (validation[0], validation[1]),
        num_classes=len(dataset.class_names),
        on_fit=None if on_progress is None else lambda done: on_progress("fits of the probe", done, 0),
    )
    how = (
        f"linear probe, C={chosen.strength:.3g} of {len(chosen.tried)} "
        f"on {len(validation[1])} validation images"
    )
    return how, probe_logits(chosen.probe, test[0]).softmax(dim=-1).float().cpu()
