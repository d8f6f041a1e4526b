"""Explain a translator: the source words behind each generated one, under teacher forcing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from vitrail.core.errors import ConfigError, DataError
from vitrail.data.text.subword_sampling import SPACE
from vitrail.data.text.subwords import Subwords
from vitrail.data.text.word_groups import END, GroupedWords, words_of_text, words_of_tokens
from vitrail.interpret import AttentionMap, has_attention, record_any, record_attention
from vitrail.interpret.viewer.explanation import BeamEntry, Explanation
from vitrail.interpret.viewer.maps import Maps, Tokens, merge_words
from vitrail.models.decoding import Hypothesis
from vitrail.tasks.generation import nothing_to_show
from vitrail.tasks.translation.predictor import Translator
from vitrail.tasks.translation.scores import TranslationTables, typical_sentences

NUM_EXAMPLES = 3  # alignments in a report
MAX_PIECES = 256  # of either side; a larger picture is unreadable
SHARPEST_NOTE = "Shown first: the layer that attends most to one source subword for each subword."
CONTINUES = "\u00b7"  # marks a continuation within a word


def explain_text(
    translator: Translator, text: str, *, target: str | None = None, by_words: bool = True
) -> Explanation:
    """Translate a sentence, or use a given translation, and record its attention.

    Attention is recorded under teacher forcing, not during beam search, whose hypotheses are kept beside it.

    Args:
        target: a translation; by default the model's best.
        by_words: whether the alignment of words comes before that of subwords, if there are words of several.

    Raises:
        ConfigError: the model attends to nothing, or attends but not to the sentence.
        DataError: there is no text, or too much of it for one picture.
    """
    if not has_attention(translator.model):
        raise nothing_to_show(translator.config, "sentence", "translate")
    vocabulary, prepare = translator.vocabulary, translator.preprocessing.prepare
    (sentence,) = prepare([text])
    (row,) = vocabulary.source.encode([sentence])
    _check_size(row, text, min(MAX_PIECES, translator.max_source_length))
    source, lengths = translator.torch_decoder.to_batch([row])
    beams: list[list[Hypothesis]] = []
    if target is None:
        with torch.inference_mode():
            ((best, *_),) = translator.search.run(translator.model, source, lengths, on_step=beams.append)
        tokens = list(best.tokens)
        (written,) = vocabulary.target.decode([tokens])
    else:
        written = target
        (target,) = prepare([target])
        (tokens,) = vocabulary.target.encode([target])
    _check_size(tokens, written, MAX_PIECES)
    with torch.inference_mode(), record_attention(translator.model) as first:
        translator.model.start(source, lengths)
    layers = attend_forced(translator, row, tokens)
    of_source = {each.layer for each in first}
    end = translator.config.end_id
    read = Tokens(_pieces(vocabulary.source, [*row, end]))
    forced_in = Tokens(_pieces(vocabulary.target, [translator.config.begin_id, *tokens]))
    asked = Tokens(_pieces(vocabulary.target, [*tokens, end]))
    steps = tuple(range(len(tokens) + 1))
    cross = tuple(each for each in layers if each.kind == "cross")
    if not cross:
        raise nothing_to_show(translator.config, "sentence", "translate")
    own = [each for each in layers if each.kind != "cross"]
    within_source = tuple(each for each in own if each.layer in of_source)
    within_target = tuple(each for each in own if each.layer not in of_source)
    crossing = Maps(
        name="cross",
        title="translation to sentence",
        layers=cross,
        queries=asked,
        keys=read,
        first=sharpest(cross),
        note=SHARPEST_NOTE if len(cross) > 1 else "",
        steps=steps,
    )
    maps = [
        crossing,
        Maps(name="source", title="sentence to itself", layers=within_source, queries=read, keys=read),
        Maps(
            name="target",
            title="translation to itself",
            layers=within_target,
            queries=asked,
            keys=forced_in,
            steps=steps,
        ),
    ]
    read_words = _group(vocabulary.source, row, sentence)
    asked_words = _group(vocabulary.target, tokens, target)
    are_merged = len(read_words.steps) < len(read.texts) or len(asked_words.steps) < len(asked.texts)
    if by_words and are_merged:
        by_subwords = replace(crossing, title=f"{crossing.title}, by subwords")
        maps[:1] = [_of_words(crossing, asked_words, read_words), by_subwords]
    shown = tuple(each for each in maps if each.layers)
    return Explanation(name=text, title=written, maps=shown, beams=_entries(vocabulary.target, beams, tokens))


def attend_forced(
    translator: Translator, row: Sequence[int], tokens: Sequence[int]
) -> tuple[AttentionMap, ...]:
    """Return all attention maps of a sentence and a given translation, under teacher forcing.

    Args:
        row: source subwords, without the end.
        tokens: target subwords, without begin and end.
    """
    source, lengths = translator.torch_decoder.to_batch([row])
    forced = torch.tensor([[translator.config.begin_id, *tokens]], device=translator.device)
    with torch.inference_mode(), record_any(translator.model) as recorded:
        translator.model(source, lengths, forced)
    return _join_steps(recorded)


def sharpest(layers: Sequence[AttentionMap]) -> int:
    """Return the index of the layer whose heads agree most on one source subword per target subword.

    Deep decoders align in some of their layers only (Garg et al. 2019, section 4.1). Attention to the end
    token is ignored, as heads without anything to attend to rest there.
    """
    scores = [float(each.weights[0, ..., :-1].mean(dim=0).amax(dim=-1).mean()) for each in layers]
    return scores.index(max(scores))


def explain_examples(translator: Translator, tables: TranslationTables) -> list[Explanation]:
    """Return the alignments of some typical sentences for the report; none without attention maps."""
    explained = []
    for sentence in typical_sentences(tables, NUM_EXAMPLES):
        try:
            explained.append(explain_text(translator, sentence.source))
        except (ConfigError, DataError):  # no maps, or a sentence that is too long: the page shows the others
            continue
    return explained


def _join_steps(recorded: Sequence[AttentionMap]) -> tuple[AttentionMap, ...]:
    """Join the maps of a layer that ran once per step, as in recurrent decoders."""
    by_layer: dict[str, list[AttentionMap]] = {}
    for each in recorded:
        by_layer.setdefault(each.layer, []).append(each)
    return tuple(
        steps[0]._replace(weights=torch.cat([step.weights for step in steps], dim=-2).cpu())
        for steps in by_layer.values()
    )


def _group(subwords: Subwords, row: Sequence[int], text: str | None) -> GroupedWords:
    """Return the words of a text, or of subwords that were generated, punctuation apart."""
    if text is not None:
        found = words_of_text(subwords, text, marks_apart=True)
        if found.tokens == tuple(row):
            return found
    return words_of_tokens(subwords, row, marks_apart=True)


def _of_words(maps: Maps, asked: GroupedWords, read: GroupedWords) -> Maps:
    return replace(
        maps,
        name="words",
        title=f"{maps.title}, by words",
        layers=tuple(merge_words(each, asked.steps, read.steps) for each in maps.layers),
        queries=Tokens(asked.labels),
        keys=Tokens(read.labels),
        steps=tuple(tokens[-1] for tokens in asked.steps),
    )


def _entries(
    subwords: Subwords, beams: Sequence[Sequence[Hypothesis]], tokens: Sequence[int]
) -> tuple[tuple[BeamEntry, ...], ...]:
    """Return the hypotheses after each step that generated the translation."""
    shown = []
    for length, beam in enumerate(beams[: len(tokens) + 1], start=1):
        texts, chosen = subwords.decode([each.tokens for each in beam]), tuple(tokens[:length])
        entries = [
            BeamEntry(text, each.log_probability, each.is_finished, each.tokens == chosen)
            for text, each in zip(texts, beam, strict=True)
        ]
        shown.append(tuple(entries))
    return tuple(shown)


def _pieces(subwords: Subwords, row: Sequence[int]) -> tuple[str, ...]:
    """Format subwords for display: a dot marks continuations, punctuation stands alone."""
    special = {subwords.pad_id, subwords.begin_id, subwords.end_id, subwords.unknown_id}
    shown = []
    for token, piece in zip(row, subwords.pieces(row), strict=True):
        if token in special:
            shown.append(END if token == subwords.end_id else piece)
        elif piece.startswith(SPACE):
            shown.append(piece.strip(SPACE) or "_")
        else:
            is_mark = not any(character.isalnum() for character in piece)
            shown.append(piece if is_mark else CONTINUES + piece)
    return tuple(shown)


def _check_size(row: Sequence[int], text: str, most: int) -> None:
    if not row:
        raise DataError(
            f"there is nothing to explain in {text!r}", expected="a sentence", remedy="Give some words"
        )
    if len(row) > most:
        raise DataError(
            f"a text of {len(row):,} subwords was to be explained",
            expected=f"at most {most}",
            remedy="Explain one sentence at a time",
        )
