"""Image features for captioning: a feature map of any image model, frozen or trained."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.models.contract import CaptionModelConfig
from vitrail.nn.tokens import Grid, Images, map_to_tokens

MAX_LISTED = 4
LEFT_OUT = ("head", "final", "stages")  # parts of an image model that an encoder may leave out


class ImageFeatures(NamedTuple):
    """Encoded images: feature maps as tokens."""

    features: Float[Tensor, "batch patches dim"]
    """Feature vectors, row by row."""
    grid: Grid


class ImageEncoder(nn.Module):
    """Encode images with an image model without its head.

    Raises:
        ConfigError: the config names no known model, or a stage that the model does not have.
    """

    def __init__(self, config: CaptionModelConfig) -> None:
        super().__init__()
        self.is_frozen, self.pool, self.stage = config.encoder_frozen, config.pool, config.encoder_stage
        self.model: Any = self._cut(config.encoder_config.build(), config.encoder)
        if self.is_frozen:
            self.requires_grad_(False)
        with torch.device("meta"):  # the shapes alone
            twin: Any = self._cut(config.encoder_config.build(), config.encoder).eval()
            images = torch.zeros(1, config.encoder_config.num_channels, *config.image_size)
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
        """Copy the weights of an image model with the same settings, except for parts that are not used here.

        Raises:
            CheckpointError: names or shapes of its tensors differ; nothing is copied then.
        """
        targets, sources = self.model.state_dict(), pretrained.state_dict()
        faults = [
            name for name in targets if name not in sources or sources[name].shape != targets[name].shape
        ]
        faults += [name for name in sources if name not in targets and name.split(".")[0] not in LEFT_OUT]
        if faults:
            more = f" and {len(faults) - MAX_LISTED} more" if len(faults) > MAX_LISTED else ""
            raise CheckpointError(
                f"the weights differ from the encoder in {', '.join(sorted(faults)[:MAX_LISTED])}{more}",
                expected="weights of the image model that model.encoder names, with the same settings",
                remedy="Leave model.encoder, model.encoder_changes and data.image_size to the weights",
            )
        with torch.no_grad():
            for name, target in targets.items():
                target.copy_(sources[name])

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
