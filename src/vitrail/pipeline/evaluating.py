"""Score a finished model on any data that has its classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vitrail.data import ImageDataset, ImageSource, ImageSplit, Preprocessing
from vitrail.deploy.loading import load_any
from vitrail.errors import ConfigError, DataError
from vitrail.evaluate import Report
from vitrail.evaluate import evaluate as score
from vitrail.pipeline.preparing import open_as, open_checked
from vitrail.recipes.machine import inspect_machine
from vitrail.tasks.classification import ClassificationTask
from vitrail.train.processes import single_process
from vitrail.train.run import Run


def evaluate(run: str | Path, source: str | Path, *, split: str = "test", batch_size: int = 256) -> Report:
    """Score a model on one split of a data set; classes are matched by name.

    The data that a run was trained on is divided, and computed in the precision, as it was then.

    Args:
        run: a run directory or the folder of a saved model.
        source: any data that ``vitrail.train`` takes.
        split: ``train``, ``validation`` or ``test``.
        batch_size: images of one forward pass; it does not change the scores.

    Raises:
        CheckpointError: there is no usable model.
        DataError: the data cannot be used, or has classes that the model does not know.
        ConfigError: there is no such split.
    """
    loaded = load_any(run)
    machine = inspect_machine()
    trained = Run.open(Path(run)).experiment if (Path(run) / "config.json").is_file() else None
    if trained is not None and trained.data.source == str(source):
        dataset, _ = open_as(trained, single_process())
    else:
        dataset, _ = open_checked(str(source), {}, single_process())
    if split not in dataset.splits:
        raise ConfigError(
            f"there is no split {split!r}", expected=" or ".join(dataset.splits), remedy="Choose one of these"
        )
    preprocessing = Preprocessing.from_tree(loaded.preprocessing)
    labelled = _match_classes(dataset, dataset.splits[split], loaded.class_names)
    return score(
        ClassificationTask(len(loaded.class_names), preprocessing),
        loaded.model.to(machine.device),
        ImageSource(labelled, preprocessing),
        batch_size=batch_size,
        device=machine.device,
        precision=machine.precision if trained is None else trained.train.precision,
        class_names=tuple(loaded.class_names),
        signature=signature_of(dataset, split, preprocessing),
    )


def signature_of(dataset: ImageDataset, split: str, preprocessing: Preprocessing) -> dict[str, str]:
    """Return what two scores on a data set must agree in to be compared."""
    origin = {"validation": dataset.validation_origin, "test": dataset.test_origin}.get(split, "")
    height, width = preprocessing.image_size
    return {
        "data": f"{Path(dataset.source).name}@{dataset.splits[split].fingerprint}",
        "split": f"{split} ({origin})" if origin else split,
        "input": f"{height}x{width} {preprocessing.resize} {preprocessing.interpolation}",
    }


def _match_classes(dataset: ImageDataset, split: ImageSplit, class_names: list[str]) -> ImageSplit:
    """Number the labels as the model does."""
    unknown = sorted(set(dataset.class_names) - set(class_names))
    if unknown:
        raise DataError(
            f"{dataset.source} has classes that the model does not know: {', '.join(unknown[:5])}",
            expected=f"classes among {', '.join(class_names[:10])}",
            remedy="Evaluate on data with the classes that the model was trained on",
        )
    places = np.array([class_names.index(name) for name in dataset.class_names])
    return ImageSplit(split.images, places[split.labels], split.names)
