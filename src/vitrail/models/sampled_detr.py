"""A DETR that learns from few images: queries that cells propose, and that read the image at a few places.

What makes DETR need much data is that it must learn where to look (Wang et al. 2022, "Towards data-efficient
detection transformers"). Here each query has a box from the start, reads maps of several resolutions in and
around it (Zhu et al. 2021, Deformable DETR), moves it block by block, and learns from spoiled true boxes
besides (Zhang et al. 2023, DINO). Input: any height and width.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from vitrail.models.contract import (
    AuxiliaryOutput,
    BoxTargets,
    DetectionModelConfig,
    DetectionOutput,
    ModelConfig,
    check_inputs,
    is_padded,
)
from vitrail.models.detector_backbone import FIRST_STRIDE, build_backbone
from vitrail.nn.blocks import MLP
from vitrail.nn.box_decoder import BoxDecoderBlock
from vitrail.nn.box_queries import (
    BoxHead,
    BoxQueries,
    LearnedQueries,
    Proposals,
    ProposedQueries,
    box_logits,
    box_positions,
    first_queries,
    silence_missing,
)
from vitrail.nn.denoising import SpoiledBoxes, spoil_boxes, who_sees_whom
from vitrail.nn.feature_levels import FeatureLevels, join_levels
from vitrail.nn.layer_normed import cells_inside, keep_inside
from vitrail.nn.level_encoder import LevelEncoder
from vitrail.nn.placed_attention import PlacedAttention
from vitrail.nn.sampled_attention import SampledAttention


class SampledDETRConfig(DetectionModelConfig):
    """Settings of a DETR with sampled attention."""

    family: ClassVar[str] = "sampled_detr"
    paper: ClassVar[str] = (
        "after Zhu et al. 2021 (Deformable DETR), Zhang et al. 2023 (DINO), Zhao et al. 2024 (RT-DETR)"
    )
    position_policy: ClassVar[str] = (
        "boxes of queries as shares of the image, told by sines and cosines; fixed sines and cosines in the "
        "attention of the coarsest map; computed for any size"
    )
    size_policy: ClassVar[str] = (
        "convolutions are padded with zeros, so every size divides; padding is set to zero after every layer "
        "and changes nothing; what it holds does so in no backbone, its extent in one that is named"
    )
    scoring: ClassVar[Literal["softmax", "sigmoid"]] = "sigmoid"

    backbone: str | None = None
    """Name of an image model whose last stages are read, such as swin_t; null builds stages of residual
    convolutions, of ``backbone_width`` and ``backbone_depths``."""
    backbone_width: int = Field(default=32, ge=2)
    """Channels of the residual backbone's first stage; each further stage doubles them."""
    backbone_depths: tuple[int, ...] = (1, 1, 1, 1)
    """Blocks of each stage of the residual backbone, of stride 4, 8, 16 and so on."""
    drop_path: float = Field(default=0.0, ge=0, lt=1)
    """Probability that a sample skips the branch of the backbone's last block; it rises linearly from the
    first's 0."""
    strides: tuple[int, ...] = (8, 16, 32)
    """Pixels between neighbouring cells of each map that is read, each twice those of the one before."""
    width: int = Field(default=128, ge=8)
    """Width of a token and of a query."""
    hidden_dim: int = Field(default=512, ge=1)
    """Width of the hidden layer of each MLP."""
    num_heads: int = Field(default=8, ge=1)
    """Heads of every attention; divides ``width``."""
    num_points: int = Field(default=4, ge=1)
    """Places that a head reads in each map."""
    encoder_depth: int = Field(default=1, ge=0)
    """Blocks of attention on the coarsest map."""
    decoder_depth: int = Field(default=3, ge=1)
    """Number of blocks of the decoder."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Probability that a value of a decoder's branch is dropped."""
    queries: Literal["proposed", "learned"] = "proposed"
    """Where queries begin: with the cells that are surest of a box, or with learned places, the same in every
    image."""
    num_proposals: int = Field(default=300, ge=1)
    """Cells that learn to propose boxes in an image, at least ``num_queries``, as many as become queries."""
    proposal_matches: int = Field(default=1, ge=1)
    """Proposals that each box is matched with, in training. With several (one-to-many), those of frequent
    classes take the places of rare ones: with 4, and 13 boxes an image, the rarest class was lost."""
    num_denoising: int = Field(default=100, ge=0, multiple_of=2)
    """Spoiled true boxes of an image that are mended, half of them, or refused, in training; 0 has none."""
    label_noise: float = Field(default=0.25, ge=0, le=1)
    """Probability that the class of a spoiled box is drawn anew (Zhang et al. 2023)."""
    box_noise: float = Field(default=1.0, gt=0)
    """How far its corners move at most, in halves of its width and height (Zhang et al. 2023)."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.width % self.num_heads:
            raise ValueError(f"num_heads {self.num_heads} does not divide width {self.width}")
        if self.width % 8:
            raise ValueError(f"sines and cosines of a box need a width of eights, not {self.width}")
        first = self.strides[0] if self.strides else 0
        if first < FIRST_STRIDE or self.strides != tuple(first * 2**i for i in range(len(self.strides))):
            raise ValueError(f"strides {self.strides} do not double from one to the next, from 4 on")
        if first & (first - 1):
            raise ValueError(f"strides {self.strides} are no powers of two")
        if self.backbone is None and (min(self.backbone_depths, default=0) < 1 or self.backbone_width % 2):
            raise ValueError("backbone_depths are greater than zero, and backbone_width is even")
        if self.backbone is None and len(self.backbone_depths) <= self.stages[-1]:
            raise ValueError(
                f"stride {self.strides[-1]} needs {self.stages[-1] + 1} stages, not {self.backbone_depths}"
            )
        return self

    @property
    def stages(self) -> tuple[int, ...]:
        """Which stages of the backbone are read, counted from zero."""
        return tuple((stride // FIRST_STRIDE).bit_length() - 1 for stride in self.strides)

    def build(self) -> SampledDETR:
        """Return a new model.

        Raises:
            ConfigError: the backbone is no image model with stages of these strides.
        """
        return SampledDETR(self)


class SampledDETR(nn.Module):
    """Propose boxes cell by cell, and improve the surest of them by looking at the image where they are.

    Args:
        config: the settings.
    """

    def __init__(self, config: SampledDETRConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.backbone, channels = build_backbone(
            config.backbone,
            width=config.backbone_width,
            depths=config.backbone_depths,
            num_stages=config.stages[-1] + 1,
            image_size=config.image_size,
            drop_path=config.drop_path,
        )
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
        """Return the boxes of each image.

        In training, those of every decoder block, the cells' proposals, and what became of spoiled boxes if
        there are targets, stand beside them.

        Args:
            images: each at the top left of its place; what is right of it and below is not looked at.
            sizes: height and width of each in pixels, without the padding; None where there is none.
            targets: are spoiled and to be mended, in training alone.

        Raises:
            DataError: images or sizes are of another kind.
        """
        check_inputs(images, sizes)
        levels = self._look(images, sizes)
        queries, proposals = self._begin(levels)
        spoiled = self._spoil(targets) if self.training and targets is not None else None
        logits, boxes = self._decode(levels, queries, spoiled)
        if not self.training:
            return DetectionOutput(logits[-1], boxes[-1])
        return self._with_auxiliary(logits, boxes, proposals, spoiled)

    def _look(self, images: Tensor, sizes: Tensor | None) -> FeatureLevels:
        """Return what there is to see: the cells of all maps."""
        canvas, strides = (images.shape[-2], images.shape[-1]), self.config.strides
        if sizes is None or not is_padded(images, sizes):
            whole = torch.tensor([canvas], device=images.device).expand(images.shape[0], -1)
            maps = self.backbone(images, None)
            maps = self.encoder([maps[stage] for stage in self.config.stages], [None] * len(strides))
            return join_levels(maps, whole, [None] * len(strides), strides=strides)
        masks = [cells_inside(sizes, canvas, stride) for stride in strides]
        maps = self.backbone(keep_inside(images, cells_inside(sizes, canvas, 1)), sizes)
        maps = self.encoder([maps[stage] for stage in self.config.stages], masks)
        return join_levels(maps, sizes, masks, strides=strides)

    def _begin(self, levels: FeatureLevels) -> tuple[BoxQueries, Proposals | None]:
        """Return the first queries, and all that cells proposed."""
        if isinstance(self.queries, LearnedQueries):
            return self.queries(levels.tokens.shape[0]), None
        config = self.config
        learning = max(config.num_proposals, config.num_queries)
        proposals = self.queries(levels, learning if self.training else config.num_queries)
        queries = first_queries(proposals.queries, config.num_queries)
        return queries._replace(box_logits=queries.box_logits.detach()), proposals

    def _spoil(self, targets: BoxTargets | None) -> SpoiledBoxes | None:
        config = self.config
        if targets is None or not self.training or not config.num_denoising:
            return None
        return spoil_boxes(
            targets.labels,
            targets.boxes,
            targets.counts,
            num_slots=config.num_denoising,
            num_classes=config.num_classes,
            label_noise=config.label_noise,
            box_noise=config.box_noise,
        )

    def _decode(
        self, levels: FeatureLevels, queries: BoxQueries, spoiled: SpoiledBoxes | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return logits and boxes after each block, those of spoiled boxes behind those of the queries."""
        x, places = queries.content, queries.box_logits
        if spoiled is not None:
            assert self.class_content is not None
            x = torch.cat((x, self.class_content(spoiled.labels).to(x.dtype)), dim=1)
            places = torch.cat((places, box_logits(spoiled.boxes)), dim=1)
        may_attend = who_sees_whom(queries, spoiled)
        all_logits, all_boxes = [], []
        for block, head in zip(self.decoder, self.heads, strict=True):
            boxes = places.sigmoid()
            positions = self.positions(box_positions(boxes, self.config.width).to(x.dtype))
            x = block(x, levels, boxes, positions=positions, may_attend=may_attend)
            logits, places = head(x, places)
            all_logits.append(silence_missing(logits, queries))
            all_boxes.append(places.sigmoid())
            places = places.detach()  # each block learns its own move alone (Zhu et al. 2021, appendix A.4)
        return all_logits, all_boxes

    def _with_auxiliary(
        self,
        logits: list[Tensor],
        boxes: list[Tensor],
        proposals: Proposals | None,
        spoiled: SpoiledBoxes | None,
    ) -> DetectionOutput:
        """Return the answer with all that is trained beside it."""
        count = self.config.num_queries
        answers = [
            AuxiliaryOutput(of_class[:, :count], of_box[:, :count])
            for of_class, of_box in zip(logits, boxes, strict=True)
        ]
        auxiliary = answers[:-1]
        if proposals is not None:
            proposed = proposals.queries.box_logits.sigmoid()
            auxiliary.append(AuxiliaryOutput(proposals.logits, proposed, self.config.proposal_matches))
        if spoiled is not None:
            auxiliary += [
                AuxiliaryOutput(of_class[:, count:], of_box[:, count:], assigned=spoiled.assigned)
                for of_class, of_box in zip(logits, boxes, strict=True)
            ]
        return DetectionOutput(answers[-1].logits, answers[-1].boxes, tuple(auxiliary))


VARIANTS: dict[str, ModelConfig] = {  # sizes of our own; benchmarks/ has what they reach
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


def _build_decoder_block(config: SampledDETRConfig) -> BoxDecoderBlock:
    return BoxDecoderBlock(
        config.width,
        self_attention=PlacedAttention(config.width, config.num_heads),
        sampled_attention=SampledAttention(
            config.width, config.num_heads, num_levels=len(config.strides), num_points=config.num_points
        ),
        mlp=MLP(config.width, config.hidden_dim),
        dropout=config.dropout,
    )
