"""Zero-shot scoring of a CLIP on labelled images."""

from __future__ import annotations

from pathlib import Path

from vitrail.core.errors import ConfigError, DataError
from vitrail.data.dataset import ImageDataset
from vitrail.data.feature_cache import digest_of
from vitrail.models.checkpoint import LoadedModel
from vitrail.tasks.classification.opening import recognises as holds_classes
from vitrail.tasks.contract import Sentences, Task
from vitrail.tasks.contrastive.prompts import read_templates
from vitrail.tasks.contrastive.zero_shot import as_classifier
from vitrail.tasks.registry import TASKS, task_of_source


def classes_to_score(source: str) -> Task | None:
    """Return the task of labelled images, which a CLIP can be scored on; None for other data.

    Raises:
        DataError: the images have neither captions nor classes.
    """
    task = task_of_source(source)
    if task is not TASKS["classification"]:
        return None
    if Path(source).is_dir() and not holds_classes(source):
        raise DataError(
            f"the images of {source} have neither captions nor classes",
            expected="images with captions, or in a folder for each class, to score a CLIP on",
            remedy="Add them; vitrail classify and vitrail retrieve take images alone",
        )
    return task


def by_names(
    loaded: LoadedModel, dataset: ImageDataset, sentences: Sentences
) -> tuple[LoadedModel, dict[str, str]]:
    """Turn a CLIP into a classifier of a data set's classes, and return its score signature.

    Underscores in the data's own names become spaces.

    Raises:
        ConfigError: there are not as many names as classes, one is empty or there twice, or a template has
            no place for a name.
        DataError: a sentence is longer than the model reads.
    """
    classes, names = dataset.class_names, sentences.names
    if names and len(names) != len(classes):
        raise ConfigError(
            f"{len(names)} names were given for {len(classes)} classes",
            expected=f"one for each of {', '.join(classes[:10])}{', ...' if len(classes) > 10 else ''}",
            remedy="Give them in this order",
        )
    said = names or [name.replace("_", " ") for name in classes]
    classifier = as_classifier(loaded, classes, said, read_templates(sentences.templates))
    signed = {"zero_shot": " / ".join(sentences.templates or read_templates(()))}
    if names:
        signed["names"] = f"given@{digest_of(*names)[:16]}"
    return classifier, signed
