"""Explain a captioner: the image regions behind each generated word."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import UInt8
from torch import Tensor

from vitrail.core.errors import ConfigError, DataError
from vitrail.data.inputs import list_files
from vitrail.data.text.subword_sampling import SPACE
from vitrail.data.text.subwords import Subwords
from vitrail.interpret import AttentionMap, has_attention, record_attention
from vitrail.interpret.draw import to_picture
from vitrail.interpret.grids import coarsen
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.interpret.viewer.maps import Grid, Maps, Tokens
from vitrail.tasks.captioning.dataset import CaptionSplit
from vitrail.tasks.captioning.objective import find_captions, write_captions
from vitrail.tasks.captioning.predictor import Captioner
from vitrail.tasks.captioning.scores import CaptionTables
from vitrail.tasks.explaining import ExplainOptions, WrittenExplanations, explain_files
from vitrail.tasks.generation import typical_rows

LONGEST_GRID = 64  # tokens; a word has one row, so its map may be fine
MAX_TOKENS = 100  # of a given caption
NUM_EXAMPLES = 4  # strips of a report
END = "(end)"


class CaptionWords(NamedTuple):
    """The words of a caption and their tokens; step i generates token i, and the last step the end."""

    tokens: tuple[int, ...]
    """Of the whole caption, without begin and end."""
    words: tuple[str, ...]
    """Each word, followed by the end."""
    steps: tuple[tuple[int, ...], ...]
    """The steps that generate each of ``words``, at least one."""
    unknown: tuple[int, ...]
    """Indices in ``words`` of fully or partly unknown words."""

    @property
    def unknown_words(self) -> list[str]:
        """The unknown words, each once."""
        return list(dict.fromkeys(self.words[index] for index in self.unknown))

    @property
    def labels(self) -> tuple[str, ...]:
        """The words for display, unknown ones marked."""
        return tuple(
            f"{word} (unknown)" if index in self.unknown else word for index, word in enumerate(self.words)
        )


def explain_pixels(
    captioner: Captioner, pixels: UInt8[Tensor, "3 height width"], name: str, *, caption: str | None = None
) -> Explanation:
    """Caption a prepared image, or use a given caption, and record the attention behind each word.

    Attention is recorded under teacher forcing, not during beam search. The explanation's output is a
    ``CaptionWords``.

    Args:
        pixels: of the model's input size, as from ``Captioner.read``.
        caption: to explain; by default the model's best.

    Raises:
        ConfigError: the model's decoder attends to no image.
        DataError: the caption has no word, or too many.
    """
    model, vocabulary, images = captioner.model, captioner.vocabulary, captioner.to_batch([pixels])
    if not has_attention(model):
        raise _nothing_to_show(captioner)
    with torch.inference_mode():
        seen = model.encode(images)
        if caption is None:
            beam_size = captioner.settings.beam_size
            ((best,),) = find_captions(
                model, seen.features, vocabulary, captioner.settings, beam_size=beam_size
            )
            forced = words_of_tokens(vocabulary, best.tokens)
            (caption,) = write_captions(vocabulary, [best])
        else:
            forced = read_caption(captioner, caption)
        tokens = torch.tensor([[[vocabulary.begin_id, *forced.tokens]]], device=captioner.device)
        with record_attention(model) as recorded:
            model(seen.features, tokens)
    crossing = [
        each._replace(grid=seen.grid, weights=each.weights.float().cpu())
        for each in recorded
        if each.kind == "cross"
    ]
    if not crossing:
        raise _nothing_to_show(captioner)
    layers = tuple(_of_words(coarsen(each, LONGEST_GRID), forced.steps) for each in crossing)
    maps = Maps(
        name="words",
        title="image regions behind each word",
        layers=layers,
        queries=Tokens(forced.labels),
        keys=Grid(),
        joined=_mean_over_layers(layers),
    )
    return Explanation(name=name, title=caption, picture=to_picture(pixels), maps=(maps,), answer=forced)


def _mean_over_layers(layers: Sequence[AttentionMap]) -> tuple[AttentionMap, ...]:
    """Return the mean over layers and heads as a one-head map; empty for a single layer."""
    if len(layers) < 2 or len({each.grid for each in layers}) > 1:
        return ()
    means = [each.weights.mean(dim=1, keepdim=True) for each in layers]
    return (layers[0]._replace(layer="mean over layers", weights=sum(means[1:], means[0]) / len(means)),)


def read_caption(captioner: Captioner, caption: str) -> CaptionWords:
    """Split a given caption into words, as the model reads them; ``DataError`` for none, or too many."""
    (text,) = captioner.preprocessing.prepare([caption])
    found = words_of_text(captioner.vocabulary, text)
    if not found.tokens:
        raise DataError(
            f"there is no word to explain in {caption!r}",
            expected="a caption of at least one word",
            remedy="Give some words, or no caption, and the model's own is explained",
        )
    if len(found.tokens) > MAX_TOKENS:
        raise DataError(
            f"a caption of {len(found.tokens)} tokens was to be explained",
            expected=f"at most {MAX_TOKENS}",
            remedy="Shorten it",
        )
    return found


def explain_caption_files(
    captioner: Captioner, names: Iterable[str | Path], options: ExplainOptions
) -> WrittenExplanations:
    """Explain the captions of images like ``explain_files``, or a given caption of one image."""
    paths, caption = list_files(names), options.target
    if caption is not None:
        if len(paths) != 1:
            raise ConfigError(
                f"one caption was given for {len(paths)} images",
                expected="one image with its caption",
                remedy="Explain them one by one",
            )
        read_caption(captioner, caption)  # an error of the caption, not of the image
    return explain_files(lambda path: captioner.explain(path, caption=caption), paths, options)


def explain_examples(captioner: Captioner, split: CaptionSplit, tables: CaptionTables) -> list[Explanation]:
    """Explain some typical images of an evaluation, for the report."""
    explained = []
    for image in typical_rows(tables.images, "cider", NUM_EXAMPLES):
        pixels = captioner.preprocessing.images.read(split.images[image.index])
        if image.caption:
            explained.append(explain_pixels(captioner, pixels, split.names[image.index]))
    return explained


def _of_words(recorded: AttentionMap, groups: Sequence[Sequence[int]]) -> AttentionMap:
    """Average the rows of each word's steps."""
    rows = [recorded.weights[:, :, list(steps)].mean(dim=2) for steps in groups]
    return recorded._replace(weights=torch.stack(rows, dim=2))


def _nothing_to_show(captioner: Captioner) -> ConfigError:
    return ConfigError(
        f"the decoder of this model, of the family {captioner.config.family}, attends to no image",
        expected="a captioner with attention",
        remedy="vitrail predict shows what it writes",
    )


def words_of_text(vocabulary: Subwords, text: str) -> CaptionWords:
    """Split a human-written caption into words, known or not.

    The text is preprocessed, with spaces between words.

    >>> from vitrail.data.text.words import WordVocabulary
    >>> found = words_of_text(WordVocabulary(["a", "dog"]), "a cat")
    >>> found.words, found.steps, found.unknown
    (('a', 'cat', '(end)'), ((0,), (1,), (2,)), (1,))
    """
    words = text.split()
    tokens: list[int] = []
    written: list[str] = []
    steps: list[tuple[int, ...]] = []
    unknown: list[int] = []
    for word, row in zip(words, vocabulary.encode(words), strict=True):
        if not row:  # only characters that the vocabulary treats as spaces
            continue
        if vocabulary.unknown_id in row:
            unknown.append(len(written))
        written.append(word)
        steps.append(tuple(range(len(tokens), len(tokens) + len(row))))
        tokens += row
    return CaptionWords(tuple(tokens), (*written, END), (*steps, (len(tokens),)), tuple(unknown))


def words_of_tokens(vocabulary: Subwords, tokens: Sequence[int]) -> CaptionWords:
    """Join generated tokens to words."""
    words: list[str] = []
    steps: list[list[int]] = []
    for step, piece in enumerate(vocabulary.pieces(tokens)):
        is_new = piece.startswith(SPACE) or not words
        text = piece.removeprefix(SPACE)
        if is_new and (not words or words[-1]):
            words.append(text)
            steps.append([step])
        else:
            words[-1] += text
            steps[-1].append(step)
    return CaptionWords(tuple(tokens), (*words, END), (*map(tuple, steps), (len(tokens),)), ())
