"""What the head of a frozen image model reads: one vector for each image, whatever the model."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import ConfigError
from vitrail.data.preprocessing import Preprocessing
from vitrail.models.checkpoint import LoadedModel
from vitrail.tasks.other_use import other_use

WITH_A_TOWER = "contrastive"  # the kind of a model whose part ``image`` reads images alone


def image_part(loaded: LoadedModel) -> tuple[nn.Module, Preprocessing]:
    """Return the part of a model that reads images alone, and how they are prepared for it.

    Raises:
        ConfigError: the model has none with a head: it finds boxes, writes captions or translates.
    """
    kind = loaded.preprocessing.get("task", "classification")
    part: Any = loaded.model.image if kind == WITH_A_TOWER else loaded.model
    if kind not in ("classification", WITH_A_TOWER) or not isinstance(getattr(part, "head", None), nn.Module):
        raise ConfigError(
            f"{loaded.model_settings.get('name', 'the model')} has no features of whole images",
            expected="a model that classifies images, or a CLIP",
            remedy=other_use(loaded.preprocessing),
        )
    fields = {name: loaded.preprocessing[name] for name in Preprocessing.model_fields}
    return part, Preprocessing.from_tree(fields)


def read_features(
    model: nn.Module, images: Float[Tensor, "batch 3 height width"]
) -> Float[Tensor, "batch dim"]:
    """Return what the head of an image model is given for each image, in float32.

    For a ViT that is the normalised class token or the mean of its tokens, for a pyramid the mean of the last
    map, for CLIP what its projection reads. The two tokens of a distilled model are set one behind the other.

    Args:
        model: an image model with the part ``head``, in evaluation mode.
        images: normalised.
    """
    read: list[Tensor] = []

    def remember(module: nn.Module, given: tuple[Any, ...]) -> None:
        read.append(given[0])

    head: Any = model.head
    handle = head.register_forward_pre_hook(remember)
    try:
        model(images)
    finally:
        handle.remove()
    return read[0].detach().flatten(1).float()


def feature_width(model: nn.Module, preprocessing: Preprocessing) -> int:
    """Return how many numbers an image has, by passing one grey image through the model."""
    parameter = next(model.parameters())
    images = torch.zeros(1, 3, *preprocessing.image_size, device=parameter.device)
    with torch.inference_mode():
        return read_features(model, images).shape[1]
