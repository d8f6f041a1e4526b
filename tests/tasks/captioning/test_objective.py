"""The loss of captions, the penalty of attention, and the scores of a captioner that is made up."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from making.scripted_writers import ScriptState
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.settings import AugmentSettings
from vitrail.data.text.words import WordVocabulary
from vitrail.data.text_preprocessing import CaptionPreprocessing
from vitrail.models.contract import CaptionModelConfig, CaptionOutput
from vitrail.models.image_encoder import ImageFeatures
from vitrail.tasks.captioning.dataset import CaptionSplit
from vitrail.tasks.captioning.objective import (
    CaptionBatch,
    CaptionObjective,
    attention_penalty,
    find_captions,
)
from vitrail.tasks.captioning.samples import CaptionSample, CaptionSource
from vitrail.tasks.captioning.settings import CaptionSettings
from vitrail.train.evaluate import evaluate

pytest.importorskip("sacrebleu", reason="needs the extra captions")
pytest.importorskip("rouge_score", reason="needs the extra captions")

WORDS = WordVocabulary(["a", "dog", "cat", "runs"])
PREPROCESSING = CaptionPreprocessing(images=Preprocessing(image_size=(2, 3), resize="squash"))


def sample(index: int, rows: list[list[int]], value: int = 0) -> CaptionSample:
    pixels = torch.full((3, 2, 3), value, dtype=torch.uint8)
    return CaptionSample(pixels, rows, tuple(WORDS.decode(rows)), index)


def batch_of_two() -> CaptionBatch:
    task = CaptionObjective(WORDS, PREPROCESSING)
    return task.collate([sample(5, [[4, 5], [6]]), sample(2, [[4, 6, 7]], value=255)], None)


def test_rows_are_padded_to_the_most_captions_and_the_longest() -> None:
    batch = batch_of_two()
    assert len(batch) == 2
    assert batch.caption_in.tolist() == [[[1, 4, 5, 0], [1, 6, 0, 0]], [[1, 4, 6, 7], [0, 0, 0, 0]]]
    assert batch.caption_out.tolist() == [[[4, 5, 2, 0], [6, 2, 0, 0]], [[4, 6, 7, 2], [0, 0, 0, 0]]]
    assert batch.references == (("a dog", "cat"), ("a cat runs",))
    assert batch.indices.tolist() == [5, 2]
    torch.testing.assert_close(batch.images[:, 0, 0, 0], torch.tensor([-1.0, 1.0]))


def test_features_are_handed_on_as_they_are_and_pixels_vary_in_training() -> None:
    features = torch.arange(12).reshape(4, 3).half()
    task = CaptionObjective(WORDS, PREPROCESSING, augment=AugmentSettings(colour=0.9))
    kept = task.collate([CaptionSample(features, [[4]], ("a",), 0)], torch.Generator())
    assert torch.equal(kept.images[0], features.float())
    varied = task.collate([sample(0, [[4]], 100)], torch.Generator().manual_seed(1))
    assert not torch.equal(varied.images, task.collate([sample(0, [[4]], 100)], None).images)


class Telling(nn.Module):
    """Give every token the same logits, and look at the first of three patches alone."""

    def __init__(self, logits: Tensor, *, attends: bool = True) -> None:
        super().__init__()
        self.logits, self.attends = nn.Parameter(logits), attends

    def forward(self, images: Tensor, captions: Tensor) -> CaptionOutput:
        weights = torch.zeros(*captions.shape, 3)
        weights[..., 0] = 1
        logits = self.logits.expand(*captions.shape, -1)
        return CaptionOutput(logits, weights if self.attends else None)


def test_the_loss_counts_tokens_and_leaves_padding_out() -> None:
    logits = torch.randn(WORDS.size)
    loss = CaptionObjective(WORDS, PREPROCESSING, CaptionSettings(label_smoothing=0.0)).loss(
        Telling(logits, attends=False), batch_of_two()
    )
    told = [4, 5, 2, 6, 2, 4, 6, 7, 2]
    assert int(loss.count) == len(told)
    torch.testing.assert_close(loss.total, -logits.log_softmax(0)[told].sum())
    assert "attention" not in loss.parts


def test_the_penalty_is_that_of_each_caption_that_is_there() -> None:
    # Three, two and four steps look at the first patch; two further patches are never looked at.
    expected = (1 - 3) ** 2 + 2 + (1 - 2) ** 2 + 2 + (1 - 4) ** 2 + 2
    settings = CaptionSettings(label_smoothing=0.0, attention_weight=0.5)
    model, batch = Telling(torch.randn(WORDS.size)), batch_of_two()
    with_penalty = CaptionObjective(WORDS, PREPROCESSING, settings).loss(model, batch)
    plain = CaptionObjective(WORDS, PREPROCESSING, settings.with_changes({"attention_weight": 0.0}))
    torch.testing.assert_close(
        with_penalty.total - plain.loss(model, batch).total, torch.tensor(0.5 * expected)
    )
    assert float(with_penalty.parts["attention"]) == pytest.approx(expected)


def test_attention_that_covers_every_patch_once_is_not_punished() -> None:
    attention = torch.eye(4)[None, None]
    assert float(attention_penalty(attention, torch.ones(1, 1, 4, dtype=torch.bool))) == 0.0
    assert float(attention_penalty(attention, torch.tensor([[[True, True, False, False]]]))) == 2.0


class Reciting(nn.Module):
    """Write what an image's first value says: of 0 "a dog runs", of anything else "a cat" without an end."""

    def __init__(self) -> None:
        super().__init__()
        self.config = CaptionModelConfig(vocabulary_size=WORDS.size)
        self.weight = nn.Parameter(torch.zeros(1))

    def encode(self, images: Tensor) -> ImageFeatures:
        return ImageFeatures(images.flatten(2).transpose(1, 2), (images.shape[2], images.shape[3]))

    def start(self, features: Tensor) -> ScriptState:
        is_dog = features[:, 0, 0] < 0
        dog, cat = torch.tensor([4, 5, 7] + 30 * [2]), torch.tensor([4] + 32 * [6])
        return ScriptState(torch.where(is_dog[:, None], dog, cat))

    def step(self, tokens: Tensor, state: ScriptState) -> tuple[Tensor, ScriptState]:
        return state.step(WORDS.size, 9.0)

    def forward(self, features: Tensor, captions: Tensor) -> CaptionOutput:
        return CaptionOutput(torch.zeros(*captions.shape, WORDS.size), None)


@pytest.mark.parametrize("beam_size", [1, 2])
def test_a_captioner_is_scored_whatever_the_batches(beam_size: int) -> None:
    images = np.zeros((3, 2, 3, 3), dtype=np.uint8)
    images[1] = 255
    captions = [["A dog runs.", "dogs"], ["a dog runs"], ["a dog runs", "the dog"]]
    split = CaptionSplit(images, captions, ["x", "y", "z"])
    task = CaptionObjective(WORDS, PREPROCESSING, CaptionSettings(max_length=4), beam_size=beam_size)
    source = CaptionSource(split, WORDS, PREPROCESSING)
    reports = [evaluate(task, Reciting(), source, batch_size=size) for size in (1, 2, 3)]
    scores = reports[0].scores
    assert all(report.scores == scores for report in reports)
    # "a dog runs" twice right, "a cat cat cat" once wrong: seven of ten words.
    assert scores["bleu1"] == pytest.approx(0.7)
    assert scores["cut_off"] == pytest.approx(1 / 3)
    assert scores["nll"] == pytest.approx(math.log(WORDS.size))
    searched = "greedy" if beam_size == 1 else "beam 2, length penalty 0.7"
    assert reports[0].signature["search"] == f"{searched}, at most 4 tokens"
    scoring = reports[0].signature["scoring"]
    assert scoring.startswith("words lower-case,no punctuation; nrefs ")
    assert scoring.endswith("; cider D,own idf; rougeL F1,best")
    written = [image["caption"] for image in reports[0].tables["images"]]
    assert written == ["a dog runs", "a cat cat cat", "a dog runs"]


@pytest.mark.parametrize("beam_size", [1, 2])
def test_scores_of_captions_follow_the_length_penalty(beam_size: int) -> None:
    model, settings = Reciting(), CaptionSettings(length_penalty=0.5)
    ((best,),) = find_captions(model, -torch.ones(1, 6, 3), WORDS, settings, beam_size=beam_size)
    assert best.tokens == (4, 5, 7)
    assert best.score == pytest.approx(best.log_probability / 4**0.5)  # with the end
    settings = CaptionSettings(length_penalty=0.5, penalty_form="gnmt")
    ((best,),) = find_captions(model, -torch.ones(1, 6, 3), WORDS, settings, beam_size=beam_size)
    assert best.score == pytest.approx(best.log_probability / (9 / 6) ** 0.5)


def test_what_processes_collected_is_joined() -> None:
    task = CaptionObjective(WORDS, PREPROCESSING)
    assert task.evaluator().result()["bleu4"] == 0.0
    one, other, both = task.evaluator(), task.evaluator(), task.evaluator()
    first, second = sample(0, [[4, 5, 7]]), sample(1, [[4, 6]], value=255)
    one.update(Reciting(), task.collate([first], None))
    other.update(Reciting(), task.collate([second], None))
    both.update(Reciting(), task.collate([second, first], None))
    one.absorb(other.state())
    one.absorb(other.state())
    assert one.result() == both.result()
    assert one.result()["count"] == 2
