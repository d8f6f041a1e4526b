"""What each piece of a translation was read from, recorded while it is forced through the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from vitrail.core.errors import ConfigError, DataError
from vitrail.data.text.subwords import Subwords
from vitrail.interpret import AttentionMap, has_attention, record_attention
from vitrail.interpret.viewer.alignment_page import AlignedText, Side, write_alignment_page
from vitrail.tasks.translation.examples import typical_sentences
from vitrail.tasks.translation.explanation import TextExplanation, is_page
from vitrail.tasks.translation.predictor import Translator
from vitrail.tasks.translation.tables import TranslationTables

NUM_EXAMPLES = 3  # alignments in a report
MAX_PIECES = 256  # of either side; a picture of more cannot be read
SPACE = "\u2581"  # what pieces have in the place of a space
CONTINUES = "\u00b7"  # stands before a piece within a word


def explain_text(translator: Translator, text: str, *, target: str | None = None) -> TextExplanation:
    """Translate a sentence, or take a translation that is given, and record what it is read from.

    The translation is forced through the model: while hypotheses compete, nothing is recorded.

    Args:
        translator: the model.
        text: one sentence.
        target: its translation; the model's own best by default.

    Raises:
        ConfigError: the model attends to nothing, or attends but not to the sentence.
        DataError: there is no text, or too much of it for one picture.
    """
    if not has_attention(translator.model):
        raise _nothing_to_show(translator)
    vocabulary, prepare = translator.vocabulary, translator.preprocessing.prepare
    (row,) = vocabulary.source.encode(prepare([text]))
    _check_size(row, text, min(MAX_PIECES, translator.max_source_length))
    if target is None:
        ((best, *_),) = translator.find([row], translator.search)
        tokens = list(best.tokens)
        (written,) = vocabulary.target.decode([tokens])
    else:
        written = target
        (tokens,) = vocabulary.target.encode(prepare([target]))
    _check_size(tokens, written, MAX_PIECES)
    source, lengths = translator.to_batch([row])
    forced = torch.tensor([[translator.config.begin_id, *tokens]], device=translator.device)
    with torch.inference_mode():
        with record_attention(translator.model) as first:
            translator.model.start(source, lengths)
        with record_attention(translator.model) as recorded:
            translator.model(source, lengths, forced)
    maps = _join_steps(recorded)
    of_source = {each.layer for each in first}
    sides = tuple(_side_of(each, of_source) for each in maps)
    if "cross" not in sides:
        raise _nothing_to_show(translator)
    end = translator.config.end_id
    return TextExplanation(
        source=text,
        target=written,
        source_pieces=_pieces(vocabulary.source, [*row, end]),
        target_pieces=_pieces(vocabulary.target, [*tokens, end]),
        begin_piece=_pieces(vocabulary.target, [translator.config.begin_id])[0],
        maps=maps,
        sides=sides,
    )


def explain_texts(
    translator: Translator,
    texts: Sequence[str],
    *,
    target: str | None = None,
    output: str | Path = "explain.html",
    layer: int | None = None,
    head: int | None = None,
) -> tuple[TextExplanation, ...]:
    """Explain sentences and write a page of all, or a picture of one.

    Args:
        translator: the model.
        texts: sentences, at least one.
        target: the translation of the one sentence; the model's own by default.
        output: a page (.html), or a picture (.png) of one sentence.
        layer: what a picture shows, as in ``TextExplanation.picture``; the page shows all.
        head: likewise.

    Raises:
        ConfigError: the output does not fit, the model attends to nothing, or there is no such layer or head.
        DataError: a text is empty or too long.
        CheckpointError: the output cannot be written.
    """
    output = Path(output)
    if len(texts) != 1 and (target is not None or not is_page(output)):
        raise ConfigError(
            f"{len(texts)} sentences were to be explained at once",
            expected="one sentence for a picture, or where its translation is given",
            remedy="Explain them one by one, or on a page without translations of yours",
        )
    explained = tuple(explain_text(translator, text, target=target) for text in texts)
    if len(explained) == 1:
        explained[0].save(output, layer, head)
    else:
        pages = [each.for_page() for each in explained]
        write_alignment_page(output, pages, title=f"Alignment of {len(pages)} sentences")
    return explained


def explain_examples(translator: Translator, tables: TranslationTables) -> list[AlignedText]:
    """Return the alignments of some typical sentences, for the report; none of a model that has no maps.

    Args:
        translator: the model that was evaluated.
        tables: what the evaluation found.
    """
    explained = []
    for sentence in typical_sentences(tables, NUM_EXAMPLES):
        try:
            explained.append(explain_text(translator, sentence.source).for_page())
        except (ConfigError, DataError):  # no maps, or a sentence that is too long: the page shows the others
            continue
    return explained


def _join_steps(recorded: Sequence[AttentionMap]) -> tuple[AttentionMap, ...]:
    """Join the maps of a layer that ran once for each step, as those of recurrent decoders do."""
    by_layer: dict[str, list[AttentionMap]] = {}
    for each in recorded:
        by_layer.setdefault(each.layer, []).append(each)
    return tuple(
        steps[0]._replace(weights=torch.cat([step.weights for step in steps], dim=-2).cpu())
        for steps in by_layer.values()
    )


def _side_of(recorded: AttentionMap, of_source: set[str]) -> Side:
    if recorded.kind == "cross":
        return "cross"
    return "source" if recorded.layer in of_source else "target"


def _pieces(subwords: Subwords, row: Sequence[int]) -> tuple[str, ...]:
    """Write subwords for readers: what goes on with a word stands behind a dot, marks stand alone."""
    special = {subwords.pad_id, subwords.begin_id, subwords.end_id, subwords.unknown_id}
    shown = []
    for token, piece in zip(row, subwords.pieces(row), strict=True):
        if token in special:
            shown.append(piece)
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


def _nothing_to_show(translator: Translator) -> ConfigError:
    return ConfigError(
        f"this model, of the family {translator.config.family}, does not attend to the sentence: it reads "
        "all of it into one vector",
        expected="a translator with attention",
        remedy="Train one with attention; vitrail translate shows what this one writes",
    )
