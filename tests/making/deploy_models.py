"""Small untrained models as they would be loaded, with inputs for them, for tests of engines."""

from __future__ import annotations

import torch
from torch import Tensor

from making.small_models import DETR
from vitrail.data.box_preprocessing import BoxPreprocessing
from vitrail.data.preprocessing import Preprocessing
from vitrail.models import build, model_settings
from vitrail.models.checkpoint import LoadedModel

NAMES = ["blue", "green", "red"]
SMALL_VIT = {
    "image_size": (24, 16),
    "patch_size": 4,
    "stem": "patch",
    "width": 96,  # so that its layers are large enough to be arranged for a kernel
    "depth": 2,
    "num_heads": 3,
    "num_classes": 3,
}


def small_vit() -> LoadedModel:
    """Return a classifier of three colours."""
    torch.manual_seed(3)
    model = build("vit_nano", **SMALL_VIT).eval()
    preprocessing = Preprocessing(image_size=(24, 16)).model_dump(mode="json")
    return LoadedModel(model, model_settings("vit_nano", **SMALL_VIT), preprocessing, NAMES, {})


def small_detr() -> LoadedModel:
    """Return a detector."""
    torch.manual_seed(1)
    model = build("detr_r50", **DETR).eval()
    preprocessing = BoxPreprocessing(image_size=(48, 64)).model_dump(mode="json")
    names = [f"class {label}" for label in range(DETR["num_classes"])]
    return LoadedModel(model, model_settings("detr_r50", **DETR), preprocessing, names, {})


def images_for(loaded: LoadedModel, batch: int = 5) -> Tensor:
    """Return normalised images of smooth values, of the size that a classifier takes."""
    height, width = loaded.preprocessing["image_size"]
    coarse = torch.randn(batch, 3, 5, 5, generator=torch.Generator().manual_seed(2))
    return torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
