"""What a text draws from each place of an image, in a model of both."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import ConfigError
from vitrail.interpret.relevance import class_relevance


class _Cosines(nn.Module):
    """A head followed by the cosine with each text, times a scale."""

    def __init__(self, head: nn.Module, texts: Tensor, scale: float) -> None:
        super().__init__()
        self.head, self.texts, self.scale = head, texts, scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * (F.normalize(self.head(x).float(), dim=-1) @ self.texts.T)


def text_relevance(
    model: nn.Module,
    images: Float[Tensor, "batch channels height width"],
    texts: Float[Tensor, "batch dim"],
) -> Float[Tensor, "batch rows columns"]:
    """Return how much the cosine of an image and its text draws from each cell of the image.

    The text takes the place of a class: a tower whose head is followed by the cosine with each text is a
    classifier, for which ``class_relevance`` has the rules.

    Args:
        model: of images and texts, in evaluation mode, whose image tower attends in all its layers.
        images: normalised, on the model's device.
        texts: the embedding of one text for each image, of length one.

    Raises:
        ConfigError: the model has no image tower with a head, or that mixes without attention.

    Paper: Chefer, Gur and Wolf 2021, section 3, of the image tower alone.
    """
    classifier = text_classifier(model, texts.to(images.device))
    return class_relevance(classifier, images, torch.arange(len(images), device=images.device))


def text_classifier(model: nn.Module, texts: Float[Tensor, "texts dim"], scale: float = 1.0) -> nn.Module:
    """Return the image tower with the cosine with each text in the place of classes; it shares the weights.

    Args:
        model: of images and texts.
        texts: their embeddings, of length one, on the model's device.
        scale: factor of the cosines.

    Raises:
        ConfigError: the model has no image tower with a head.
    """
    tower = getattr(model, "image", None)
    head = getattr(tower, "head", None)
    if not isinstance(tower, nn.Module) or not isinstance(head, nn.Module):
        raise ConfigError(
            f"the relevance of a text was asked of a {type(model).__name__}",
            expected="a CLIP of this library",
            remedy="Use vitrail explain for models of images alone",
        )
    classifier = copy.copy(tower)  # the same weights under another head
    classifier._modules = {**tower._modules, "head": _Cosines(head, texts, scale)}
    return classifier
