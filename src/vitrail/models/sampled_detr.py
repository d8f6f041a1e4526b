"""A DETR for small data: two-stage queries, multi-scale deformable attention and denoising.

DETR needs much data because it must learn where to look (Wang et al. 2022, "Towards data-efficient detection
transformers"). Here each query starts with a box, samples feature maps of several resolutions in and around
it (Zhu et al. 2021, Deformable DETR), refines it block by block, and is also trained with denoising queries
(Zhang et al. 2023, DINO). Input: any height and width.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

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
from vitrail.models.resnet import Backbone
from vitrail.models.weights.transfer import copy_encoder
from vitrail.nn.blocks import MLP
from vitrail.nn.box_queries import (
    BoxHead,
    BoxQueries,
    LearnedQueries,
    NoisyBoxes,
    Proposals,
    ProposedQueries,
    add_box_noise,
    box_logits,
    box_positions,
    first_queries,
    self_attention_mask,
    silence_missing,
)
from vitrail.nn.convolution import freeze_batch_norm
from vitrail.nn.deformable import DeformableAttention, DeformableDecoderBlock, FeatureLevels, join_levels
from vitrail.nn.detr_attention import DetrAttention
from vitrail.nn.feature_pyramid import (
    FIRST_STRIDE,
    LevelEncoder,
    ResidualStages,
    keep_inside,
    positions_inside,
)


class SampledDETRConfig(DetectionModelConfig):
    """Settings of a DETR with deformable attention."""

    family: ClassVar[str] = "sampled_detr"
    paper: ClassVar[str] = (
        "after Zhu et al. 2021 (Deformable DETR), Zhang et al. 2023 (DINO), Zhao et al. 2024 (RT-DETR)"
    )
    position_policy: ClassVar[str] = (
        "sines and cosines of the queries' boxes, as fractions of the image; fixed sines and cosines in the "
        "attention of the coarsest map; computed for any size"
    )
    size_policy: ClassVar[str] = (
        "convolutions are padded with zeros, so every size divides; padding is set to zero after every layer "
        "and changes nothing; what it holds does so in no backbone, its extent in one that is named"
    )
    scoring: ClassVar[Literal["softmax", "sigmoid"]] = "sigmoid"

    backbone_norm: Literal["frozen", "batch"] = "batch"
    """Batch norm of a named backbone: frozen, for pretrained weights and small batches; or learned."""
    backbone_width: int = Field(default=32, ge=2)
    """Channels of the residual backbone's first stage; each further stage doubles them."""
    backbone_depths: tuple[int, ...] = (1, 1, 1, 1)
    """Blocks of each stage of the residual backbone, of stride 4, 8, 16 and so on."""
    drop_path: float = Field(default=0.0, ge=0, lt=1)
    """Stochastic-depth rate of the backbone's last block, linear from 0."""
    strides: tuple[int, ...] = (8, 16, 32)
    """Strides in pixels of the feature maps, each twice the previous one."""
    width: int = Field(default=128, ge=8)
    """Width of tokens and queries."""
    hidden_dim: int = Field(default=512, ge=1)
    """Width of the hidden layer of each MLP."""
    num_heads: int = Field(default=8, ge=1)
    """Attention heads; divides ``width``."""
    num_points: int = Field(default=4, ge=1)
    """Sampling points per head and feature map."""
    encoder_depth: int = Field(default=1, ge=0)
    """Attention blocks on the coarsest feature map."""
    decoder_depth: int = Field(default=3, ge=1)
    """Number of blocks of the decoder."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout probability of the decoder's branches."""
    queries: Literal["proposed", "learned"] = "proposed"
    """Initial queries: the highest-scoring proposals (two-stage), or learned ones, the same for every
    image."""
    num_proposals: int = Field(default=300, ge=1)
    """Proposals per image in training, at least ``num_queries``, as many as become queries."""
    proposal_matches: int = Field(default=1, ge=1)
    """Proposals matched with each ground-truth box in training. With several (one-to-many), frequent classes
    crowd out rare ones: with 4, and 13 boxes per image, the rarest class was lost."""
    num_denoising: int = Field(default=100, ge=0, multiple_of=2)
    """Denoising queries per image in training, half of them negatives; 0 for none."""
    label_noise: float = Field(default=0.25, ge=0, le=1)
    """Probability that the label of a denoising query is drawn anew (Zhang et al. 2023)."""
    box_noise: float = Field(default=1.0, gt=0)
    """Maximum shift of its corners, relative to half its width and height (Zhang et al. 2023)."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.width % self.num_heads:
            raise ValueError(f"num_heads {self.num_heads} does not divide width {self.width}")
        if self.width % 8:
            raise ValueError(f"sines and cosines of a box need a width divisible by 8, not {self.width}")
        first = self.strides[0] if self.strides else 0
        if first < FIRST_STRIDE or self.strides != tuple(first * 2**i for i in range(len(self.strides))):
            raise ValueError(f"strides {self.strides} do not double from one to the next, from 4 on")
        if first & (first - 1):
            raise ValueError(f"strides {self.strides} are not powers of two")
        if self.backbone is None and (min(self.backbone_depths, default=0) < 1 or self.backbone_width % 2):
            raise ValueError("backbone_depths are greater than zero, and backbone_width is even")
        if self.backbone is None and len(self.backbone_depths) <= self.stages[-1]:
            raise ValueError(
                f"stride {self.strides[-1]} needs {self.stages[-1] + 1} stages, not {self.backbone_depths}"
            )
        return self

    @property
    def stages(self) -> tuple[int, ...]:
        """Indices of the backbone stages that are read."""
        return tuple((stride // FIRST_STRIDE).bit_length() - 1 for stride in self.strides)

    def build(self) -> SampledDETR:
        return SampledDETR(self)


class SampledDETR(nn.Module):
    """Propose a box per position of the feature maps, and refine the best with a deformable decoder."""

    def __init__(self, config: SampledDETRConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.backbone, channels = _build_backbone(config)
        self.encoder = LevelEncoder(
            [channels[stage] for stage in config.stages],
            width,
            num_heads=config.num_heads,
            mlp_dim=config.hidden_dim,
            num_blocks=config.encoder_depth,
        )
        self.queries: ProposedQueries | LearnedQueries
        if config.queries == "proposed":
            self.queries = ProposedQueries(width, config.num_classes)
        else:
            self.queries = LearnedQueries(width, config.num_queries)
        self.positions = MLP(width, width)
        self.decoder = nn.ModuleList(_build_decoder_block(config) for _ in range(config.decoder_depth))
        self.heads = nn.ModuleList(BoxHead(width, config.num_classes) for _ in range(config.decoder_depth))
        self.class_content = nn.Embedding(config.num_classes, width) if config.num_denoising else None

    def forward(
        self,
        images: Float[Tensor, "batch 3 height width"],
        sizes: Int[Tensor, "batch 2"] | None = None,
        targets: BoxTargets | None = None,
    ) -> DetectionOutput:
        """Predict the boxes of each image, as ``DetectionModel``; the padding is ignored.

        In training, ``auxiliary`` holds the predictions of every decoder block, the proposals, and with
        targets those of the denoising queries.

        Raises:
            DataError: invalid images or sizes.
        """
        check_inputs(images, sizes)
        levels = self._look(images, sizes)
        queries, proposals = self._begin(levels)
        noisy = self._noise(targets)
        logits, boxes = self._decode(levels, queries, noisy)
        if not self.training:
            return DetectionOutput(logits[-1], boxes[-1])
        return self._with_auxiliary(logits, boxes, proposals, noisy)

    def by_block(self, images: Tensor, sizes: Tensor | None = None) -> list[DetectionOutput]:
        """Return what each decoder block predicts, the first block first."""
        check_inputs(images, sizes)
        levels = self._look(images, sizes)
        answers = self._decode(levels, self._begin(levels)[0], None)
        return [DetectionOutput(*answer) for answer in zip(*answers, strict=True)]

    def _look(self, images: Tensor, sizes: Tensor | None) -> FeatureLevels:
        """Return the feature maps: backbone and hybrid encoder."""
        canvas, strides = (images.shape[-2], images.shape[-1]), self.config.strides
        if sizes is None or not is_padded(images, sizes):
            height, width = (images.new_full(images.shape[:1], side, dtype=torch.long) for side in canvas)
            whole = torch.stack((height, width), dim=1)
            maps = self.backbone(images, None)
            maps = self.encoder([maps[stage] for stage in self.config.stages], [None] * len(strides))
            return join_levels(maps, whole, [None] * len(strides), strides=strides)
        masks = [positions_inside(sizes, canvas, stride) for stride in strides]
        maps = self.backbone(keep_inside(images, positions_inside(sizes, canvas, 1)), sizes)
        maps = self.encoder([maps[stage] for stage in self.config.stages], masks)
        return join_levels(maps, sizes, masks, strides=strides)

    def _begin(self, levels: FeatureLevels) -> tuple[BoxQueries, Proposals | None]:
        """Return the decoder's initial queries, and all proposals."""
        if isinstance(self.queries, LearnedQueries):
            return self.queries(levels.tokens.shape[0]), None
        config = self.config
        learning = max(config.num_proposals, config.num_queries)
        proposals = self.queries(levels, learning if self.training else config.num_queries)
        queries = first_queries(proposals.queries, config.num_queries)
        return queries._replace(box_logits=queries.box_logits.detach()), proposals

    def _noise(self, targets: BoxTargets | None) -> NoisyBoxes | None:
        config = self.config
        if targets is None or not self.training or not config.num_denoising:
            return None
        return add_box_noise(
            targets.labels,
            targets.boxes,
            targets.counts,
            num_slots=config.num_denoising,
            num_classes=config.num_classes,
            label_noise=config.label_noise,
            box_noise=config.box_noise,
        )

    def _decode(
        self, levels: FeatureLevels, queries: BoxQueries, noisy: NoisyBoxes | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return logits and boxes of each block; denoising queries come last."""
        x, box_state = queries.content, queries.box_logits
        if noisy is not None:
            assert self.class_content is not None
            x = torch.cat((x, self.class_content(noisy.labels).to(x.dtype)), dim=1)
            box_state = torch.cat((box_state, box_logits(noisy.boxes)), dim=1)
        may_attend = self_attention_mask(queries, noisy)
        all_logits, all_boxes = [], []
        for block, head in zip(self.decoder, self.heads, strict=True):
            boxes = box_state.sigmoid()
            positions = self.positions(box_positions(boxes, self.config.width).to(x.dtype))
            x = block(x, levels, boxes, positions=positions, may_attend=may_attend)
            logits, box_state = head(x, box_state)
            all_logits.append(silence_missing(logits, queries))
            all_boxes.append(box_state.sigmoid())
            box_state = box_state.detach()  # no gradient between blocks (Zhu et al. 2021, appendix A.4)
        return all_logits, all_boxes

    def _with_auxiliary(
        self, logits: list[Tensor], boxes: list[Tensor], proposals: Proposals | None, noisy: NoisyBoxes | None
    ) -> DetectionOutput:
        """Return the last block's predictions and the auxiliary ones."""
        count = self.config.num_queries
        outputs = [
            AuxiliaryOutput(of_class[:, :count], of_box[:, :count])
            for of_class, of_box in zip(logits, boxes, strict=True)
        ]
        auxiliary = outputs[:-1]
        if proposals is not None:
            proposed = proposals.queries.box_logits.sigmoid()
            auxiliary.append(AuxiliaryOutput(proposals.logits, proposed, self.config.proposal_matches))
        if noisy is not None:
            auxiliary += [
                AuxiliaryOutput(of_class[:, count:], of_box[:, count:], assigned=noisy.assigned)
                for of_class, of_box in zip(logits, boxes, strict=True)
            ]
        return DetectionOutput(outputs[-1].logits, outputs[-1].boxes, tuple(auxiliary))


class NamedStages(nn.Module):
    """The stages of an image model; zero padding beside an image is only exact for the first layer."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def take_weights(self, pretrained: nn.Module) -> None:
        """Copy the weights of an image model; see ``copy_encoder``."""
        copy_encoder(self.backbone, pretrained)

    def forward(
        self, images: Float[Tensor, "batch 3 height width"], sizes: Int[Tensor, "batch 2"] | None
    ) -> list[Float[Tensor, "batch _ _ _"]]:
        """Return the feature map of each stage, as ``ResidualStages``."""
        canvas = (images.shape[-2], images.shape[-1])
        return [
            keep_inside(x, positions_inside(sizes, canvas, FIRST_STRIDE * 2**stage))
            for stage, x in enumerate(self.backbone(images))
        ]


def _build_backbone(config: SampledDETRConfig) -> tuple[ResidualStages | NamedStages, tuple[int, ...]]:
    """Return a backbone with fresh weights, and the channels of each of its stages."""
    num_stages = config.stages[-1] + 1
    if config.backbone is None:
        channels = tuple(config.backbone_width * 2**stage for stage in range(num_stages))
        depths = config.backbone_depths[:num_stages]
        return ResidualStages(channels, depths, drop_path=config.drop_path), channels
    settings = config.backbone_config
    channels = getattr(settings, "channels", ())
    if not isinstance(channels, tuple) or len(channels) < num_stages:
        raise ConfigError(
            f"model.backbone is {config.backbone}",
            expected=f"an image model of {num_stages} stages with strides from {FIRST_STRIDE} on",
            remedy="Choose a Swin, BiT or ResNet, such as swin_t, or null for the detector's own stages",
        )
    model: Any = settings.with_changes({"drop_path": config.drop_path}).build()
    backbone = Backbone(stem=model.stem, stages=[*model.stages][:num_stages])
    if config.backbone_norm == "frozen":
        freeze_batch_norm(backbone)
    return NamedStages(backbone), channels[:num_stages]


VARIANTS: dict[str, ModelConfig] = {  # our own sizes; benchmarks/ has their scores
    "sdetr_nano": SampledDETRConfig(image_size=(320, 320)),
    "sdetr_small": SampledDETRConfig(
        image_size=(512, 512),
        backbone_width=48,
        backbone_depths=(2, 2, 2, 2),
        width=192,
        hidden_dim=768,
        decoder_depth=4,
    ),
    "sdetr_swin_t": SampledDETRConfig(
        image_size=(640, 640), backbone="swin_t", width=256, hidden_dim=1024, decoder_depth=6
    ),
}


def _build_decoder_block(config: SampledDETRConfig) -> DeformableDecoderBlock:
    return DeformableDecoderBlock(
        config.width,
        self_attention=DetrAttention(config.width, config.num_heads),
        sampled_attention=DeformableAttention(
            config.width, config.num_heads, num_levels=len(config.strides), num_points=config.num_points
        ),
        mlp=MLP(config.width, config.hidden_dim),
        dropout=config.dropout,
    )
