"""A tiny ViT with random weights, saved as a run would leave it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from vitrail.data.preprocessing import Preprocessing
from vitrail.models import build, model_settings
from vitrail.models.checkpoint import LoadedModel

CHANGES: dict[str, Any] = {
    "image_size": (12, 8),
    "patch_size": 2,
    "stem": "patch",
    "width": 12,
    "depth": 2,
    "num_heads": 2,
}


def save_vit(
    folder: Path,
    *,
    class_names: Sequence[str] = ("blue", "green", "red"),
    image_size: tuple[int, int] = (12, 8),
    seed: int = 3,
    sharpness: float = 1.0,
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5),
    **changes: Any,
) -> Path:
    """Write the model into a folder, and return that; the head's weights are multiplied by the sharpness."""
    changes = CHANGES | {"image_size": image_size, "num_classes": len(class_names)} | changes
    torch.manual_seed(seed)
    model: Any = build("vit_nano", **changes)
    with torch.no_grad():
        model.head.weight.mul_(sharpness)
    LoadedModel(
        model,
        model_settings=model_settings("vit_nano", **changes),
        preprocessing=Preprocessing(image_size=image_size, mean=mean).model_dump(mode="json"),
        class_names=list(class_names),
        about={},
    ).save(folder)
    return folder
