"""The objects that an experiment's settings stand for."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from vitrail.checkpoint import LoadedModel
from vitrail.data import ImageDataset, ImageSource, Preprocessing, sample_images
from vitrail.deploy.loading import load_any
from vitrail.errors import DataError
from vitrail.experiment import ClassificationExperiment
from vitrail.models import build_from_settings
from vitrail.tasks.classification import ClassificationTask
from vitrail.weights.published import is_published
from vitrail.weights.transfer import copy_pretrained


class Parts(NamedTuple):
    """What takes part in a training."""

    dataset: ImageDataset
    """The data without its unusable images."""
    task: ClassificationTask
    """Joins samples, gives the loss and scores."""
    model: nn.Module
    """With the initial weights that the seed determines."""
    train: ImageSource
    """What is learned from."""
    validation: ImageSource | None
    """What the validation curve is measured on."""
    test: ImageSource
    """What the final score is measured on."""


def assemble(experiment: ClassificationExperiment, dataset: ImageDataset) -> Parts:
    """Make task, model and sources; a function of the experiment and the data alone.

    Args:
        experiment: the resolved settings.
        dataset: the data without its unusable images.

    Raises:
        DataError: the data has another number of classes than the model was set up for.
    """
    data, train = experiment.data, experiment.train
    pretrained = load_weights(experiment.weights, experiment.model["name"])
    if pretrained is None:
        preprocessing = Preprocessing(image_size=data.image_size, resize=data.resize)
        preprocessing = preprocessing.with_statistics(sample_images(dataset.train.images, preprocessing))
    else:
        preprocessing = Preprocessing.from_tree(pretrained.preprocessing).with_changes(
            {"image_size": data.image_size, "resize": data.resize, "crop_fraction": 1.0}
        )
    task = ClassificationTask(
        len(dataset.class_names),
        preprocessing,
        augment=experiment.augment,
        label_smoothing=experiment.task.label_smoothing,
    )
    if experiment.model["num_classes"] != len(dataset.class_names):
        raise DataError(
            f"{dataset.source} has {len(dataset.class_names)} classes",
            expected=f"the {experiment.model['num_classes']} classes that the settings give the model",
            remedy="Name the data that the settings are for, or leave model.num_classes to the data",
        )
    torch.manual_seed(train.seed)
    model = build_from_settings(experiment.model)
    if pretrained is not None:
        copy_pretrained(model, pretrained.model)
    validation = None
    if len(dataset.validation) and train.validations:
        validation = ImageSource(dataset.validation, preprocessing, cache=train.cache)
    return Parts(
        dataset=dataset,
        task=task,
        model=model,
        train=ImageSource(dataset.train, preprocessing, experiment.augment, cache=train.cache),
        validation=validation,
        test=ImageSource(dataset.test, preprocessing),
    )


def load_weights(weights: str | None, model: str | None) -> LoadedModel | None:
    """Return the model that a training starts from, None where it starts from random weights.

    Args:
        weights: as in the experiment's settings.
        model: the name of the model, which a file of weights alone may need.

    Raises:
        CheckpointError: there is no usable model.
    """
    if weights is None:
        return None
    is_file = is_published(weights) and weights.startswith("file:")
    return load_any(weights, model=model if is_file else None)
