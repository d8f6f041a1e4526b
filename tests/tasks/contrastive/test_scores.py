"""Ranks and recalls of retrieval, on embeddings whose answer is known."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import vitrail.tasks.contrastive.objective as retrieval
from vitrail.tasks.contrastive.objective import RetrievalRanks, retrieval_ranks, retrieval_scores


def rank_plainly(images, texts, owners) -> RetrievalRanks:
    """Sort all, one image and one text after the other."""
    scores = (texts @ images.T).tolist()
    of_images = [
        sorted(row, reverse=True).index(row[owner]) + 1 for row, owner in zip(scores, owners, strict=True)
    ]
    of_texts = []
    for image in range(len(images)):
        column = sorted(range(len(texts)), key=lambda text: -scores[text][image])
        own = [place for place, text in enumerate(column, start=1) if owners[text] == image]
        of_texts.append(min(own))
    return RetrievalRanks(torch.tensor(of_texts), torch.tensor(of_images))


def test_ranks_are_those_of_sorting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "ROWS_AT_ONCE", 4)  # so that several parts are ranked
    images, texts = (F.normalize(torch.randn(count, 5), dim=1) for count in (11, 23))
    owners = torch.cat((torch.arange(11), torch.randint(11, (12,))))

    found, expected = retrieval_ranks(images, texts, owners), rank_plainly(images, texts, owners.tolist())

    assert torch.equal(found.of_texts, expected.of_texts)
    assert torch.equal(found.of_images, expected.of_images)


def test_equal_embeddings_find_nothing() -> None:
    ranks = retrieval_ranks(torch.ones(7, 3), torch.ones(14, 3), torch.arange(7).repeat_interleave(2))

    assert ranks.of_images.tolist() == [7] * 14
    assert ranks.of_texts.tolist() == [13] * 7  # behind the twelve texts of other images
    assert retrieval_scores(ranks)["text_to_image_r1"] == 0


def test_recalls_are_shares_of_the_first() -> None:
    ranks = RetrievalRanks(torch.tensor([1, 5, 10, 11]), torch.tensor([1, 2, 3, 30]))
    scores = retrieval_scores(ranks)

    assert [scores[f"image_to_text_r{depth}"] for depth in (1, 5, 10)] == [0.25, 0.5, 0.75]
    assert [scores[f"text_to_image_r{depth}"] for depth in (1, 5, 10)] == [0.25, 0.75, 0.75]
    assert scores["mean_recall"] == pytest.approx((0.25 + 0.5 + 0.75 + 0.25 + 0.75 + 0.75) / 6)


def test_nothing_scores_zero() -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    assert set(retrieval_scores(RetrievalRanks(empty, empty)).values()) == {0.0}
