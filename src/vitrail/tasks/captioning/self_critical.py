"""Self-critical training: captions that the model draws are reinforced by their scores.

Papers: Rennie et al. 2017, Self-critical Sequence Training for Image Captioning; Luo 2020, A Better Variant
of Self-critical Sequence Training (captions of an image are the baseline of each other).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.data.settings import AugmentSettings
from vitrail.data.text.subwords import Subwords
from vitrail.data.text.words import caption_words
from vitrail.data.text_preprocessing import CaptionPreprocessing
from vitrail.tasks.captioning.objective import CaptionBatch, CaptionObjective
from vitrail.tasks.captioning.scores import CiderD, sentence_bleu
from vitrail.tasks.captioning.settings import CaptionSettings
from vitrail.train.objective import Loss

NUM_DRAWN = 5  # captions of an image and step; Luo 2020, section 3
END = "</s>"  # a word of its own in the scores, without which captions end in the middle: "a man in a"


class SelfCriticalObjective(CaptionObjective):
    """Maximise the expected reward of drawn captions, ``settings.cider_reward`` times their CIDEr-D plus
    ``settings.bleu_reward`` times their BLEU-4.

    The loss is ``sum_w (b - r(w)) log p(w)`` over the captions w drawn for an image, with the reward r and
    the mean reward b of the other captions. There is no dropout: captions are drawn from the distribution
    that is trained.

    Args:
        references: all captions of the training images, for the document frequencies of CIDEr-D.
    """

    unit = "captions"

    def __init__(
        self,
        vocabulary: Subwords,
        preprocessing: CaptionPreprocessing,
        settings: CaptionSettings,
        *,
        augment: AugmentSettings | None,
        references: Sequence[Sequence[str]],
    ) -> None:
        super().__init__(vocabulary, preprocessing, settings, augment=augment)
        self._cider = CiderD([_ended(texts) for texts in references])
        self._never = torch.tensor([vocabulary.pad_id, vocabulary.begin_id, vocabulary.unknown_id])

    def loss(self, model: nn.Module, batch: CaptionBatch) -> Loss:
        model.eval()
        drawn = self._draw(getattr(model, "module", model), batch.images)  # batch captions tokens
        rewards = self._rewards(drawn, batch.references)
        # r - b, where b is the mean of the others, written with the mean of all
        advantages = (rewards - rewards.mean(dim=1, keepdim=True)) * NUM_DRAWN / (NUM_DRAWN - 1)
        begin = torch.full_like(drawn[..., :1], self.vocabulary.begin_id)
        logits = model(batch.images, torch.cat((begin, drawn[..., :-1]), dim=2)).logits
        model.train()
        nll = F.cross_entropy(self._allowed(logits.flatten(0, 2)), drawn.flatten(), reduction="none")
        is_end = drawn == self.vocabulary.end_id
        is_token = is_end.cumsum(dim=2) - is_end.long() == 0  # the end counts, what follows it does not
        total = (advantages[..., None] * nll.view(drawn.shape) * is_token).sum()
        count = torch.tensor(float(rewards.numel()), device=drawn.device)
        return Loss(total, count, {"reward": rewards.sum(), "length": is_token.sum().float()})

    @torch.no_grad()
    def _draw(self, model: Any, images: Tensor) -> Int[Tensor, "batch captions tokens"]:
        """Draw captions token by token; what follows the end of one has no meaning."""
        state = model.start(images).expand(NUM_DRAWN)
        tokens = torch.full((state.num_rows,), self.vocabulary.begin_id, device=images.device)
        has_ended = torch.zeros_like(tokens, dtype=torch.bool)
        drawn: list[Tensor] = []
        while len(drawn) < self.settings.max_length and not bool(has_ended.all()):
            logits, state = model.step(tokens, state)
            tokens = self._allowed(logits).softmax(dim=1).multinomial(1)[:, 0]
            drawn.append(tokens)
            has_ended |= tokens == self.vocabulary.end_id
        return torch.stack(drawn, dim=1).unflatten(0, (-1, NUM_DRAWN))

    def _allowed(self, logits: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, "rows vocabulary"]:
        """Exclude special tokens, which are never written."""
        return logits.float().index_fill(1, self._never.to(logits.device), -math.inf)

    def _rewards(
        self, drawn: Int[Tensor, "batch captions tokens"], references: Sequence[Sequence[str]]
    ) -> Float[Tensor, "batch captions"]:
        rewards = []
        for rows, texts in zip(drawn.tolist(), references, strict=True):
            wanted, own = _ended(texts), []
            for row in rows:
                length = row.index(self.vocabulary.end_id) if self.vocabulary.end_id in row else len(row)
                (text,) = self.vocabulary.decode([row[:length]])
                own.append(self._reward(caption_words(text) + [END] * (length < len(row)), wanted))
            rewards.append(own)
        return torch.tensor(rewards, device=drawn.device)

    def _reward(self, words: Sequence[str], references: Sequence[Sequence[str]]) -> float:
        cider = self.settings.cider_reward and self._cider.score(words, references)
        bleu = self.settings.bleu_reward and sentence_bleu(words, references)
        return self.settings.cider_reward * cider + self.settings.bleu_reward * bleu


def _ended(texts: Sequence[str]) -> list[list[str]]:
    return [[*caption_words(text), END] for text in texts]
