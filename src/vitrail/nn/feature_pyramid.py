"""A detector's feature maps: convolutions with layer norm, independent of padding.

No statistics are taken over a batch or an image, and after each layer the padding is set to zero again, which
is what a convolution sees beyond an edge.

Batch norm fails with a detector's few images per step (Wu and He 2018), and group norm took half as long
again as layer norm on a CPU: forward and backward of a nano detector's stages, 8 images of 240x320, one core
of an AMD EPYC, bfloat16, torch 2.13: 477 ms and 329 ms, without any norm 220 ms.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.nn.blocks import MLP, DropPath, drop_path_stages
from vitrail.nn.convolution import Activation, ChannelLayerNorm, make_kernel, widen_to_stride
from vitrail.nn.detr_attention import DetrAttention, DetrEncoderBlock
from vitrail.nn.patches import pad_to_multiple
from vitrail.nn.sinusoidal import sinusoidal_grid_positions
from vitrail.nn.tokens import FeatureMap, Images, InputMap

FIRST_STRIDE = 4  # stride of the first stage in pixels; each further stage doubles it

Inside = Bool[Tensor, "batch 1 rows columns"]


class LayerNormedConvolution(nn.Module):
    """Convolution, layer norm over the channels, activation.

    The kernel is stored with its input channels last, as channels-last convolutions read it.

    Args:
        kernel_size: odd.
        activation: may work in place; None for none.

    Paper: Liu et al. 2022 (ConvNeXt), section 2.6, has layer norm in convolutional networks.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        activation: Activation | None = F.silu,
    ) -> None:
        super().__init__()
        self.stride, self.padding, self.activation = stride, kernel_size // 2, activation
        self.weight = make_kernel(in_channels, out_channels, kernel_size)
        self.norm = ChannelLayerNorm(out_channels)

    def forward(self, x: InputMap, inside: Inside | None = None) -> FeatureMap:
        """Convolve a feature map, zero outside of the image; the size is kept at stride one.

        Args:
            inside: which positions of the new map are inside the image; None where all are.
        """
        x = widen_to_stride(x, self.stride)
        x = F.conv2d(x, self.weight.permute(0, 3, 1, 2), stride=self.stride, padding=self.padding)
        x = self.norm(x)
        return keep_inside(x if self.activation is None else self.activation(x), inside)

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, stride={self.stride}"


class LayerNormedBlock(nn.Module):
    """``silu(shortcut(x) + branch(x))``, whose branch is two 3x3 convolutions.

    Paper: He et al. 2016, figure 5, left. Departs from the paper: layer norm, and SiLU for ReLU; a
    downsampling shortcut averages first (He et al. 2019, "ResNet-D").
    """

    def __init__(self, in_channels: int, out_channels: int, *, stride: int, drop_path: float = 0.0) -> None:
        super().__init__()
        self.first = LayerNormedConvolution(in_channels, out_channels, 3, stride=stride)
        self.second = LayerNormedConvolution(out_channels, out_channels, 3, activation=None)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or in_channels != out_channels:
            self.shortcut = LayerNormedConvolution(in_channels, out_channels, 1, activation=None)
        self.stride = stride
        self.activation = F.silu
        self.drop_path = DropPath(drop_path)

    def forward(self, x: InputMap, inside: Inside | None = None) -> FeatureMap:
        branch = self.second(self.first(x, inside), inside)
        if self.stride > 1:  # squares are averaged, and an odd map is zero-padded
            x = F.avg_pool2d(pad_to_multiple(x, (self.stride, self.stride)), self.stride)
        return keep_inside(self.activation(self.drop_path(branch) + self.shortcut(x)), inside)


class LayerNormedStem(nn.Module):
    """Two 3x3 convolutions with stride two; the first has half of the channels."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.first = LayerNormedConvolution(in_channels, channels // 2, 3, stride=2)
        self.second = LayerNormedConvolution(channels // 2, channels, 3, stride=2)

    def forward(self, images: Images, sizes: Int[Tensor, "batch 2"] | None = None) -> FeatureMap:
        """Return a feature map in channels-last memory, of a quarter of the height and width, rounded up.

        Args:
            images: each at the top left of its canvas, zero beside it.
            sizes: height and width of each in pixels; None without padding.
        """
        x = images.contiguous(memory_format=torch.channels_last)
        for stride, layer in ((2, self.first), (4, self.second)):
            x = layer(x, positions_inside(sizes, (images.shape[-2], images.shape[-1]), stride))
        return x


class ResidualStages(nn.Module):
    """A stem and stages of residual convolutions, exact for images of several sizes in one batch.

    Args:
        channels: of each stage; each but the first halves the resolution.
        drop_path: stochastic-depth rate of the last block, linear from 0.

    Paper: He et al. 2016, table 1, 18 layers, with other numbers of blocks and channels.
    """

    def __init__(self, channels: Sequence[int], depths: Sequence[int], *, drop_path: float) -> None:
        super().__init__()
        self.stem = LayerNormedStem(3, channels[0])
        self.stages = nn.ModuleList()
        before = channels[0]
        rates = drop_path_stages(drop_path, depths)
        for stage, (of_stage, after) in enumerate(zip(rates, channels, strict=True)):
            blocks = []
            for index, rate in enumerate(of_stage):
                stride = 2 if stage and not index else 1
                blocks.append(LayerNormedBlock(before, after, stride=stride, drop_path=rate))
                before = after
            self.stages.append(nn.ModuleList(blocks))

    def forward(
        self, images: Float[Tensor, "batch 3 height width"], sizes: Int[Tensor, "batch 2"] | None
    ) -> list[Float[Tensor, "batch _ _ _"]]:
        """Return the feature map of each stage, finest first, zero outside of the image.

        Images and sizes are those of ``LayerNormedStem``.
        """
        canvas = (images.shape[-2], images.shape[-1])
        x = self.stem(images, sizes)
        maps = []
        for stage, blocks in enumerate(self.stages):
            inside = positions_inside(sizes, canvas, FIRST_STRIDE * 2**stage)
            for block in blocks:  # type: ignore[attr-defined]
                x = block(x, inside)
            maps.append(x)
        return maps


def positions_inside(
    sizes: Int[Tensor, "batch 2"] | None, canvas: tuple[int, int], stride: int
) -> Inside | None:
    """Return which positions of a feature map have begun before their image ended; None without padding.

    Args:
        sizes: height and width of each image in pixels.
        canvas: height and width with padding.
    """
    if sizes is None:
        return None
    rows, columns = (torch.arange(0, pixels, stride, device=sizes.device) for pixels in canvas)
    return ((rows < sizes[:, :1])[:, :, None] & (columns < sizes[:, 1:])[:, None])[:, None]


def keep_inside(x: FeatureMap, inside: Inside | None) -> FeatureMap:
    """Set the positions outside of the image to zero."""
    return x if inside is None else x.masked_fill(~inside, 0.0)


class LevelEncoder(nn.Module):
    """Hybrid encoder: attention on the coarsest feature map, then top-down fusion into the finer ones.

    Args:
        channels: of each map, finest first; each map has half the resolution of the previous one.

    Paper: Zhao et al. 2024 (RT-DETR), section 4.2. Departs from the paper: there is no way back up to the
    coarse maps, and one bottleneck joins two maps.
    """

    def __init__(
        self, channels: Sequence[int], dim: int, *, num_heads: int, mlp_dim: int, num_blocks: int
    ) -> None:
        super().__init__()
        self.dim = dim
        self.inputs = nn.ModuleList(LayerNormedConvolution(n, dim, 1, activation=None) for n in channels)
        self.blocks = nn.ModuleList(
            DetrEncoderBlock(dim, attention=DetrAttention(dim, num_heads), mlp=MLP(dim, mlp_dim))
            for _ in range(num_blocks)
        )
        self.joins = nn.ModuleList(LevelJoin(dim) for _ in channels[1:])

    def forward(
        self,
        maps: Sequence[Float[Tensor, "batch _ _ _"]],
        inside: Sequence[Bool[Tensor, "batch 1 _ _"] | None],
    ) -> list[Float[Tensor, "batch _ _ _"]]:
        """Return one new feature map for each, of the same size.

        Args:
            maps: zero outside of the image.
            inside: which positions of each are inside the image; None where all are.
        """
        levels = [layer(each, mask) for layer, each, mask in zip(self.inputs, maps, inside, strict=True)]
        levels[-1] = keep_inside(self._attend(levels[-1], inside[-1]), inside[-1])
        for index in reversed(range(len(self.joins))):
            levels[index] = self.joins[index](levels[index], levels[index + 1], inside[index])
        return levels

    def _attend(self, x: Tensor, inside: Tensor | None) -> Tensor:
        grid = (x.shape[-2], x.shape[-1])
        may_attend = None if inside is None else inside.flatten(2)[:, None]  # b 1 1 patches
        tokens = x.flatten(2).transpose(1, 2)
        positions = sinusoidal_grid_positions(grid, self.dim, device=x.device)[None].to(x.dtype)
        for block in self.blocks:
            tokens = block(tokens, positions=positions, may_attend=may_attend, grid=grid)
        return tokens.transpose(1, 2).reshape(x.shape)


class LevelJoin(nn.Module):
    """Fuse a feature map with a coarser one of half its resolution, by a residual bottleneck."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.narrow = LayerNormedConvolution(2 * dim, dim // 2, 1)
        self.spread = LayerNormedConvolution(dim // 2, dim // 2, 3)
        self.widen = LayerNormedConvolution(dim // 2, dim, 1, activation=None)

    def forward(
        self,
        fine: FeatureMap,
        coarse: Float[Tensor, "batch dim coarse_rows coarse_columns"],
        inside: Inside | None = None,
    ) -> FeatureMap:
        """Return the new fine map; both maps are zero outside of the image.

        Args:
            inside: which positions of the fine map are inside the image; None where all are.
        """
        # Each coarse position covers 2x2 fine ones, some of them missing from an odd map.
        above = F.interpolate(coarse, scale_factor=2, mode="nearest")
        above = above[..., : fine.shape[-2], : fine.shape[-1]]
        branch = self.narrow(torch.cat((fine, above), dim=1), inside)
        return fine + self.widen(self.spread(branch, inside), inside)
