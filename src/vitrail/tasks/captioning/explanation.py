"""Explain a captioner: the image regions behind each generated word."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from vitrail.core.errors import ConfigError, DataError
from vitrail.data.inputs import list_files
from vitrail.data.text.word_groups import GroupedWords, words_of_text, words_of_tokens
from vitrail.interpret import AttentionMap, record_any
from vitrail.interpret.draw import to_picture
from vitrail.interpret.grids import coarsen
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.interpret.viewer.maps import Grid, Maps, Tokens, merge_words
from vitrail.tasks.captioning.dataset import CaptionSplit
from vitrail.tasks.captioning.objective import find_captions, write_captions
from vitrail.tasks.captioning.predictor import Captioner
from vitrail.tasks.captioning.scores import CaptionTables
from vitrail.tasks.explaining import ExplainOptions, WrittenExplanations, explain_files
from vitrail.tasks.generation import nothing_to_show, typical_rows
from vitrail.tasks.predicting import text_of

LONGEST_GRID = 64  # tokens; a word has one row, so its map may be fine
MAX_TOKENS = 100  # of a given caption
NUM_EXAMPLES = 4  # strips of a report


def explain_pixels(
    captioner: Captioner, pixels: UInt8[Tensor, "3 height width"], name: str, *, caption: str | None = None
) -> Explanation:
    """Caption a prepared image, or use a given caption, and record the attention behind each word.

    Attention is recorded under teacher forcing, not during beam search. The explanation's output is a
    ``GroupedWords``.

    Args:
        pixels: of the model's input size, as from ``Captioner.read``.
        caption: to explain; by default the model's best.

    Raises:
        ConfigError: the model's decoder attends to no image.
        DataError: the caption has no word, or too many.
    """
    model, vocabulary, images = captioner.model, captioner.vocabulary, captioner.to_batch([pixels])
    with torch.inference_mode():
        seen = model.encode(images)
        if caption is None:
            settings = captioner.settings
            found = find_captions(model, seen.features, vocabulary, settings, beam_size=settings.beam_size)
            ((best,),) = found
            forced = words_of_tokens(vocabulary, best.tokens)
            (caption,) = write_captions(vocabulary, [best])
        else:
            forced = read_caption(captioner, caption)
        tokens = torch.tensor([[[vocabulary.begin_id, *forced.tokens]]], device=captioner.device)
        with record_any(model) as recorded:
            model(seen.features, tokens)
    crossing = [
        each._replace(grid=seen.grid, weights=each.weights.float().cpu())
        for each in recorded
        if each.kind == "cross"
    ]
    if not crossing:
        raise nothing_to_show(captioner.config, "image", "predict")
    layers = tuple(merge_words(coarsen(each, LONGEST_GRID), forced.steps) for each in crossing)
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


def read_caption(captioner: Captioner, caption: str) -> GroupedWords:
    """Split a given caption into words, as the model reads them; ``DataError`` for none, or too many."""
    (text,) = captioner.preprocessing.prepare([text_of(caption)])
    found = words_of_text(captioner.vocabulary, text)
    if not found.tokens:
        raise DataError(
            f"there is no word to explain in {caption!r}",
            expected="a caption of at least one word",
            remedy="Give some words, or no target, and the model's own caption is explained",
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
