"""What makes the maps that a detector reads: stages of its own, or those of a named image model."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.core.config import ImageSize
from vitrail.core.errors import ConfigError
from vitrail.models.skeletons import Backbone, Pyramid
from vitrail.nn.layer_normed import LayerNormedBlock, LayerNormedStem, cells_inside, keep_inside

FIRST_STRIDE = 4  # pixels between the cells of the first stage; each further stage doubles them


class ResidualStages(nn.Module):
    """A stem and stages of residual convolutions, exact for images of several sizes in one batch.

    Args:
        channels: of each stage's map; each stage but the first halves rows and columns.
        depths: blocks of each stage.
        drop_path: probability that a sample skips the branch of the last block; it rises linearly from zero.

    Paper: He et al. 2016, table 1, 18 layers, with other numbers of blocks and channels.
    """

    def __init__(self, channels: Sequence[int], depths: Sequence[int], *, drop_path: float) -> None:
        super().__init__()
        self.stem = LayerNormedStem(3, channels[0])
        self.stages = nn.ModuleList()
        rates = iter([drop_path * index / max(sum(depths) - 1, 1) for index in range(sum(depths))])
        before = channels[0]
        for stage, (depth, after) in enumerate(zip(depths, channels, strict=True)):
            blocks = []
            for index in range(depth):
                stride = 2 if stage and not index else 1
                blocks.append(LayerNormedBlock(before, after, stride=stride, drop_path=next(rates)))
                before = after
            self.stages.append(nn.ModuleList(blocks))

    def forward(
        self, images: Float[Tensor, "batch 3 height width"], sizes: Int[Tensor, "batch 2"] | None
    ) -> list[Float[Tensor, "batch _ _ _"]]:
        """Return the map of each stage, finest first, zero where it is not the image's.

        Args:
            images: each at the top left of its place, zero beside it.
            sizes: height and width of each in pixels; None where there is no padding.
        """
        canvas = (images.shape[-2], images.shape[-1])
        x = self.stem(images, sizes)
        maps = []
        for stage, blocks in enumerate(self.stages):
            inside = cells_inside(sizes, canvas, FIRST_STRIDE * 2**stage)
            for block in blocks:  # type: ignore[attr-defined]
                x = block(x, inside)
            maps.append(x)
        return maps


class NamedStages(nn.Module):
    """The stages of an image model: the first layer sees zeros beside an image, later ones what came of them.

    Args:
        backbone: makes the map of each stage.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(
        self, images: Float[Tensor, "batch 3 height width"], sizes: Int[Tensor, "batch 2"] | None
    ) -> list[Float[Tensor, "batch _ _ _"]]:
        """Return the map of each stage; arguments and result are those of ``ResidualStages``."""
        canvas = (images.shape[-2], images.shape[-1])
        return [
            keep_inside(x, cells_inside(sizes, canvas, FIRST_STRIDE * 2**stage))
            for stage, x in enumerate(self.backbone(images))
        ]


def build_backbone(
    name: str | None,
    *,
    width: int,
    depths: Sequence[int],
    num_stages: int,
    image_size: ImageSize,
    drop_path: float,
) -> tuple[ResidualStages | NamedStages, tuple[int, ...]]:
    """Return what makes the map of every stage, with fresh weights, and the channels of each.

    Args:
        name: of an image model; None for stages of residual convolutions.
        width: channels of the first of these; each further stage doubles them.
        depths: blocks of each of these, as many at least as ``num_stages``.
        num_stages: how many stages are wanted.
        image_size: height and width that a named model is made for.
        drop_path: probability that a sample skips the branch of the last block.

    Raises:
        ConfigError: there is no such model, or it has no such stages.
    """
    if name is not None:
        return _build_named_stages(name, num_stages=num_stages, image_size=image_size, drop_path=drop_path)
    channels = tuple(width * 2**stage for stage in range(num_stages))
    return ResidualStages(channels, depths[:num_stages], drop_path=drop_path), channels


def _build_named_stages(
    name: str, *, num_stages: int, image_size: ImageSize, drop_path: float
) -> tuple[NamedStages, tuple[int, ...]]:
    from vitrail.models import MODELS  # which imports this folder

    settings = MODELS[name]
    channels = getattr(settings, "channels", ())
    if not isinstance(channels, tuple) or len(channels) < num_stages:
        raise ConfigError(
            f"model.backbone is {name}",
            expected=f"an image model of {num_stages} stages with strides from {FIRST_STRIDE} on",
            remedy="Choose a Swin, BiT or ResNet, such as swin_t, or null for the detector's own stages",
        )
    model = settings.with_changes({"image_size": image_size, "drop_path": drop_path}).build()
    assert isinstance(model, Pyramid), f"{name} has the channels of stages, but is no pyramid"
    backbone = Backbone(stem=model.stem, stages=[*model.stages][:num_stages])
    return NamedStages(backbone), channels[:num_stages]
