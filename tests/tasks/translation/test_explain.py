from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from PIL import Image

from making.small_translators import ENGLISH, GERMAN, small_translator
from vitrail.core.errors import ConfigError, DataError
from vitrail.interpret import AttentionMap, record_attention
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.tasks.explaining import ExplainOptions, explain_texts
from vitrail.tasks.translation.explanation import explain_examples, explain_text, sharpest
from vitrail.tasks.translation.predictor import Translator
from vitrail.tasks.translation.scores import translation_tables
from vitrail.tasks.translation.search import Search


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator(small_translator())


def test_the_translation_is_the_one_that_is_found(translator: Translator) -> None:
    explained = explain_text(translator, ENGLISH[1])

    ((best,),) = translator.decode(translator.vocabulary.source.encode([ENGLISH[1]]), Search())
    assert [explained.title] == translator.vocabulary.target.decode([best.tokens])
    assert explained.title == next(translator.translate([ENGLISH[1]])).text
    assert len(explained.part("cross").queries.texts) == len(best.tokens) + 1


@pytest.fixture(scope="module")
def explained(translator: Translator) -> Explanation:
    return explain_text(translator, ENGLISH[0], target=GERMAN[0])


def test_maps_have_a_row_for_each_piece_that_asks(explained: Explanation) -> None:
    cross, words = explained.part("cross"), explained.part("words")
    source, target = len(cross.keys.texts), len(cross.queries.texts)
    shapes = {
        "source": (1, 2, source, source),
        "target": (1, 2, target, target),
        "cross": (1, 2, target, source),
        "words": (1, 2, len(words.queries.texts), len(words.keys.texts)),
    }
    counts = {each.name: len(each.layers) for each in explained.maps}
    assert counts == {"words": 3, "cross": 3, "source": 1, "target": 3}
    for maps in explained.maps:
        shape = shapes[maps.name]
        for each in maps.layers:
            assert each.weights.shape == shape, each.layer
            torch.testing.assert_close(each.weights.sum(-1), torch.ones(shape[:-1]), rtol=0, atol=1e-5)
    for each in explained.part("target").layers:  # no piece is read before it is written
        assert float(each.weights.triu(1).abs().max()) == 0.0


def test_pieces_are_words_and_what_goes_on_with_them(explained: Explanation) -> None:
    cross = explained.part("cross")
    written, read = cross.queries.texts, cross.keys.texts
    assert "".join(written[:-1]).replace("\u00b7", "") == GERMAN[0].replace(" ", "")
    assert sum(not piece.startswith("\u00b7") for piece in written[:-1]) == 4  # and the stop
    assert written[-2] == "."
    assert written[-1] == read[-1] == "(end)"
    assert explained.part("target").keys.texts == ("<s>", *written[:-1])


def test_words_are_sums_of_what_is_read_and_means_of_what_reads(explained: Explanation) -> None:
    cross, words = explained.part("cross"), explained.part("words")
    starts = []
    for side in (cross.queries.texts, cross.keys.texts):
        starts.append([place for place, piece in enumerate(side) if not piece.startswith("\u00b7")])

    assert words.queries.texts == (*GERMAN[0].removesuffix(".").split(), ".", "(end)")
    assert words.keys.texts == (*ENGLISH[0].removesuffix(".").split(), ".", "(end)")
    assert words.first == cross.first
    for whole, each in zip(words.layers, cross.layers, strict=True):
        weights = each.weights[0].numpy()
        rows, columns = ([*side, None] for side in starts)
        for row, (top, bottom) in enumerate(pairwise(rows)):
            for column, (left, right) in enumerate(pairwise(columns)):
                expected = weights[:, top:bottom, left:right].sum(-1).mean(-1)
                found = whole.weights[0, :, row, column].numpy()
                assert found == pytest.approx(expected, abs=1e-6)
    assert words.steps == tuple(start - 1 for start in [*starts[0][1:], len(cross.queries.texts)])


def test_the_beam_after_each_step_holds_the_beginning_of_the_translation(translator: Translator) -> None:
    explained = explain_text(translator, ENGLISH[1])

    ((best, *others),) = translator.decode(
        translator.vocabulary.source.encode([ENGLISH[1]]), translator.search._replace(num_best=1)
    )
    assert not others
    steps = explained.part("cross").steps
    assert steps == tuple(range(len(best.tokens) + 1))
    shown = [[each for each in beam if each.is_chosen] for beam in explained.beams]
    assert [len(chosen) for chosen in shown] == [1] * len(explained.beams)
    beginnings = [best.tokens[:length] for length in range(1, len(best.tokens) + 1)]
    texts = translator.vocabulary.target.decode([*beginnings, *[best.tokens] * best.is_finished])
    assert [chosen.text for (chosen,) in shown] == texts
    for beam in explained.beams:
        live = [each.log_probability for each in beam if not each.is_finished]
        assert live == sorted(live, reverse=True)
        assert len(live) == translator.search.beam_size
    assert explain_text(translator, ENGLISH[1], target=GERMAN[1]).beams == ()


def test_subwords_alone_can_be_asked_for(translator: Translator) -> None:
    explained = explain_text(translator, ENGLISH[0], target=GERMAN[0], by_words=False)
    assert [each.name for each in explained.maps] == ["cross", "source", "target"]
    assert explained.maps[0].title == "translation to sentence"


@pytest.mark.parametrize("input_feeding", [True, False, "context"])
def test_a_recurrent_model_has_one_alignment(input_feeding: bool | str) -> None:
    loaded = small_translator("gru_additive", input_feeding=input_feeding)
    translator = Translator(loaded)

    explained = explain_text(translator, ENGLISH[2], target=GERMAN[2], by_words=False)

    (maps,) = explained.maps
    assert maps.name == "cross"
    num_written = len(maps.queries.texts)
    assert explained.attention().shape == (num_written, len(maps.keys.texts))
    torch.testing.assert_close(explained.attention().sum(-1), torch.ones(num_written), rtol=0, atol=1e-5)
    # Step by step with the same tokens, as when it translates.
    source, lengths = translator.torch_decoder.to_batch(translator.vocabulary.source.encode([ENGLISH[2]]))
    (tokens,) = translator.vocabulary.target.encode([GERMAN[2]])
    with torch.inference_mode(), record_attention(translator.model) as maps:
        state = translator.model.start(source, lengths)
        for token in [translator.config.begin_id, *tokens]:
            _, state = translator.model.step(torch.tensor([token]), state)
    stepwise = torch.cat([each.weights[0, 0] for each in maps])
    torch.testing.assert_close(explained.attention(), stepwise, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("text", "message"), [(" ", "nothing to explain"), ("dog " * 300, "subwords")])
def test_texts_that_cannot_be_shown_are_refused(translator: Translator, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        explain_text(translator, text)


def test_the_sharpest_layer_is_shown_first(explained: Explanation) -> None:
    even = torch.full((2, 3, 4), 0.25)
    at_the_end = torch.tensor([0.05, 0.0, 0.05, 0.9]).expand(2, 3, 4)
    sharp = torch.tensor([0.1, 0.7, 0.1, 0.1]).expand(2, 3, 4)

    layers = [AttentionMap("decoder", each[None], "cross", None, 0) for each in (even, sharp, at_the_end)]

    assert sharpest(layers) == 1
    first = sharpest(explained.part("cross").layers)
    assert explained.maps[0].first == first
    attention = explained.attention(of="cross")
    torch.testing.assert_close(attention, explained.part("cross").layers[first].weights[0].mean(0))
    one = explained.attention(of="cross", layer=-1, head=1)
    torch.testing.assert_close(one, explained.part("cross").layers[-1].weights[0, 0])


def test_a_mixer_in_the_place_of_attention_is_shown_by_size() -> None:
    loaded = small_translator(mixer="fourier", decoder_mixer="light_convolution", max_length=60)

    explained = explain_text(Translator(loaded), ENGLISH[0], target=GERMAN[0])

    for maps in explained.maps:
        for each in maps.layers:
            weights = maps.between_sides(each)
            assert float(weights.min()) >= 0.0
            assert float(weights.max()) <= 1.0 + 1e-6


def test_pictures_and_pages_are_written(translator: Translator, tmp_path: Path) -> None:
    explain = partial(explain_text, translator)
    picture, page = ExplainOptions(tmp_path / "a.png"), ExplainOptions(tmp_path / "b.html")
    written = explain_texts(partial(explain, target=GERMAN[0]), [ENGLISH[0]], picture)
    explain_texts(explain, ENGLISH[:2], page)
    written.explained[0].save(tmp_path / "c.png", layer=-1, head=1)

    with Image.open(tmp_path / "a.png") as all_layers, Image.open(tmp_path / "c.png") as one_head:
        assert all_layers.width > 2 * one_head.width
    page = (tmp_path / "b.html").read_text()
    assert all(sentence in page for sentence in ENGLISH[:2])


@pytest.mark.parametrize(
    ("texts", "output", "message"),
    [(ENGLISH[:2], "a.png", "2 sentences"), (ENGLISH[:1], "a.txt", "no suffix of a known format")],
)
def test_outputs_that_do_not_fit_are_refused(
    translator: Translator, tmp_path: Path, texts: list[str], output: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        explain_texts(partial(explain_text, translator), texts, ExplainOptions(tmp_path / output))


def test_typical_sentences_are_aligned_unless_the_model_attends_to_nothing(translator: Translator) -> None:
    tables = translation_tables(ENGLISH, ["x"] * 5, GERMAN, indices=range(5), language="de")

    found = explain_examples(translator, tables)

    assert len(found) == 3
    assert {text.name for text in found} <= set(ENGLISH)
    recurrent = Translator(small_translator("rnn"))
    with pytest.raises(ConfigError, match=r"does not attend.*one vector"):
        explain_text(recurrent, ENGLISH[0])
    assert explain_examples(recurrent, tables) == []
