"""Noisy Student: a teacher labels images without labels, and a larger student learns them under noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitrail.core.errors import ConfigError, DataError
from vitrail.data.dataset import ImageSplit
from vitrail.data.inputs import list_files
from vitrail.tasks.classification.predictor import Predictor


def add_pseudo_labels(
    train: ImageSplit, class_names: Sequence[str], *, teacher: str, unlabelled: str, least_confidence: float
) -> tuple[ImageSplit, Float[Tensor, "images classes"]]:
    """Return labelled and unlabelled images together, with the class probabilities of each.

    Those of a labelled image are one-hot. Those of an unlabelled one are the teacher's, which sees it without
    noise; it is left out where the teacher is less sure than ``least_confidence``, or it cannot be read.

    Paper: Xie et al. 2020, "Self-training with Noisy Student improves ImageNet classification", algorithm 1
    with soft labels.
    Departs from the paper: the classes are not balanced.

    Raises:
        ConfigError: the teacher has other classes, or is no classifier.
        DataError: no unlabelled image is left.
    """
    predictor = Predictor(teacher)
    if set(predictor.class_names) != set(class_names):
        raise ConfigError(
            f"the teacher {teacher} tells {', '.join(predictor.class_names[:5])} apart",
            expected=f"the {len(class_names)} classes of the data: {', '.join(class_names[:5])}",
            remedy="Train the teacher on the same classes",
        )
    answers = predictor.predict(unlabelled, top=len(class_names))
    kept = [
        (file, dict(each.scores))
        for file, each in zip(list_files([unlabelled]), answers, strict=True)
        if each.error is None and each.probability >= least_confidence
    ]
    if not kept:
        raise DataError(
            f"the teacher is sure of none of {len(answers)} images of {unlabelled}",
            expected=f"images of which it gives one class at least {least_confidence:g}",
            remedy="Lower task.least_confidence, or name other images",
        )
    soft = torch.tensor([[scores[name] for name in class_names] for _, scores in kept])
    labels = torch.from_numpy(train.labels)
    files = [file for file, _ in kept]
    split = ImageSplit(
        [*train.images, *files],
        np.concatenate([train.labels, soft.argmax(dim=1).numpy()]),
        [*train.names, *map(str, files)],
    )
    return split, torch.cat([F.one_hot(labels, len(class_names)).float(), soft])
