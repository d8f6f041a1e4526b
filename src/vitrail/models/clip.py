"""CLIP: an image encoder and a text encoder with one joint embedding space.

Paper: Radford et al. 2021. Input: images of any height and width, texts of at most ``max_length`` subwords.
The image encoder is CLIP's own Vision Transformer, or any image model of this library.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from vitrail.models.contract import (
    ImageModelConfig,
    ImageTextModelConfig,
    ImageTextOutput,
    ModelConfig,
    check_images,
    check_texts,
    find_image_model,
)
from vitrail.models.pyramid import Plain
from vitrail.nn.activations import ACTIVATIONS, ActivationName
from vitrail.nn.attention import Attention
from vitrail.nn.blocks import MLP, Block
from vitrail.nn.feature_maps import coarser_grid, flatten_map
from vitrail.nn.linear import Linear
from vitrail.nn.masks import causal_mask
from vitrail.nn.patches import PatchEmbed
from vitrail.nn.positions import LearnedGridPositions
from vitrail.nn.sequence_positions import LearnedPositions
from vitrail.nn.tokens import Grid, Images, Logits, Tokens

MLP_RATIO = 4  # all published models
NORM_EPS = 1e-5  # published code


class CLIPImageConfig(ImageModelConfig):
    """Settings of CLIP's own Vision Transformer; its logits are the embedding."""

    family: ClassVar[str] = "clip"
    paper: ClassVar[str] = "Radford et al. 2021"
    position_policy: ClassVar[str] = "learned positions, interpolated (bicubic) to the image's grid"
    size_policy: ClassVar[str] = "completed with zeros below and to the right to whole patches"

    patch_size: int = Field(default=32, ge=1)
    """Height and width of a patch in pixels."""
    width: int = Field(default=768, ge=1)
    """Width of a token."""
    depth: int = Field(default=12, ge=1)
    """Number of blocks."""
    num_heads: int = Field(default=12, ge=1)
    """Attention heads; divides ``width``."""
    activation: ActivationName = "quick_gelu"
    """Activation of each MLP."""

    def build(self) -> ImageTower:
        return ImageTower(self)


class ImageTower(Plain):
    """A Vision Transformer with one more norm before its blocks.

    Paper: Radford et al. 2021, section 2.4.
    """

    num_prefix = 1  # the class token

    def __init__(self, config: CLIPImageConfig) -> None:
        super().__init__()
        self.config, width = config, config.width
        grid = coarser_grid(config.image_size, config.patch_size)
        self.prefix = nn.Parameter(torch.zeros(1, width))
        self.stem = PatchEmbed(config.num_channels, width, patch_size=config.patch_size, bias=False)
        self.positions = LearnedGridPositions(grid, width, num_prefix=1)
        self.input_norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.blocks = _build_blocks(config.depth, width, config.num_heads, config.activation)
        self.norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.head = Linear(width, config.num_classes, bias=False)
        nn.init.trunc_normal_(self.prefix, std=0.02)  # drawn again below; keeps the numbers after it
        _draw_blocks(self.blocks, width)
        for parameter in (self.prefix, self.positions.table, self.head.weight):
            nn.init.normal_(parameter, std=width**-0.5)  # published code

    def forward(self, images: Images) -> Logits:
        return self.head(self.tokens(images)[:, 0])

    def tokens_and_grid(self, images: Images) -> tuple[Tokens, Grid]:
        check_images(images, self.config)
        x, grid = flatten_map(self.stem(images))  # b patches d
        # Under autocast the stem decides the type of the residual stream: float32 positions would widen it.
        positions, token = self.positions(grid).to(x.dtype), self.prefix.to(x.dtype)
        token, x = token + positions[:1], x + positions[1:]
        x = self.input_norm(torch.cat((token.expand(x.shape[0], -1, -1), x), dim=1))  # b 1+patches d
        for block in self.blocks:
            x = block(x, grid=grid)
        return self.norm(x), grid


class TextTower(nn.Module):
    """A causal Transformer; the output at a text's end token becomes its embedding.

    Paper: Radford et al. 2021, section 2.4.
    """

    def __init__(self, config: CLIPConfig) -> None:
        super().__init__()
        width = config.text_width
        self.table = nn.Embedding(config.vocabulary_size, width)
        self.positions = LearnedPositions(config.max_length, width)
        self.blocks = _build_blocks(config.text_depth, width, config.text_num_heads, config.activation)
        self.norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.projection = Linear(width, config.embedding_dim, bias=False)
        nn.init.normal_(self.table.weight, std=0.02)  # published code, as the following
        nn.init.normal_(self.positions.table, std=0.01)
        nn.init.normal_(self.projection.weight, std=width**-0.5)
        _draw_blocks(self.blocks, width)

    def forward(
        self, tokens: Int[Tensor, "texts tokens"], lengths: Int[Tensor, " texts"]
    ) -> Float[Tensor, "texts dim"]:
        """Return the embedding of each text, not normalised."""
        check_texts(tokens, lengths)
        x = self.positions(self.table(tokens))  # b n d
        may_attend = causal_mask(tokens.shape[1], device=tokens.device)
        for block in self.blocks:
            x = block(x, may_attend=may_attend)
        last = x[torch.arange(x.shape[0], device=x.device), lengths - 1]  # b d
        return self.projection(self.norm(last))


def _build_blocks(depth: int, width: int, num_heads: int, activation: ActivationName) -> nn.ModuleList:
    return nn.ModuleList(
        Block(
            width,
            mixer=Attention(width, num_heads),
            mlp=MLP(width, MLP_RATIO * width, activation=ACTIVATIONS[activation]),
            norm=partial(nn.LayerNorm, eps=NORM_EPS),
        )
        for _ in range(depth)
    )


def _draw_blocks(blocks: nn.ModuleList, width: int) -> None:
    """Initialise the blocks; the last layer of each branch with a deviation that falls with the depth.

    Source: published code of Radford et al. 2021, which does so in the text encoder.
    """
    inner, last = width**-0.5, width**-0.5 * (2 * len(blocks)) ** -0.5
    deviations = {
        "mixer.qkv": inner,
        "mixer.projection": last,
        "mlp.expand": (2 * width) ** -0.5,
        "mlp.contract": last,
    }
    for block in blocks:
        for name, deviation in deviations.items():
            layer = block.get_submodule(name)
            assert isinstance(layer, nn.Linear)
            nn.init.normal_(layer.weight, std=deviation)
            nn.init.zeros_(layer.bias)


class CLIPConfig(ImageTextModelConfig):
    """Settings of a CLIP; the defaults are those of ViT-B/32."""

    family: ClassVar[str] = "clip"
    paper: ClassVar[str] = "Radford et al. 2021"
    position_policy: ClassVar[str] = (
        "learned positions in both towers; those of images are interpolated (bicubic) to the image's grid, "
        "those of texts reach to max_length. Another image_model has its own"
    )
    size_policy: ClassVar[str] = (
        "completed with zeros below and to the right to whole patches; another image_model has its own"
    )

    image_model: str | None = None
    """Name of an image model to use as the image encoder, its logits the embedding; null takes CLIP's own
    Vision Transformer, which the next four fields describe."""
    image_model_settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of that image model that differ from its named ones."""
    patch_size: int = Field(default=32, ge=1)
    """Height and width of a patch in pixels."""
    image_width: int = Field(default=768, ge=1)
    """Width of an image token."""
    image_depth: int = Field(default=12, ge=1)
    """Number of blocks of the image encoder."""
    image_num_heads: int = Field(default=12, ge=1)
    """Attention heads of the image encoder; divides ``image_width``."""
    text_width: int = Field(default=512, ge=1)
    """Width of a text token."""
    text_depth: int = Field(default=12, ge=1)
    """Number of blocks of the text encoder."""
    text_num_heads: int = Field(default=8, ge=1)
    """Attention heads of the text encoder; divides ``text_width``."""
    activation: ActivationName = "quick_gelu"
    """Activation of each MLP; models of open_clip mostly have gelu."""
    temperature: float = Field(default=0.07, gt=0)
    """Initial temperature, which cosines are divided by; learned as the logarithm of its inverse (section
    2.5)."""
    max_scale: float = Field(default=100.0, gt=0)
    """Upper limit of the logit scale (section 2.5), in training and in evaluation."""

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        for tower in ("image", "text"):
            width, heads = getattr(self, f"{tower}_width"), getattr(self, f"{tower}_num_heads")
            if width % heads:
                raise ValueError(f"{tower}_num_heads {heads} does not divide {tower}_width {width}")
        return self

    @property
    def image_tower(self) -> ImageModelConfig:
        """Settings of the image encoder.

        Raises:
            ConfigError: unknown image model or settings.
        """
        if self.image_model is None:
            return CLIPImageConfig(
                image_size=self.image_size,
                num_classes=self.embedding_dim,
                patch_size=self.patch_size,
                width=self.image_width,
                depth=self.image_depth,
                num_heads=self.image_num_heads,
                activation=self.activation,
            )
        config = find_image_model("image_model", self.image_model)
        fixed = {"num_classes": self.embedding_dim, "image_size": self.image_size}
        return config.with_changes({**self.image_model_settings, **fixed})

    def build(self) -> CLIP:
        return CLIP(self)


class CLIP(nn.Module):
    """Embed images and texts in one space, close together where they match.

    Paper: Radford et al. 2021, figure 3.
    """

    def __init__(self, config: CLIPConfig) -> None:
        super().__init__()
        self.config = config
        self.image = config.image_tower.build()
        self.text = TextTower(config)
        self.logit_scale = nn.Parameter(torch.tensor(-math.log(config.temperature)))

    def forward(
        self,
        images: Float[Tensor, "images channels height width"],
        tokens: Int[Tensor, "texts tokens"],
        lengths: Int[Tensor, " texts"],
    ) -> ImageTextOutput:
        """Return the embeddings of images and of texts, as ``ImageTextModel``.

        Raises:
            DataError: the images do not fit the image encoder, or a text is longer than ``max_length`` or has
                no valid length.
        """
        if self.training:
            with torch.no_grad():  # "clipped to prevent scaling the logits by more than 100", section 2.5
                self.logit_scale.clamp_(max=math.log(self.config.max_scale))
        return ImageTextOutput(self.embed_images(images), self.embed_texts(tokens, lengths), self.scale)

    @property
    def scale(self) -> Float[Tensor, ""]:
        """Factor from cosines to logits, never above ``max_scale``: a last training step may exceed it."""
        return self.logit_scale.clamp(max=math.log(self.config.max_scale)).exp()

    def embed_images(self, images: Images) -> Float[Tensor, "images dim"]:
        """Return L2-normalised image embeddings in float32."""
        return F.normalize(self.image(images).float(), dim=-1)

    def embed_texts(
        self, tokens: Int[Tensor, "texts tokens"], lengths: Int[Tensor, " texts"]
    ) -> Float[Tensor, "texts dim"]:
        """Return L2-normalised text embeddings in float32."""
        return F.normalize(self.text(tokens, lengths).float(), dim=-1)


_BASE = CLIPConfig()

VARIANTS: dict[str, ModelConfig] = {  # Radford et al. 2021, table 20
    "clip_b32": _BASE,
    "clip_b16": _BASE.with_changes({"patch_size": 16}),
    "clip_l14": _BASE.with_changes(
        {
            "patch_size": 14,
            "embedding_dim": 768,
            "image_width": 1024,
            "image_depth": 24,
            "image_num_heads": 16,
            "text_width": 768,
            "text_num_heads": 12,
        }
    ),
    # Ours, for thousands of captioned images and a few CPU cores.
    "clip_tiny": CLIPConfig(
        image_size=(64, 64),
        embedding_dim=128,
        image_model="vit_micro",
        image_model_settings={"patch_size": 8, "depth": 4},
        vocabulary_size=4000,
        max_length=48,
        pad_id=0,
        begin_id=1,
        end_id=2,
        text_width=128,
        text_depth=3,
        text_num_heads=4,
        activation="gelu",
    ),
}
VARIANTS["clip_l14_336"] = VARIANTS["clip_l14"].with_changes({"image_size": (336, 336)})
