"""Image features for captioners and detectors: a feature map of any image model, frozen or trained."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import ConfigError
from vitrail.models.contract import CaptionModelConfig, ImageModelConfig
from vitrail.models.weights.transfer import copy_encoder
from vitrail.nn.feature_maps import map_to_tokens
from vitrail.nn.tokens import Grid, Images


class ImageFeatures(NamedTuple):
    """Encoded images: feature maps as tokens."""

    features: Float[Tensor, "batch patches dim"]
    """Feature vectors, row by row."""
    grid: Grid


class ImageEncoder(nn.Module):
    """Encode images with an image model without its head.

    Args:
        config: of the image model.
        stage: stage that is read, counted from the last; later ones are left out.
        pool: average-pool the feature map over squares of so many rows and columns.
        is_frozen: keep the initial weights, and stay in evaluation mode.

    Raises:
        ConfigError: the model does not have that stage.
    """

    def __init__(
        self, config: ImageModelConfig, *, stage: int = -1, pool: int = 1, is_frozen: bool = False
    ) -> None:
        super().__init__()
        self.is_frozen, self.pool, self.stage = is_frozen, pool, stage
        self.model: Any = self._cut(config.build(), config.name)
        if self.is_frozen:
            self.requires_grad_(False)
        with torch.device("meta"):  # the shapes alone
            twin: Any = self._cut(config.build(), config.name).eval()
            images = torch.zeros(1, config.num_channels, *config.image_size)
            made = self._pooled(twin, images)
        self.dim, self.grid = made.shape[1], (made.shape[2], made.shape[3])
        """Feature width, and rows and columns of the feature map at the native image size."""

    def forward(self, images: Images) -> ImageFeatures:
        """Encode images; without gradients if the encoder is frozen."""
        with torch.no_grad() if self.is_frozen else nullcontext():
            x = self._pooled(self.model, images)
        return ImageFeatures(map_to_tokens(x), (x.shape[-2], x.shape[-1]))

    def train(self, mode: bool = True) -> Self:
        """A frozen encoder stays in evaluation mode."""
        return super().train(mode and not self.is_frozen)

    def take_weights(self, pretrained: nn.Module) -> None:
        """Copy the weights of an image model; see ``copy_encoder``."""
        copy_encoder(self.model, pretrained)

    def _cut(self, model: nn.Module, name: str) -> nn.Module:
        """Cut off the head, and the stages after the one that is read."""
        model.head = nn.Identity()
        if self.stage == -1:
            return model
        stages = getattr(model, "stages", ())
        if not hasattr(model, "final") or len(stages) < -self.stage:
            raise ConfigError(
                f"model.encoder_stage is {self.stage}, and the encoder {name} has "
                f"{len(stages) or 'one'} stage{'s' if len(stages) else ''}",
                expected="a stage that the encoder has, counted from the last, -1",
                remedy="Choose an encoder with stages, such as resnet18, or leave the setting at -1",
            )
        model.stages = nn.ModuleList([*stages][: self.stage + 1])
        model.final = nn.Identity()
        return model

    def _pooled(self, model: Any, images: Tensor) -> Tensor:
        x = model.features(images)[-1]
        if hasattr(model, "final"):
            x = model.final(x)
        if self.pool > 1:
            x = F.avg_pool2d(x, self.pool, ceil_mode=True, count_include_pad=False)
        return x


def build_encoder(config: CaptionModelConfig) -> ImageEncoder:
    """Build the encoder of a captioner."""
    return ImageEncoder(
        config.encoder_config, stage=config.encoder_stage, pool=config.pool, is_frozen=config.encoder_frozen
    )
