"""Recipes for the built-in shapes, and for BCCD: 364 images of blood cells, three classes, their own split.

All of them chose on the validation split; the test split is read once, at the end of a run. They start from
random weights; those for BCCD are made for two cores and an hour. ``benchmarks/detection_quality.py`` runs
them, and ``benchmarks/README.md`` has scores, times and seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from vitrail.tasks.request import Recipe

_COMMON: Mapping[str, Any] = {
    "augment.flip_vertical": True,  # blood cells have no upper side
    "train.steps": 2000,
    "train.validations": 10,
    "train.keep": "best",  # the last of 2,000 steps is as good; 3,600 were too many (docs/log.md)
}
ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    "bccd-short": {},
    "bccd-no-denoising": {"model.num_denoising": 0},
    "bccd-no-proposals": {"model.queries": "learned"},
    "bccd-one-level": {"model.strides": [16]},
    "bccd-no-encoder": {"model.encoder_depth": 0},
    "bccd-bare": {"model.num_denoising": 0, "model.queries": "learned", "model.strides": [16]},
}
"""What each recipe takes away from ``bccd``, to show what it is worth: the first nothing, the last most.

All are trained for 600 steps, where ``bccd`` has 2,000: what makes it converge fast shows early."""


def shapes() -> dict[str, Any]:
    """Train plain DETR on drawn shapes, in ten minutes of two cores.

    Command: ``vitrail train shapes --recipe shapes``.
    """
    return {
        "model.name": "detr_tiny",
        "model.num_queries": 16,
        "augment.flip_vertical": True,
        "augment.crop": 0,
        "augment.colour": 0,
        "train.batch_size": 32,
    }


def bccd() -> dict[str, Any]:
    """Train the DETR for small data, of 2.5 M parameters.

    Command: ``vitrail train bccd/ --recipe bccd``.
    """
    return {**_COMMON, "model.name": "sdetr_nano"}


def bccd_detr() -> dict[str, Any]:
    """Train DETR as published, made as small, for as long: to see what the other one has changed.

    Its backbone learns its batch norm, as it starts from random weights. A step takes half the time of one of
    ``bccd``, so that there are twice as many.

    Command: ``vitrail train bccd/ --recipe bccd-detr``.
    """
    return {**_COMMON, "model.name": "detr_nano", "train.steps": 4000}


def bccd_detr_adamw() -> dict[str, Any]:
    """Train as ``bccd_detr`` does, with the optimiser of DETR's paper instead of Muon.

    The paper's decay, and three times its rate of 1e-4, as the model is small and starts from random weights.

    Command: ``vitrail train bccd/ --recipe bccd-detr-adamw``.
    """
    optimiser = {"optim.name": "adamw", "optim.learning_rate": 3e-4, "optim.weight_decay": 1e-4}
    return {**bccd_detr(), **optimiser}


def without(ablation: str) -> dict[str, Any]:
    """Train as ``bccd`` does, for 600 steps and without one of its parts.

    Command: ``vitrail train bccd/ --recipe bccd-no-denoising``.
    """
    return {**bccd(), "train.steps": 600, **ABLATIONS[ablation]}


RECIPES: dict[str, Recipe] = {
    "shapes": shapes,
    "bccd": bccd,
    "bccd-detr": bccd_detr,
    "bccd-detr-adamw": bccd_detr_adamw,
    **{name: partial(without, name) for name in ABLATIONS},
}
