"""Attention of translators as word alignment, against a small gold set that was made by hand."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from making.small_translators import ENGLISH, GERMAN, small_translator
from vitrail.cli import main
from vitrail.core.errors import ConfigError, DataError
from vitrail.interpret import AttentionMap, record_attention
from vitrail.studies.aligning import measure_alignments
from vitrail.tasks.translation.predictor import Translator

GOLD = (
    "0-0 1-1 2-2",
    "0-0 1-1 2-2 3-3 4-4 5-5",
    "0-0 1-1 2p2 3-3 4-4 5-5 6-6 7-7 8-8",
    "0-0 1-1 2-2 3-3 4-4 5-5 6-8 6p6 7-6 8-7 8p8",  # along ... river is am ... entlang
    "0-0 1-1 2-4 3-2 4-2 5-3",  # in the is one word
)
TAGS = ("DET NOUN VERB", "NUM NOUN VERB ADP DET NOUN", "DET NOUN ADP DET ADJ NOUN VERB DET NOUN")
TAGS += ("DET NOUN VERB ADP DET NOUN ADP NOUN ADP", "NOUN VERB ADP NOUN NOUN")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder of five pairs with gold links, and a model."""
    files = {"test.en": ENGLISH, "test.de": GERMAN, "gold.txt": GOLD, "tags.txt": TAGS}
    for name, lines in files.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    small_translator().save(tmp_path / "model")
    return tmp_path


def error_rate(found: set[tuple[int, int]], line: str) -> tuple[int, int]:
    """Return numerator and denominator of 1 - AER, with the sets of Och and Ney."""
    links = [(link.replace("p", "-").split("-"), "p" in link) for link in line.split()]
    possible = {(int(source), int(target)) for (source, target), _ in links}
    sure = {(int(source), int(target)) for (source, target), is_possible in links if not is_possible}
    return len(found & sure) + len(found & possible), len(found) + len(sure)


def test_the_error_rate_is_that_of_links_found_by_hand(corpus: Path) -> None:
    found = measure_alignments(corpus / "model", corpus / "test", alignments=corpus / "gold.txt")

    translator = Translator(corpus / "model")
    subwords = translator.vocabulary.source
    sums = np.zeros((2, 3, 3, 2))  # rows, layers, mean and heads
    for source, target, line in zip(ENGLISH, GERMAN, GOLD, strict=True):
        counts = [[len(row) for row in subwords.encode(text.split())] for text in (source, target)]
        starts = [np.cumsum([0, *each]) for each in counts]
        rows = [subwords.encode([text])[0] for text in (source, target)]
        with torch.inference_mode(), record_attention(translator.model, "cross") as maps:
            inputs = torch.tensor([[*rows[0], translator.config.end_id]])
            forced = torch.tensor([[translator.config.begin_id, *rows[1]]])
            translator.model(inputs, torch.tensor([inputs.shape[1]]), forced)
        for layer, each in enumerate(maps):
            heads = each.weights[0].double().numpy()
            for head, weights in enumerate([heads.mean(0), *heads]):
                for shift in (0, 1):
                    links = set()
                    for word, (first, stop) in enumerate(zip(starts[1], starts[1][1:], strict=False)):
                        row = weights[first + shift : stop + shift].mean(0)
                        sums_of_words = [
                            row[a:b].sum() for a, b in zip(starts[0], starts[0][1:], strict=False)
                        ]
                        links.add((int(np.argmax(sums_of_words)), word))
                    sums[shift, layer, head] += error_rate(links, line)
    expected = 1 - sums[..., 0] / sums[..., 1]
    maps = found.tables["maps"]
    assert [each["aer"] for each in maps] == pytest.approx(expected.ravel().tolist(), abs=1e-6)
    assert [(each["rows"], each["head"]) for each in maps] == [
        (rows, head) for rows in ("writing", "reading") for _ in range(3) for head in (None, 1, 2)
    ]
    means = [each["aer"] for each in maps if each["head"] is None]
    assert found.scores["aer"] == min(means)
    assert found.signature["samples"] == "5"
    assert "decoder layer" in found.signature["attention"]


def of_links(num_words: int, num_read: int, target_of: dict[int, int]) -> torch.Tensor:
    """Return attention of words of one subword: all on the linked word, otherwise on the end."""
    weights = torch.zeros(1, 1, num_words + 1, num_read + 1)
    weights[..., -1] = 1
    for word, read in target_of.items():
        weights[0, 0, word] = torch.eye(num_read + 1)[read]
    return weights


def test_attention_as_people_align_has_no_error_and_no_entropy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test.en").write_text("a b c\n")
    (tmp_path / "test.de").write_text("x y z\n")
    (tmp_path / "gold.txt").write_text("0-2 1-1 2p0\n")
    (tmp_path / "tags.txt").write_text("A B A\n")
    small_translator().save(tmp_path / "model")

    def measure(weights: torch.Tensor) -> dict[str, float]:
        maps = (AttentionMap("decoder.0.cross_attention", weights, "cross", None, 0),)
        aligning = importlib.import_module("vitrail.studies.aligning")
        monkeypatch.setattr(
            aligning, "attend_forced", lambda translator, row, tokens: merged(maps, row, tokens)
        )
        files = {"alignments": tmp_path / "gold.txt", "tags": tmp_path / "tags.txt"}
        return measure_alignments(tmp_path / "model", tmp_path / "test", **files)

    def merged(maps: tuple[AttentionMap, ...], row: tuple[int, ...], tokens: tuple[int, ...]):
        # Each word has as many tokens as the vocabulary says; all of them attend alike.
        vocabulary = Translator(tmp_path / "model").vocabulary.source
        sizes = [[len(each) for each in vocabulary.encode(text.split())] for text in ("a b c", "x y z")]
        assert [len(row), len(tokens)] == [*map(sum, sizes)]
        rows, columns = (
            torch.repeat_interleave(torch.arange(4), torch.tensor([*each, 1])) for each in sizes[::-1]
        )
        shares = torch.tensor([1 / size for size in [*sizes[0], 1] for _ in range(size)])
        return tuple(each._replace(weights=each.weights[:, :, rows][..., columns] * shares) for each in maps)

    perfect = measure(of_links(3, 3, {0: 2, 1: 1, 2: 0}))
    assert perfect.scores == {"aer": 0.0, "precision": 1.0, "recall": 1.0, "entropy": 0.0}
    # Two words of three have possible links, one of them a sure one: 1 - (1 + 2) / (3 + 2).
    partly = measure(of_links(3, 3, {0: 2, 1: 1, 2: 1}))
    assert partly.scores["aer"] == pytest.approx(0.4)
    assert (partly.scores["precision"], partly.scores["recall"]) == pytest.approx((2 / 3, 1 / 2))
    assert partly.tables["tags"] == [
        {"tag": "A", "words": 2, "precision": 0.5, "entropy": 0.0},
        {"tag": "B", "words": 1, "precision": 1.0, "entropy": 0.0},
    ]
    even = measure(torch.full((1, 1, 4, 4), 0.25))
    assert even.scores["entropy"] == pytest.approx(math.log(4))


def test_words_are_grouped_by_their_part_of_speech_without_gold(corpus: Path) -> None:
    found = measure_alignments(corpus / "model", corpus / "test", tags=corpus / "tags.txt")

    assert found.scores.keys() == {"entropy"}
    counts = {each["tag"]: each["words"] for each in found.tables["tags"]}
    assert counts == {"NOUN": 12, "DET": 7, "ADP": 6, "VERB": 5, "NUM": 1, "ADJ": 1}
    weighted = sum(each["words"] * each["entropy"] for each in found.tables["tags"]) / 32
    assert weighted == pytest.approx(found.scores["entropy"], rel=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gold.txt": "0-0 1-1 9-2\n" + "\n" * 4}, "source word 10 to target word 3.* 3 and 3 words"),
        ({"gold.txt": "0-0\n"}, "is about 1 pairs, and there are 5"),
        ({"tags.txt": "NOUN\n" * 5}, "line 1 of .* has 1 tags for a sentence of 3 words"),
        ({"tags.txt": "DET NOUN VERB\n"}, "line 2 of .* has 0 tags for a sentence of 6 words"),
        (
            {"test.en": "A dog runs.\n" + "\n" * 4, "test.de": "x\n" * 5, "gold.txt": "0-0\n" + "\n" * 4},
            "0 words and 0 subwords",
        ),
    ],
)
def test_files_that_do_not_fit_the_pairs_are_refused(
    corpus: Path, change: dict[str, str], message: str
) -> None:
    for name, content in change.items():
        (corpus / name).write_text(content)

    with pytest.raises(DataError, match=message):
        measure_alignments(
            corpus / "model",
            corpus / "test",
            alignments=corpus / "gold.txt" if "tags.txt" not in change else None,
            tags=corpus / "tags.txt" if "gold.txt" not in change and "test.en" not in change else None,
        )


def test_what_cannot_be_aligned_is_refused(corpus: Path) -> None:
    gold = corpus / "gold.txt"
    with pytest.raises(ConfigError, match="--alignments FILE"):
        measure_alignments(corpus / "model", corpus / "test")
    with pytest.raises(ConfigError, match=r"no split 'train'.*Expected test"):
        measure_alignments(corpus / "model", corpus / "test", alignments=gold, split="train")
    small_translator("rnn").save(corpus / "rnn")
    with pytest.raises(ConfigError, match="does not attend"):
        measure_alignments(corpus / "rnn", corpus / "test", alignments=gold)


def test_the_command_prints_layers_tags_and_the_signature(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["evaluate", str(corpus / "model"), str(corpus / "test")]
    arguments += ["--alignments", str(corpus / "gold.txt"), "--tags", str(corpus / "tags.txt")]

    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert main([*arguments, "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)

    assert max(map(len, shown.splitlines())) <= 80
    table = [line.split() for line in shown.splitlines() if line.startswith("decoder layer")]
    assert [(row[2], row[3], row[4]) for row in table[:6]] == [
        (str(layer), "mean", rows) for rows in ("writing", "reading") for layer in (1, 2, 3)
    ]
    best = min(
        (each for each in tree["tables"]["maps"] if each["head"] is not None), key=lambda each: each["aer"]
    )
    assert table[6][3:6] == [str(best["head"]), best["rows"], f"{best['aer']:.3f}"]
    assert len(table) == 7
    assert "NOUN" in shown
    assert len(tree["tables"]["maps"]) == 18
    assert main([*arguments, "--merge-tokens", "2"]) == 2
    assert "without --alignments and --tags" in " ".join(capsys.readouterr().err.split())
