"""The contrastive task: its loss, its gradients over several processes, its batches and scores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F

import vitrail.tasks.contrastive.objective as retrieval
from making import contrastive_processes
from making.contrastive_processes import SHARES, gradients_of, make_model, make_sample
from vitrail.data.text_preprocessing import ImageTextPreprocessing
from vitrail.tasks.contrastive.objective import (
    ContrastiveObjective,
    RetrievalRanks,
    contrast,
    retrieval_ranks,
    retrieval_scores,
)
from vitrail.tasks.contrastive.samples import ImageTextSample
from vitrail.train.objective import Counting, Objective, Ranking

SCRIPT = Path(contrastive_processes.__file__)


@pytest.fixture
def task() -> ContrastiveObjective:
    return ContrastiveObjective(ImageTextPreprocessing(image_size=(16, 16)))


def test_the_loss_is_the_mean_of_both_cross_entropies() -> None:
    images, texts = (F.normalize(torch.randn(4, 5), dim=1) for _ in range(2))
    logits = 3.0 * images @ texts.T
    expected = -(logits.softmax(dim=1).diagonal().log() + logits.softmax(dim=0).diagonal().log()) / 2
    losses, is_found = contrast(images, texts, images, texts, torch.arange(4), torch.tensor(3.0))
    torch.testing.assert_close(losses, expected)
    assert is_found.tolist() == [int(logits[row].argmax()) == row for row in range(4)]


def test_pairs_that_belong_together_cost_less() -> None:
    right, scale = torch.eye(5), torch.tensor(20.0)
    near, _ = contrast(right, right, right, right, torch.arange(5), scale)
    far, _ = contrast(right, right.roll(1, 0), right, right.roll(1, 0), torch.arange(5), scale)
    blind, _ = contrast(right, right, right, right, torch.arange(5), torch.tensor(0.0))
    assert near.max() < 1e-3 < 10 < far.min()
    torch.testing.assert_close(blind, torch.full((5,), 5.0).log())


def test_two_processes_have_the_loss_and_gradients_of_one(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([*command, "1"], env=environment, stderr=subprocess.PIPE) as second:
        first = subprocess.run(
            [*command, "0"], env=environment, capture_output=True, text=True, check=False, timeout=200
        )
        if first.returncode:
            second.kill()
        _, errors = second.communicate()
    assert first.returncode == 0, first.stderr
    assert second.returncode == 0, errors.decode()
    alone = gradients_of(SHARES[0] + SHARES[1], world_size=1)

    assert alone["image.stem.weight"].abs().max() > 1e-4
    assert "logit_scale" in alone
    for rank in range(2):
        together = safetensors.torch.load_file(tmp_path / f"{rank}.safetensors")
        assert together.keys() == alone.keys()
        for name, gradient in alone.items():
            difference = (together[name] - gradient).abs().max()  # sums in another order, float32
            assert difference <= 1e-4 * gradient.abs().max() + 1e-6, name


def test_a_task_that_ranks_and_counts_joins_texts_of_different_lengths(task: ContrastiveObjective) -> None:
    several = make_sample(4)._replace(rows=([1, 5, 2], [1, 6, 7, 8, 2]))
    batch = task.collate([make_sample(0), several], None)
    assert all(isinstance(task, protocol) for protocol in (Objective, Ranking, Counting))
    assert batch.images.shape == (2, 3, 16, 16)
    assert batch.owners.tolist() == [0, 4, 4]
    assert batch.numbers.tolist() == [0, 0, 1]
    assert batch.lengths.tolist() == [4, 3, 5]
    assert batch.tokens[1].tolist() == [1, 5, 2, 0, 0]
    assert len(batch) == len(batch.to(torch.device("cpu"))) == 2


def with_texts(place: int, count: int) -> ImageTextSample:
    return make_sample(place)._replace(rows=tuple([1, 3 + place, 3 + number, 2] for number in range(count)))


def test_scores_do_not_depend_on_batches_and_processes(task: ContrastiveObjective) -> None:
    model = make_model().eval()
    samples = [with_texts(place, 1 + place % 2) for place in range(5)]
    whole, parts, other = (task.evaluator() for _ in range(3))
    with torch.inference_mode():
        whole.update(model, task.collate(samples, None))
        parts.update(model, task.collate(samples[3:], None))
        other.update(model, task.collate(samples[:4], None))  # the fourth is seen by both
    parts.absorb(other.state())

    assert parts.state()["indices"].tolist() == [0, 1, 2, 3, 4]
    assert parts.state()["owners"].tolist() == [0, 1, 1, 2, 3, 3, 4]
    assert parts.report() == whole.report()
    assert parts.result()["count"] == 5
    scores, tables = whole.report()
    assert tables["num_texts"] == 7
    assert 0 < scores["mean_recall"] <= 1
    assert scores["text_to_image_r5"] == 1, "there are five images"


def test_an_evaluator_that_saw_nothing_scores_nothing(task: ContrastiveObjective) -> None:
    evaluator = task.evaluator()
    evaluator.absorb({})
    assert evaluator.result() == {
        "mean_recall": 0.0,
        "image_to_text_r1": 0.0,
        "text_to_image_r1": 0.0,
        "text_to_image_r5": 0.0,
        "count": 0,
    }
    assert evaluator.report() == ({}, {})


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

    empty = torch.zeros(0, dtype=torch.int64)
    assert set(retrieval_scores(RetrievalRanks(empty, empty)).values()) == {0.0}
