"""DETR: a ResNet backbone and a Transformer that predicts a set of boxes.

Paper: Carion et al. 2020. Input: any height and width.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal, Self

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from vitrail.core.errors import ConfigError
from vitrail.models.contract import (
    AuxiliaryOutput,
    BoxTargets,
    DetectionModelConfig,
    DetectionOutput,
    ModelConfig,
    check_inputs,
    is_padded,
)
from vitrail.models.image_encoder import ImageEncoder
from vitrail.models.resnet import Backbone, ResNetConfig, build_backbone
from vitrail.nn.blocks import MLP
from vitrail.nn.convolution import freeze_batch_norm
from vitrail.nn.detr_attention import (
    DetrAttention,
    DetrDecoderBlock,
    DetrEncoderBlock,
    axes_inside,
    sine_positions_inside,
)
from vitrail.nn.feature_maps import map_to_tokens, tokens_to_map
from vitrail.nn.feature_pyramid import keep_inside, positions_inside
from vitrail.nn.linear import Linear


class DETRConfig(DetectionModelConfig):
    """Settings of a DETR; the defaults are those of DETR-R50, trained on COCO."""

    family: ClassVar[str] = "detr"
    paper: ClassVar[str] = "Carion et al. 2020"
    position_policy: ClassVar[str] = (
        "sines and cosines of each patch's row and column as shares of the image without its padding, added "
        "to queries and keys of every attention; computed for any grid"
    )
    size_policy: ClassVar[str] = (
        "each convolution is padded with zeros, so every size divides; padding is set to zero and hidden "
        "from attention, but convolutions at its border see it, as in the published models"
    )
    scoring: ClassVar[Literal["softmax", "sigmoid"]] = "softmax"

    backbone_width: int = Field(default=64, ge=4)
    """Channels of the backbone's stem, and of its first stage's 3x3 convolutions."""
    backbone_depths: tuple[int, ...] = (3, 4, 6, 3)
    """Bottleneck blocks in each stage of the backbone."""
    backbone_norm: Literal["frozen", "batch"] = "frozen"
    """Batch norm of the backbone: frozen, for pretrained weights and small batches; or learned, for a
    backbone trained from scratch."""
    num_frozen: int = Field(default=2, ge=0)
    """Frozen parts of the backbone, from the stem on (published code: the stem and the first stage); 0 for a
    backbone trained from scratch."""
    dilated: bool = False
    """Whether the last stage keeps its resolution and dilates its 3x3 convolutions ("DC5")."""
    width: int = Field(default=256, ge=4)
    """Token width in the Transformer."""
    hidden_dim: int = Field(default=2048, ge=1)
    """Width of the hidden layer of each MLP."""
    num_heads: int = Field(default=8, ge=1)
    """Attention heads; divides ``width``."""
    encoder_depth: int = Field(default=6, ge=0)
    """Number of blocks of the encoder."""
    decoder_depth: int = Field(default=6, ge=1)
    """Number of blocks of the decoder."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout probability of branches, of hidden values of MLPs and of attention weights."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.width % self.num_heads:
            raise ValueError(f"num_heads {self.num_heads} does not divide width {self.width}")
        if self.width % 4:
            raise ValueError(
                f"sines and cosines of rows and columns need a width divisible by 4, not {self.width}"
            )
        if self.backbone is None and self.num_frozen > len(self.backbone_depths) + 1:
            raise ValueError(
                f"num_frozen {self.num_frozen} is more than the stem and {len(self.backbone_depths)} stages"
            )
        self.resnet  # noqa: B018  checks the settings of the backbone
        return self

    @property
    def resnet(self) -> ResNetConfig:
        """Settings of the detector's own backbone."""
        return ResNetConfig(
            width=self.backbone_width,
            depths=self.backbone_depths,
            norm=self.backbone_norm,
            dilated=self.dilated,
            image_size=self.image_size,
        )

    def build(self) -> DETR:
        return DETR(self)


class DETR(nn.Module):
    """Predict a fixed number of boxes, one per query, with a Transformer over a feature map.

    Paper: Carion et al. 2020, section 3.2 and appendix A.3.
    """

    def __init__(self, config: DETRConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.backbone, channels = _build_backbone(config)
        self.projection = Linear(channels, width)  # the paper's 1x1 convolution
        dropout = config.dropout
        attention = partial(DetrAttention, width, config.num_heads, dropout=dropout)
        mlp = partial(MLP, width, config.hidden_dim, activation=nn.ReLU, dropout=dropout)
        self.encoder = nn.ModuleList(
            DetrEncoderBlock(width, attention=attention(), mlp=mlp(), dropout=dropout)
            for _ in range(config.encoder_depth)
        )
        self.queries = nn.Parameter(torch.randn(config.num_queries, width))
        self.decoder = nn.ModuleList(
            DetrDecoderBlock(
                width, self_attention=attention(), cross_attention=attention(), mlp=mlp(), dropout=dropout
            )
            for _ in range(config.decoder_depth)
        )
        self.decoder_norm = nn.LayerNorm(width)
        self.class_head = Linear(width, config.num_classes + 1)
        self.box_head = nn.Sequential(
            Linear(width, width), nn.ReLU(), Linear(width, width), nn.ReLU(), Linear(width, 4)
        )
        _draw_weights(self)

    def forward(
        self,
        images: Float[Tensor, "batch 3 height width"],
        sizes: Int[Tensor, "batch 2"] | None = None,
        targets: BoxTargets | None = None,
    ) -> DetectionOutput:
        """Predict the boxes of each image; in training, also those of every decoder block but the last.

        The padding is set to zero; targets are ignored.

        Raises:
            DataError: invalid images or sizes.
        """
        states = self._decode(images, sizes)
        *before, last = [self._answer(each) for each in (states if self.training else states[-1:])]
        return DetectionOutput(*last, tuple(AuxiliaryOutput(*each) for each in before))

    def by_block(self, images: Tensor, sizes: Tensor | None = None) -> list[DetectionOutput]:
        """Return what each decoder block predicts, the first block first."""
        return [DetectionOutput(*self._answer(state)) for state in self._decode(images, sizes)]

    def _decode(self, images: Tensor, sizes: Tensor | None) -> list[Tensor]:
        """Return the queries after each decoder block."""
        check_inputs(images, sizes)
        inside = None
        if sizes is not None and is_padded(images, sizes):
            images = keep_inside(images, positions_inside(sizes, (images.shape[-2], images.shape[-1]), 1))
        else:
            sizes = None

        # Encoder: the feature map as tokens.
        x = self._feature_map(images)
        grid = (x.shape[-2], x.shape[-1])
        x = self.projection(map_to_tokens(x))
        if sizes is not None:
            rows, columns = axes_inside(sizes, (images.shape[-2], images.shape[-1]), grid)
            inside = (rows[:, :, None] & columns[:, None]).flatten(1)[:, None, None]  # b 1 1 patches
        else:  # one row of positions for all images
            rows, columns = (torch.ones(1, length, dtype=torch.bool, device=x.device) for length in grid)
        positions = sine_positions_inside(rows, columns, self.config.width).to(x.dtype)
        for block in self.encoder:
            x = block(x, positions=positions, may_attend=inside, grid=grid)

        # Decoder: queries attend to the whole image and to each other.
        query_positions = self.queries.to(x.dtype)[None]
        state = query_positions.new_zeros(x.shape[0], *self.queries.shape)
        states = []
        for block in self.decoder:
            state = block(
                state, x, positions=query_positions, context_positions=positions, may_attend=inside, grid=grid
            )
            states.append(state)
        return states

    def _feature_map(self, images: Tensor) -> Tensor:
        if isinstance(self.backbone, ImageEncoder):
            return tokens_to_map(*self.backbone(images))
        return self.backbone(images)[-1]

    def _answer(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits and the boxes of one decoder block."""
        state = self.decoder_norm(state)
        return self.class_head(state), self.box_head(state).sigmoid()


VARIANTS: dict[str, ModelConfig] = {
    "detr_r50": DETRConfig(),  # Carion et al. 2020, table 1
    "detr_r101": DETRConfig(backbone_depths=(3, 4, 23, 3)),  # Carion et al. 2020, table 1
    "detr_r50_dc5": DETRConfig(dilated=True),  # Carion et al. 2020, table 1
    "detr_r101_dc5": DETRConfig(backbone_depths=(3, 4, 23, 3), dilated=True),  # Carion et al. 2020, table 1
    "detr_nano": DETRConfig(  # as large as sdetr_nano, for comparison
        image_size=(320, 320),
        backbone_width=24,
        backbone_depths=(1, 1, 1, 1),
        backbone_norm="batch",
        num_frozen=0,
        width=128,
        hidden_dim=512,
        encoder_depth=3,
        decoder_depth=3,
    ),
    "detr_tiny": DETRConfig(  # ours, for small pictures of few objects, such as the built-in shapes
        image_size=(96, 96),
        num_queries=16,
        backbone_width=32,
        backbone_depths=(1, 1),
        backbone_norm="batch",
        num_frozen=0,
        width=128,
        hidden_dim=256,
        encoder_depth=2,
        decoder_depth=3,
        dropout=0.0,
    ),
}


def _build_backbone(config: DETRConfig) -> tuple[Backbone | ImageEncoder, int]:
    """Return a backbone with fresh weights, and the channels of its last feature map."""
    if config.backbone is None:
        return build_backbone(config.resnet, num_frozen=config.num_frozen), config.resnet.channels[-1]
    encoder = ImageEncoder(config.backbone_config)
    if config.backbone_norm == "frozen":
        freeze_batch_norm(encoder)
    parts = [*filter(None, [getattr(encoder.model, "stem", None)]), *getattr(encoder.model, "stages", ())]
    if config.num_frozen > len(parts):
        raise ConfigError(
            f"num_frozen is {config.num_frozen}, more than the parts of {config.backbone}: {len(parts)}",
            expected="no more than its stem and stages",
            remedy="Set model.num_frozen to 0",
        )
    for part in parts[: config.num_frozen]:
        part.requires_grad_(False)
    return encoder, encoder.dim


def _draw_weights(model: DETR) -> None:
    """Xavier initialisation of the Transformer, with queries, keys and values as one matrix.

    Heads and projection keep torch's own initial weights.

    Paper: Carion et al. 2020, appendix A.4.
    """
    for part in (model.encoder, model.decoder):
        for module in part.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
            if isinstance(module, DetrAttention):
                nn.init.zeros_(module.qkv.bias)
                nn.init.zeros_(module.projection.bias)
