"""Captioning: token cross entropy with doubly stochastic attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.data.augment import vary
from vitrail.data.caption_preprocessing import CaptionPreprocessing
from vitrail.data.settings import AugmentSettings
from vitrail.data.text.subwords import Subwords
from vitrail.tasks.captioning.settings import CaptionSettings
from vitrail.train.losses import token_losses
from vitrail.train.objective import Loss, TensorBatch


@dataclass(frozen=True)
class CaptionBatch(TensorBatch):
    """Images with captions as token rows."""

    images: Float[Tensor, "batch ..."]
    """Normalised images (channels height width), or encoder features (tokens dim)."""
    caption_in: Int[Tensor, "batch captions tokens"]
    """Decoder input: begin, then the caption's tokens; padded to the most captions per image."""
    caption_out: Int[Tensor, "batch captions tokens"]
    """Targets: the caption's tokens, then the end."""
    indices: Int[Tensor, " batch"]
    """Index of each image in its source."""
    references: tuple[tuple[str, ...], ...]
    """All captions of each image, unprocessed."""


class CaptionObjective:
    """Collation, loss and evaluation of a captioner.

    Args:
        settings: of the loss and of decoding.
        augment: batch-wise augmentation of training images.
        beam_size: for evaluation; greedy by default.
    """

    best_by: tuple[str, Literal["max", "min"]] = ("bleu4", "max")
    unit = "tokens"

    def __init__(
        self,
        vocabulary: Subwords,
        preprocessing: CaptionPreprocessing,
        settings: CaptionSettings | None = None,
        *,
        augment: AugmentSettings | None = None,
        beam_size: int = 1,
    ) -> None:
        self.vocabulary, self.preprocessing = vocabulary, preprocessing
        self.settings = CaptionSettings() if settings is None else settings
        self.augment, self.beam_size = augment, beam_size

    def collate(self, samples: Sequence[Any], generator: torch.Generator | None) -> CaptionBatch:
        """Join and pad captions; normalise images and, with a generator, augment them."""
        content = torch.stack([sample.content for sample in samples])
        if content.dtype == torch.uint8:
            content = self.preprocessing.images.normalise(content)
            if generator is not None and self.augment is not None:
                content = vary(content, self.augment, generator)
        words = self.vocabulary
        rows = [sample.rows for sample in samples]
        return CaptionBatch(
            images=content.float(),
            caption_in=_pad([[[words.begin_id, *row] for row in each] for each in rows], words.pad_id),
            caption_out=_pad([[[*row, words.end_id] for row in each] for each in rows], words.pad_id),
            indices=torch.tensor([sample.index for sample in samples], dtype=torch.int64),
            references=tuple(sample.captions for sample in samples),
        )

    def loss(self, model: nn.Module, batch: CaptionBatch) -> Loss:
        """Sum the label-smoothed cross entropy over tokens, and the attention penalty over captions.

        Paper: Xu et al. 2015, equation 14.
        """
        is_token = batch.caption_out != self.vocabulary.pad_id
        output = model(batch.images, batch.caption_in)
        losses = token_losses(
            output.logits.flatten(0, 1),
            batch.caption_out.flatten(0, 1),
            is_token.flatten(0, 1),
            label_smoothing=self.settings.label_smoothing,
        )
        total = losses.total
        parts = {"nll": losses.nll.sum(), "correct": losses.is_correct.sum().float()}
        if output.attention is not None and self.settings.attention_weight:
            penalty = attention_penalty(output.attention, is_token)
            total = total + self.settings.attention_weight * penalty
            parts["attention"] = penalty.detach()
        return Loss(total=total, count=is_token.sum().float(), parts=parts)

    def evaluator(self) -> Any:
        from vitrail.tasks.captioning.evaluator import CaptionEvaluator

        return CaptionEvaluator(self.vocabulary, self.settings, beam_size=self.beam_size)


def attention_penalty(
    attention: Float[Tensor, "batch captions tokens cells"], is_token: Bool[Tensor, "batch captions tokens"]
) -> Float[Tensor, ""]:
    """Return ``sum_i (1 - sum_t alpha_ti)^2`` over the image tokens i, summed over all captions.

    Args:
        attention: alpha, the weight of each image token at each step.
        is_token: False at padding; an empty caption counts nothing.

    Paper: Xu et al. 2015, equation 14, "doubly stochastic attention".
    """
    # One step fits in low precision, sums over steps do not.
    covered = (attention.float() * is_token[..., None]).sum(dim=2)  # batch captions cells
    penalties = (1 - covered).square().sum(dim=-1)
    return (penalties * is_token.any(dim=-1)).sum()


def _pad(rows: Sequence[Sequence[Sequence[int]]], pad_id: int) -> Int[Tensor, "batch captions tokens"]:
    """Pad to the most captions per image and the longest caption."""
    most = max(len(each) for each in rows)
    longest = max(len(row) for each in rows for row in each)
    padded = torch.full((len(rows), most, longest), pad_id, dtype=torch.int64)
    for image, each in enumerate(rows):
        for place, row in enumerate(each):
            padded[image, place, : len(row)] = torch.tensor(row, dtype=torch.int64)
    return padded
