from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from making.scripted_writers import ScriptState
from vitrail.core.errors import DataError
from vitrail.data.text.subwords import PairVocabulary
from vitrail.data.text_preprocessing import PairPreprocessing
from vitrail.models.contract import TranslationModelConfig
from vitrail.tasks.translation.dataset import PairSplit
from vitrail.tasks.translation.objective import TranslationObjective
from vitrail.tasks.translation.samples import Pair, PairSource
from vitrail.tasks.translation.search import Search
from vitrail.train.objective import Evaluator, Objective, TensorBatch

PREPROCESSING = PairPreprocessing(languages=("en", "de"))
DICTIONARY = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "f\u00fcnf"}
SOURCES = [
    "one two three four five",
    "five four three two one one",
    "two two four one three five two",
    "three one four one",
    "four five one two three one four five one",
]
TARGETS = [" ".join(DICTIONARY[word] for word in source.split()) for source in SOURCES]


VOCABULARY = PairVocabulary.train(SOURCES, TARGETS, size=44, is_joint=False)


@pytest.fixture
def task() -> TranslationObjective:
    return TranslationObjective(VOCABULARY, PREPROCESSING, label_smoothing=0.2)


def pairs(*places: int) -> list[Pair]:
    chosen = list(places or range(len(SOURCES)))
    loaded = load([SOURCES[place] for place in chosen], [TARGETS[place] for place in chosen], PREPROCESSING)
    return [pair._replace(index=10 + place) for pair, place in zip(loaded, chosen, strict=True)]


def load(sources: list[str], targets: list[str], preprocessing: PairPreprocessing) -> list[Pair]:
    split = PairSplit(sources, targets, [f"pairs:{place}" for place in range(len(sources))])
    source = PairSource(split, VOCABULARY, preprocessing)
    return [source.load(place, None) for place in range(len(sources))]


class Counting(nn.Module):
    """Let logits depend on the words before and on the sentence, as far as its length goes."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Embedding(VOCABULARY.source.size, 7)
        self.write = nn.Embedding(VOCABULARY.target.size, 7)
        self.head = nn.Linear(7, VOCABULARY.target.size)

    def forward(self, source: Tensor, source_lengths: Tensor, target: Tensor) -> Tensor:
        is_word = torch.arange(source.shape[1]) < source_lengths[:, None]
        sentence = (self.read(source) * is_word[:, :, None]).sum(dim=1, keepdim=True)
        return self.head(self.write(target).cumsum(dim=1) + sentence)


class Table(nn.Module):
    """Look up the translation of a sentence, and give each of its subwords a logit of ``sureness``."""

    def __init__(self, sureness: float, ends: bool = True) -> None:
        super().__init__()
        self.config = TranslationModelConfig(
            source_vocabulary_size=VOCABULARY.source.size, target_vocabulary_size=VOCABULARY.target.size
        )
        self.sureness = nn.Parameter(torch.tensor(sureness))
        rows = zip(VOCABULARY.source.encode(SOURCES), VOCABULARY.target.encode(TARGETS), strict=True)
        # Endless ones begin again and again, the others write ends.
        self.table = {
            tuple(source): ([*target, *[2] * 99] if ends else target * 99)[:99] for source, target in rows
        }

    def written(self, source: Tensor, source_lengths: Tensor) -> Tensor:
        rows = zip(source.tolist(), source_lengths.tolist(), strict=True)
        return torch.tensor([self.table[tuple(row[: length - 1])] for row, length in rows])

    def forward(self, source: Tensor, source_lengths: Tensor, target: Tensor) -> Tensor:
        tokens = self.written(source, source_lengths)[:, : target.shape[1]]
        return self.sureness * F.one_hot(tokens, self.config.target_vocabulary_size)

    def start(self, source: Tensor, source_lengths: Tensor) -> ScriptState:
        return ScriptState(self.written(source, source_lengths))

    def step(self, tokens: Tensor, state: ScriptState) -> tuple[Tensor, ScriptState]:
        return state.step(self.config.target_vocabulary_size, self.sureness)


@torch.inference_mode()
def evaluate(task: TranslationObjective, model: nn.Module, *batches: list[Pair]) -> dict[str, Tensor]:
    evaluator = task.evaluator()
    for batch in batches:
        evaluator.update(model, task.collate(batch, None))
    return evaluator.state()


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_collate_ends_sentences_and_shifts_translations(task: TranslationObjective) -> None:
    batch = task.collate(pairs(3, 0), None)

    source, target = VOCABULARY.source.encode([SOURCES[3]])[0], VOCABULARY.target.encode([TARGETS[3]])[0]
    assert batch.source[0].tolist()[: len(source) + 2] == [*source, 2, 0]
    assert batch.source_lengths[0] == len(source) + 1
    assert batch.target_in[0].tolist()[: len(target) + 2] == [1, *target, 0]
    assert batch.target_out[0].tolist()[: len(target) + 2] == [*target, 2, 0]
    assert batch.source.shape[1] == batch.source_lengths[1] > batch.source_lengths[0]
    assert batch.indices.tolist() == [13, 10]
    assert batch.sources == (SOURCES[3], SOURCES[0])
    assert batch.references == (TARGETS[3], TARGETS[0])
    assert len(batch) == 2


def test_an_empty_sentence_is_its_end_alone(task: TranslationObjective) -> None:
    batch = task.collate(load([""], [""], PREPROCESSING), None)

    assert batch.source.tolist() == [[2]]
    assert (batch.target_in.tolist(), batch.target_out.tolist()) == ([[1]], [[2]])


def test_references_are_lower_case_where_the_output_is() -> None:
    preprocessing = PairPreprocessing(languages=("en", "de"), lower_case=True)

    pairs = load(["ONE  two"], ["Eins  zwei"], preprocessing)
    batch = TranslationObjective(VOCABULARY, preprocessing).collate(pairs, None)

    assert batch.references == ("eins  zwei",)
    assert batch.sources == ("ONE  two",)
    assert VOCABULARY.source.unknown_id not in batch.source


def test_batch_moves_every_tensor(task: TranslationObjective) -> None:
    batch = task.collate(pairs(), None)

    tensors = [value for value in vars(batch.to(torch.device("meta"))).values() if isinstance(value, Tensor)]
    assert len(tensors) == 5
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert isinstance(task, Objective)
    assert isinstance(task.evaluator(), Evaluator)
    assert isinstance(batch, TensorBatch)


def test_loss_is_the_smoothed_cross_entropy_of_all_subwords(task: TranslationObjective) -> None:
    model, batch = Counting(), task.collate(pairs(), None)

    loss = task.loss(model, batch)
    loss.total.backward()
    gradient = model.head.weight.grad.clone()
    model.zero_grad()
    logits = model(batch.source, batch.source_lengths, batch.target_in).flatten(0, 1)
    wanted = batch.target_out.flatten()
    expected = F.cross_entropy(logits, wanted, ignore_index=0, label_smoothing=0.2, reduction="sum")
    expected.backward()

    torch.testing.assert_close(loss.total, expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(gradient, model.head.weight.grad, rtol=1e-5, atol=1e-5)
    assert loss.count == (batch.target_out != 0).sum()
    nll = F.cross_entropy(logits, wanted, ignore_index=0, reduction="sum")
    torch.testing.assert_close(loss.parts["nll"], nll.detach(), rtol=1e-5, atol=0)
    assert loss.parts["correct"] == ((logits.argmax(dim=-1) == wanted) & (wanted != 0)).sum()


def test_padding_changes_no_loss_and_losses_of_batches_add_up(task: TranslationObjective) -> None:
    model, batch = Counting(), task.collate(pairs(), None)
    widened = replace(
        batch,
        source=F.pad(batch.source, (0, 3)),
        target_in=F.pad(batch.target_in, (0, 5)),
        target_out=F.pad(batch.target_out, (0, 5)),
    )

    plain, padded = task.loss(model, batch), task.loss(model, widened)
    parts = [task.loss(model, task.collate(pairs(index), None)) for index in range(len(SOURCES))]

    torch.testing.assert_close(padded.total, plain.total, rtol=1e-6, atol=0)
    assert padded.count == plain.count
    assert padded.parts["correct"] == plain.parts["correct"]
    torch.testing.assert_close(sum(part.total for part in parts), plain.total, rtol=1e-5, atol=0)
    assert sum(part.count for part in parts) == plain.count


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_perfect_translator_scores_100(beam_size: int) -> None:
    task = TranslationObjective(VOCABULARY, PREPROCESSING, search=Search(beam_size))
    evaluator, model = task.evaluator(), Table(30.0)

    with torch.inference_mode():
        evaluator.update(model, task.collate(pairs(), None))
    result, (scores, tables) = evaluator.result(), evaluator.report()

    assert result["bleu"] == pytest.approx(100)
    assert result["count"] == len(SOURCES)
    assert result["perplexity"] == pytest.approx(1, abs=1e-5)
    assert scores["bleu"] == pytest.approx(100)
    assert scores["nll"] == result["nll"]
    assert scores["cut_off"] == 0
    signature = evaluator.signature(tables)
    searched = "greedy" if beam_size == 1 else "beam 3, length penalty 1"
    assert signature["search"] == f"{searched}, at most 2 x source + 10 tokens"
    assert "tok 13a" in signature["bleu"]
    assert list(signature) == ["search", "bleu", "chrf", "bleu_tokenised"]
    assert [row["hypothesis"] for row in tables["sentences"]] == TARGETS
    assert [row["index"] for row in tables["sentences"]] == [10, 11, 12, 13, 14]


def test_likelihood_is_that_of_a_subword(task: TranslationObjective) -> None:
    sureness = 2.0
    evaluator = task.evaluator()

    with torch.inference_mode():
        evaluator.update(Table(sureness), task.collate(pairs(), None))

    others = VOCABULARY.target.size - 1
    expected = math.log(math.exp(sureness) + others) - sureness
    assert evaluator.result()["nll"] == pytest.approx(expected, rel=1e-5)
    assert evaluator.result()["perplexity"] == pytest.approx(math.exp(expected), rel=1e-4)


def test_a_translator_that_never_ends_is_cut_off(task: TranslationObjective) -> None:
    evaluator, batch = task.evaluator(), task.collate(pairs(0, 3), None)

    with torch.inference_mode():
        evaluator.update(Table(30.0, ends=False), batch)
    scores, tables = evaluator.report()

    assert scores["cut_off"] == 1
    limits = [2 * length + 10 for length in batch.source_lengths.tolist()]
    endless = [row * 9 for row in VOCABULARY.target.encode([TARGETS[0], TARGETS[3]])]
    expected = [row[:limit] for row, limit in zip(endless, limits, strict=True)]
    assert [row["hypothesis"] for row in tables["sentences"]] == VOCABULARY.target.decode(expected)


def test_order_batches_and_duplicates_change_no_score(task: TranslationObjective) -> None:
    model = Table(3.0)

    whole = evaluate(task, model, pairs())
    parts = evaluate(task, model, pairs(4, 1), pairs(2), pairs(1, 0, 3))

    assert whole["indices"].tolist() == [10, 11, 12, 13, 14]
    assert whole["num_tokens"].tolist() == parts["num_tokens"].tolist()
    torch.testing.assert_close(whole.pop("nll"), parts.pop("nll"), rtol=1e-6, atol=0)
    assert same(whole, parts)


def test_processes_join_what_they_saw(task: TranslationObjective) -> None:
    model = Table(3.0)
    first, second = evaluate(task, model, pairs(4, 1, 2)), evaluate(task, model, pairs(0, 1, 3))

    joined, other = task.evaluator(), task.evaluator()
    joined.absorb(first)
    joined.absorb(second)
    other.absorb(second)
    other.absorb(first)

    whole = evaluate(task, model, pairs())
    assert joined.result() == other.result()
    assert joined.report() == other.report()
    assert joined.state()["texts"].tolist() == whole["texts"].tolist()
    assert all(tensor.device.type == "cpu" for tensor in whole.values())


def test_evaluation_under_bfloat16_keeps_the_translations(task: TranslationObjective) -> None:
    model = Table(5.0)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = evaluate(task, model, pairs())

    assert rounded["texts"].tolist() == evaluate(task, model, pairs())["texts"].tolist()


def test_an_evaluator_that_saw_nothing_says_so(task: TranslationObjective) -> None:
    evaluator, other = task.evaluator(), task.evaluator()

    other.absorb(evaluator.state())

    assert other.result() == {"bleu": 0.0, "nll": 0.0, "perplexity": 1.0, "count": 0}
    with pytest.raises(DataError):
        other.report()
