from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from small_translators import ENGLISH, GERMAN, small_translator
from vitrail.core.errors import ConfigError, DataError
from vitrail.interpret import AttentionMap, record_attention
from vitrail.tasks.translation.explain import explain_examples, explain_text, explain_texts
from vitrail.tasks.translation.explanation import TextExplanation
from vitrail.tasks.translation.predictor import Translator
from vitrail.tasks.translation.scores import CorpusScore, CorpusScores
from vitrail.tasks.translation.search import Search
from vitrail.tasks.translation.tables import TranslatedSentence, TranslationTables


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator(small_translator())


def test_the_translation_is_the_one_that_is_found(translator: Translator) -> None:
    explained = explain_text(translator, ENGLISH[1])

    (expected,) = translator.translate([ENGLISH[1]])
    assert explained.target == expected.text
    ((best,),) = translator.find(translator.vocabulary.source.encode([ENGLISH[1]]), Search())
    assert len(explained.target_pieces) == len(best.tokens) + 1


def test_maps_have_a_row_for_each_piece_that_asks(translator: Translator) -> None:
    explained = explain_text(translator, ENGLISH[0], target=GERMAN[0])

    source, target = len(explained.source_pieces), len(explained.target_pieces)
    shapes = {
        "source": (1, 2, source, source),
        "target": (1, 2, target, target),
        "cross": (1, 2, target, source),
    }
    assert explained.sides.count("source") == 1
    assert explained.sides.count("target") == explained.sides.count("cross") == 3
    for each, side in zip(explained.maps, explained.sides, strict=True):
        assert each.weights.shape == shapes[side], each.layer
        torch.testing.assert_close(each.weights.sum(-1), torch.ones(shapes[side][:-1]), rtol=0, atol=1e-5)


def test_the_target_reads_no_piece_before_it_is_written(translator: Translator) -> None:
    explained = explain_text(translator, ENGLISH[0], target=GERMAN[0])

    for each, side in zip(explained.maps, explained.sides, strict=True):
        if side == "target":
            assert float(each.weights.triu(1).abs().max()) == 0.0


def test_pieces_are_words_and_what_goes_on_with_them(translator: Translator) -> None:
    explained = explain_text(translator, ENGLISH[0], target=GERMAN[0])

    assert "".join(explained.target_pieces[:-1]).replace("\u00b7", "") == GERMAN[0].replace(" ", "")
    assert sum(not piece.startswith("\u00b7") for piece in explained.target_pieces[:-1]) == 4  # and the stop
    assert explained.target_pieces[-2] == "."
    assert explained.target_pieces[-1] == explained.source_pieces[-1] == "</s>"
    assert explained.begin_piece == "<s>"


@pytest.mark.parametrize("input_feeding", [True, False])
def test_a_recurrent_model_has_one_alignment(input_feeding: bool) -> None:
    loaded = small_translator("gru_additive", input_feeding=input_feeding)
    translator = Translator(loaded)

    explained = explain_text(translator, ENGLISH[2], target=GERMAN[2])

    assert explained.sides == ("cross",)
    assert explained.alignment().shape == (len(explained.target_pieces), len(explained.source_pieces))
    torch.testing.assert_close(
        explained.alignment().sum(-1), torch.ones(len(explained.target_pieces)), rtol=0, atol=1e-5
    )
    # Step by step with the same tokens, as when it translates.
    source, lengths = translator.to_batch(translator.vocabulary.source.encode([ENGLISH[2]]))
    (tokens,) = translator.vocabulary.target.encode([GERMAN[2]])
    with torch.inference_mode(), record_attention(translator.model) as maps:
        state = translator.model.start(source, lengths)
        for token in [translator.config.begin_id, *tokens]:
            _, state = translator.model.step(torch.tensor([token]), state)
    stepwise = torch.cat([each.weights[0, 0] for each in maps])
    torch.testing.assert_close(explained.alignment(), stepwise, rtol=0, atol=1e-5)


def test_a_model_that_attends_to_nothing_says_so() -> None:
    translator = Translator(small_translator("rnn"))

    with pytest.raises(ConfigError, match=r"does not attend.*one vector"):
        explain_text(translator, ENGLISH[0])


@pytest.mark.parametrize(("text", "message"), [(" ", "nothing to explain"), ("dog " * 300, "subwords")])
def test_texts_that_cannot_be_shown_are_refused(translator: Translator, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        explain_text(translator, text)


def toy_explanation(*weights: torch.Tensor) -> TextExplanation:
    maps = [
        AttentionMap(f"decoder.{place}", each[None], "cross", None, 0) for place, each in enumerate(weights)
    ]
    rows, columns = weights[0].shape[-2:]
    return TextExplanation(
        source="one two",
        target="eins zwei",
        source_pieces=tuple("abcdefg"[:columns]),
        target_pieces=tuple("pqrstuv"[:rows]),
        begin_piece="<s>",
        maps=tuple(maps),
        sides=("cross",) * len(maps),
    )


def test_the_sharpest_layer_is_shown_first() -> None:
    even = torch.full((2, 3, 4), 0.25)
    at_the_end = torch.tensor([0.05, 0.0, 0.05, 0.9]).expand(2, 3, 4)
    sharp = torch.tensor([0.1, 0.7, 0.1, 0.1]).expand(2, 3, 4)

    explained = toy_explanation(even, sharp, at_the_end)

    assert explained.sharpest == 1
    assert explained.for_page().first_shown == 1
    torch.testing.assert_close(explained.alignment(), sharp[0])
    torch.testing.assert_close(explained.alignment(-1, 0), at_the_end[0])


def test_layers_and_heads_that_do_not_exist_are_refused() -> None:
    explained = toy_explanation(torch.full((2, 3, 4), 0.25))

    with pytest.raises(ConfigError, match="no layer 1"):
        explained.alignment(1)
    with pytest.raises(ConfigError, match="no head 2"):
        explained.picture(0, 2)


def test_a_mixer_in_the_place_of_attention_is_shown_by_size() -> None:
    loaded = small_translator(mixer="fourier", max_length=60)

    page = explain_text(Translator(loaded), ENGLISH[0], target=GERMAN[0]).for_page()

    for layer in page.layers:
        assert float(layer.weights.min()) >= 0.0
        assert float(layer.weights.max()) <= 1.0 + 1e-6


def test_pictures_and_pages_are_written(translator: Translator, tmp_path: Path) -> None:
    explained = explain_texts(translator, [ENGLISH[0]], target=GERMAN[0], output=tmp_path / "a.png")
    explain_texts(translator, ENGLISH[:2], output=tmp_path / "b.html")
    explained[0].save(tmp_path / "c.png", layer=-1, head=0)

    with Image.open(tmp_path / "a.png") as all_layers, Image.open(tmp_path / "c.png") as one_head:
        assert all_layers.width > 2 * one_head.width
    page = (tmp_path / "b.html").read_text()
    assert all(sentence in page for sentence in ENGLISH[:2])


@pytest.mark.parametrize(
    ("texts", "output", "target", "message"),
    [
        (ENGLISH[:2], "a.png", None, "2 sentences"),
        (ENGLISH[:2], "a.html", "Ein Hund", "2 sentences"),
        (ENGLISH[:1], "a.txt", None, "no suffix of a known format"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(
    translator: Translator, tmp_path: Path, texts: list[str], output: str, target: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        explain_texts(translator, texts, target=target, output=tmp_path / output)


def toy_tables() -> TranslationTables:
    score = CorpusScore(score=20.0, lower=None, upper=None, signature="toy")
    return TranslationTables(
        scores=CorpusScores(
            bleu=score,
            chrf=score,
            bleu_tokenised=None,
            precisions=(50.0, 30.0, 20.0, 10.0),
            brevity_penalty=1.0,
            length_ratio=1.0,
            num_sentences=5,
        ),
        buckets=(),
        sentences=tuple(
            TranslatedSentence(index=i, source=source, reference=target, hypothesis="x", chrf=10.0 * i)
            for i, (source, target) in enumerate(zip(ENGLISH, GERMAN, strict=True))
        ),
    )


def test_typical_sentences_are_aligned_for_the_report(translator: Translator) -> None:
    found = explain_examples(translator, toy_tables())

    assert len(found) == 3
    assert {text.source for text in found} <= set(ENGLISH)


def test_a_report_without_attention_has_no_alignments() -> None:
    translator = Translator(small_translator("rnn"))

    assert explain_examples(translator, toy_tables()) == []
