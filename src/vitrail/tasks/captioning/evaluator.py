"""Score a captioner: caption every image, and measure how probable it finds the captions in the data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from vitrail.data.text.signature import sign_scoring, sign_search
from vitrail.data.text.subwords import Subwords
from vitrail.data.text.tensors import pack_texts, unpack_texts
from vitrail.data.text.words import join_words
from vitrail.models.contract import CaptionModel
from vitrail.models.decoding import USUAL_PATIENCE, Hypothesis, beam_search, greedy
from vitrail.tasks.captioning.settings import CaptionSettings
from vitrail.train.losses import token_losses

if TYPE_CHECKING:
    from vitrail.tasks.captioning.objective import CaptionBatch

LARGEST_EXPONENT = 700.0  # of a number that float64 can hold
SEPARATOR = "\n"  # between the references of an image, of which none holds one
NUMBERS = {"num_tokens": torch.int64, "nll": torch.float64, "is_finished": torch.bool}


class Captioned(NamedTuple):
    """What an evaluator keeps of one image."""

    caption: str
    """What the model wrote."""
    references: str
    """The captions in the data, with line feeds between them."""
    num_tokens: int
    """Tokens of the captions in the data, with those that end them."""
    nll: float
    """Minus the logarithm of the probability that the model gives to these captions, in nats."""
    is_finished: bool
    """Whether the model's caption ended by itself."""


class CaptionEvaluator:
    """Caption every image, and run the model on the captions in the data.

    Args:
        vocabulary: the tokens of captions.
        settings: how captions are looked for.
        beam_size: hypotheses that are kept; with 1 the likeliest token is taken at every step.
    """

    def __init__(self, vocabulary: Subwords, settings: CaptionSettings, *, beam_size: int) -> None:
        self.vocabulary, self.settings, self.beam_size = vocabulary, settings, beam_size
        self._captioned: dict[int, Captioned] = {}

    def update(self, model: nn.Module, batch: CaptionBatch) -> None:
        """Caption one batch, and run the model on the captions in the data; the encoder runs once."""
        captioner = cast(CaptionModel, model)
        cells = captioner.encode(batch.images).cells if batch.images.ndim == 4 else batch.images
        is_token = batch.caption_out != self.vocabulary.pad_id
        logits = model(cells, batch.caption_in).logits.flatten(0, 1)
        losses = token_losses(logits, batch.caption_out.flatten(0, 1), is_token.flatten(0, 1))
        nll = losses.nll.double().view_as(is_token).sum(dim=(1, 2))
        found = find_captions(captioner, cells, self.vocabulary, self.settings, beam_size=self.beam_size)
        best = [hypotheses[0] for hypotheses in found]
        self._add(
            batch.indices.tolist(),
            write_captions(self.vocabulary, best),
            [SEPARATOR.join(texts) for texts in batch.references],
            is_token.sum(dim=(1, 2)).tolist(),
            nll.tolist(),
            [hypothesis.is_finished for hypothesis in best],
        )

    def state(self) -> dict[str, Tensor]:
        """Return what was collected, images in the order of their source and each only once."""
        images = self._images()
        state = {"indices": torch.tensor(sorted(self._captioned), dtype=torch.int64)}
        for name in ("caption", "references"):
            state |= pack_texts(name, [getattr(image, name) for image in images])
        for name, dtype in NUMBERS.items():
            state[name] = torch.tensor([getattr(image, name) for image in images], dtype=dtype)
        return state

    def absorb(self, state: dict[str, Tensor]) -> None:
        """Add what another process collected, as its ``state`` returned it."""
        texts = [unpack_texts(name, state) for name in ("caption", "references")]
        self._add(state["indices"].tolist(), *texts, *(state[name].tolist() for name in NUMBERS))

    def result(self) -> dict[str, Any]:
        """Return BLEU-4, CIDEr and the mean loss of a token."""
        from vitrail.tasks.captioning.scores import caption_scores

        images = self._images()
        if not images:
            return {"bleu4": 0.0, "cider": 0.0, "nll": 0.0, "perplexity": 1.0, "count": 0}
        scores = caption_scores(*_texts(images), num_resamples=0)
        return {"bleu4": scores.bleu[3], "cider": scores.cider, **_likelihood(images), "count": len(images)}

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Return every headline score, and the tables behind them as plain JSON values.

        Raises:
            DataError: nothing was evaluated.
        """
        from vitrail.tasks.captioning.scores import caption_tables, headline_scores

        images = self._images()
        tables = caption_tables(*_texts(images), indices=sorted(self._captioned))
        cut_off = {"cut_off": sum(not image.is_finished for image in images) / len(images)}
        return headline_scores(tables.scores) | _likelihood(images) | cut_off, tables.model_dump(mode="json")

    def signature(self, tables: Mapping[str, Any]) -> dict[str, str]:
        """Return how captions were looked for, and what counts as a word and as a score."""
        longest = f"at most {self.settings.max_length} tokens"
        return {
            "search": sign_search(self.beam_size, self.settings.length_penalty, longest),
            "scoring": sign_scoring(tables["scores"]["signature"]),
        }

    def _add(self, indices: Sequence[int], *columns: Sequence[Any]) -> None:
        for index, *values in zip(indices, *columns, strict=True):
            self._captioned.setdefault(index, Captioned(*values))

    def _images(self) -> list[Captioned]:
        return [self._captioned[index] for index in sorted(self._captioned)]


def find_captions(
    model: CaptionModel,
    images: Tensor,
    vocabulary: Subwords,
    settings: CaptionSettings,
    *,
    beam_size: int,
    num_best: int = 1,
) -> list[list[Hypothesis]]:
    """Return the best hypotheses for each image; unknown words are never written.

    Args:
        model: in evaluation mode.
        images: normalised images or cells, on the model's device.
        vocabulary: the tokens of captions.
        settings: length penalty and greatest length.
        beam_size: hypotheses that are kept; with 1 the likeliest token is taken at every step.
        num_best: how many are wanted of each image.

    Raises:
        ConfigError: more are wanted than the beam keeps.
    """
    state = model.start(images)
    limits = torch.full((len(images),), settings.max_length, device=images.device)
    if beam_size == 1 and num_best == 1:
        found = greedy(
            model,
            state,
            begin_id=vocabulary.begin_id,
            end_id=vocabulary.end_id,
            pad_id=vocabulary.unknown_id,
            max_lengths=limits,
        )
        return [[hypothesis] for hypothesis in found]
    return beam_search(
        model,
        state,
        begin_id=vocabulary.begin_id,
        end_id=vocabulary.end_id,
        pad_id=vocabulary.unknown_id,
        max_lengths=limits,
        beam_size=beam_size,
        length_penalty=settings.length_penalty,
        num_best=num_best,
        patience=USUAL_PATIENCE,
    )


def write_captions(vocabulary: Subwords, hypotheses: Sequence[Hypothesis]) -> list[str]:
    """Return the texts of hypotheses, contractions joined."""
    texts = vocabulary.decode([hypothesis.tokens for hypothesis in hypotheses])
    return [join_words(text.split()) for text in texts]


def _texts(images: Sequence[Captioned]) -> tuple[list[str], list[list[str]]]:
    return [image.caption for image in images], [image.references.split(SEPARATOR) for image in images]


def _likelihood(images: Sequence[Captioned]) -> dict[str, float]:
    """Return the mean loss of a token over all captions, and its exponential."""
    nll = math.fsum(image.nll for image in images) / sum(image.num_tokens for image in images)
    return {"nll": nll, "perplexity": math.exp(min(nll, LARGEST_EXPONENT))}
