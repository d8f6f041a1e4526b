"""Captioning: token cross entropy with doubly stochastic attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.data.augment import augment
from vitrail.data.settings import AugmentSettings
from vitrail.data.text.rows import join_rows
from vitrail.data.text.subwords import Subwords
from vitrail.data.text.words import join_words
from vitrail.data.text_preprocessing import CaptionPreprocessing
from vitrail.models.contract import CaptionModel
from vitrail.models.decoding import USUAL_PATIENCE, Hypothesis, beam_search
from vitrail.tasks.captioning.scores import EXTRA, caption_scores, caption_tables, headline_scores
from vitrail.tasks.captioning.settings import CaptionSettings
from vitrail.tasks.generation import WrittenTexts, import_sacrebleu, sign_scoring, sign_search
from vitrail.train.losses import token_losses
from vitrail.train.objective import Loss, TensorBatch

SEPARATOR = "\n"  # between the references of an image, which contain none


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
    """Collation, loss and evaluation of a captioner."""

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
        import_sacrebleu(EXTRA)  # missing, it is reported before the training
        self.vocabulary, self.preprocessing = vocabulary, preprocessing
        self.settings = CaptionSettings() if settings is None else settings
        self.augment, self.beam_size = augment, beam_size

    def collate(self, samples: Sequence[Any], generator: torch.Generator | None) -> CaptionBatch:
        """Join and pad captions; normalise images and, with a generator, augment them."""
        content = torch.stack([sample.content for sample in samples])
        if content.dtype == torch.uint8:
            content = self.preprocessing.images.normalise(content)
            if generator is not None and self.augment is not None:
                content = augment(content, self.augment, generator)
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

    def evaluator(self) -> CaptionEvaluator:
        return CaptionEvaluator(self.vocabulary, self.settings, beam_size=self.beam_size)


def attention_penalty(
    attention: Float[Tensor, "batch captions tokens patches"], is_token: Bool[Tensor, "batch captions tokens"]
) -> Float[Tensor, ""]:
    """Return ``sum_i (1 - sum_t alpha_ti)^2`` over the image tokens i, summed over all captions.

    Args:
        attention: alpha, the weight of each image token at each step.
        is_token: False at padding; an empty caption counts nothing.

    Paper: Xu et al. 2015, equation 14, "doubly stochastic attention".
    """
    # One step fits in low precision, sums over steps do not.
    covered = (attention.float() * is_token[..., None]).sum(dim=2)  # batch captions patches
    penalties = (1 - covered).square().sum(dim=-1)
    return (penalties * is_token.any(dim=-1)).sum()


def _pad(rows: Sequence[list[list[int]]], pad_id: int) -> Int[Tensor, "batch captions tokens"]:
    """Pad to the most captions per image and the longest caption."""
    most = max(map(len, rows))
    filled = [row for each in rows for row in each + [[]] * (most - len(each))]
    return join_rows(filled, pad_id=pad_id)[0].unflatten(0, (len(rows), most))


class CaptionEvaluator(WrittenTexts):
    """Generate a caption for every image, and compute the log loss of the reference captions."""

    def __init__(self, vocabulary: Subwords, settings: CaptionSettings, *, beam_size: int) -> None:
        super().__init__("caption", "references")
        self.vocabulary, self.settings, self.beam_size = vocabulary, settings, beam_size

    def update(self, model: nn.Module, batch: CaptionBatch) -> None:
        captioner, images = cast(CaptionModel, model), batch.images
        features = captioner.encode(images).features if images.ndim == 4 else images
        is_token = batch.caption_out != self.vocabulary.pad_id
        logits = model(features, batch.caption_in).logits.flatten(0, 1)
        losses = token_losses(logits, batch.caption_out.flatten(0, 1), is_token.flatten(0, 1))
        found = find_captions(captioner, features, self.vocabulary, self.settings, beam_size=self.beam_size)
        best = [hypotheses[0] for hypotheses in found]
        self.add(
            batch.indices,
            write_captions(self.vocabulary, best),
            [SEPARATOR.join(texts) for texts in batch.references],
            num_tokens=is_token.sum(dim=(1, 2)),
            nll=losses.nll.double().view_as(is_token).sum(dim=(1, 2)),
            hypotheses=best,
        )

    def result(self) -> dict[str, Any]:
        if not self.indices:
            return {"bleu4": 0.0, "cider": 0.0, "nll": 0.0, "perplexity": 1.0, "count": 0}
        scores, count = caption_scores(*self._texts(), num_resamples=0), len(self.indices)
        return {"bleu4": scores.bleu[3], "cider": scores.cider, **self.likelihood(), "count": count}

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        tables = caption_tables(*self._texts(), indices=self.indices)
        scores = headline_scores(tables.scores) | self.likelihood() | self.cut_off()
        return scores, tables.model_dump(mode="json")

    def signature(self, tables: Mapping[str, Any]) -> dict[str, str]:
        """Return decoding settings, tokenisation and metrics."""
        settings, longest = self.settings, f"at most {self.settings.max_length} tokens"
        return {
            "search": sign_search(self.beam_size, settings.length_penalty, settings.penalty_form, longest),
            "scoring": sign_scoring(tables["scores"]["signature"]),
        }

    def _texts(self) -> tuple[list[str], list[list[str]]]:
        return self["caption"], [texts.split(SEPARATOR) for texts in self["references"]]


def find_captions(
    model: CaptionModel,
    images: Tensor,
    vocabulary: Subwords,
    settings: CaptionSettings,
    *,
    beam_size: int,
    num_best: int = 1,
) -> list[list[Hypothesis]]:
    """Return the best hypotheses for each image; unknown words are never generated."""
    return beam_search(
        model,
        model.start(images),
        begin_id=vocabulary.begin_id,
        end_id=vocabulary.end_id,
        pad_id=vocabulary.unknown_id,
        max_lengths=torch.full((len(images),), settings.max_length, device=images.device),
        beam_size=beam_size,
        length_penalty=settings.length_penalty,
        penalty_form=settings.penalty_form,
        num_best=num_best,
        patience=USUAL_PATIENCE,
    )


def write_captions(vocabulary: Subwords, hypotheses: Sequence[Hypothesis]) -> list[str]:
    """Return the detokenised texts of hypotheses."""
    texts = vocabulary.decode([hypothesis.tokens for hypothesis in hypotheses])
    return [join_words(text.split()) for text in texts]
