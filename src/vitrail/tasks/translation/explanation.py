"""Explain a translator: the source subwords behind each generated one, under teacher forcing."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vitrail.core.errors import ConfigError, DataError
from vitrail.data.text.subword_sampling import SPACE
from vitrail.data.text.subwords import Subwords
from vitrail.interpret import AttentionMap, has_attention, record_attention
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.interpret.viewer.maps import Maps, Tokens
from vitrail.tasks.translation.predictor import Translator
from vitrail.tasks.translation.scores import TranslationTables, typical_sentences

NUM_EXAMPLES = 3  # alignments in a report
MAX_PIECES = 256  # of either side; a larger picture is unreadable
SHARPEST_NOTE = "Shown first: the layer that attends most to one source subword for each subword."
CONTINUES = "\u00b7"  # marks a continuation within a word


def explain_text(translator: Translator, text: str, *, target: str | None = None) -> Explanation:
    """Translate a sentence, or use a given translation, and record its attention.

    Attention is recorded under teacher forcing, not during beam search.

    Args:
        target: a translation; by default the model's best.

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
        ((best, *_),) = translator.decode([row], translator.search)
        tokens = list(best.tokens)
        (written,) = vocabulary.target.decode([tokens])
    else:
        written = target
        (tokens,) = vocabulary.target.encode(prepare([target]))
    _check_size(tokens, written, MAX_PIECES)
    source, lengths = translator.torch_decoder.to_batch([row])
    forced = torch.tensor([[translator.config.begin_id, *tokens]], device=translator.device)
    with torch.inference_mode():
        with record_attention(translator.model) as first:
            translator.model.start(source, lengths)
        with record_attention(translator.model) as recorded:
            translator.model(source, lengths, forced)
    layers = _join_steps(recorded)
    of_source = {each.layer for each in first}
    end = translator.config.end_id
    read = Tokens(_pieces(vocabulary.source, [*row, end]))
    forced_in = Tokens(_pieces(vocabulary.target, [translator.config.begin_id, *tokens]))
    asked = Tokens(_pieces(vocabulary.target, [*tokens, end]))
    cross = tuple(each for each in layers if each.kind == "cross")
    if not cross:
        raise _nothing_to_show(translator)
    own = [each for each in layers if each.kind != "cross"]
    within_source = tuple(each for each in own if each.layer in of_source)
    within_target = tuple(each for each in own if each.layer not in of_source)
    maps = [
        Maps(
            name="cross",
            title="translation to sentence",
            layers=cross,
            queries=asked,
            keys=read,
            first=sharpest(cross),
            note=SHARPEST_NOTE if len(cross) > 1 else "",
        ),
        Maps(name="source", title="sentence to itself", layers=within_source, queries=read, keys=read),
        Maps(
            name="target", title="translation to itself", layers=within_target, queries=asked, keys=forced_in
        ),
    ]
    return Explanation(name=text, title=written, maps=tuple(each for each in maps if each.layers))


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


def _pieces(subwords: Subwords, row: Sequence[int]) -> tuple[str, ...]:
    """Format subwords for display: a dot marks continuations, punctuation stands alone."""
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
