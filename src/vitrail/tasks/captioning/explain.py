"""Explanations of captions: of one image, of files as pictures or one page, and for a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitrail.core.errors import ConfigError, DataError
from vitrail.data.inputs import list_files
from vitrail.interpret import AttentionMap, has_attention, record_attention
from vitrail.interpret.coarse import coarsen
from vitrail.interpret.draw import to_picture
from vitrail.interpret.viewer.caption_explain_page import write_caption_explain_page
from vitrail.tasks.captioning.caption_words import CaptionWords, words_of_text, words_of_tokens
from vitrail.tasks.captioning.dataset import CaptionSplit
from vitrail.tasks.captioning.evaluator import find_captions, write_captions
from vitrail.tasks.captioning.explanation import CaptionExplanation
from vitrail.tasks.captioning.predictor import Captioner
from vitrail.tasks.captioning.scores import CaptionTables, typical_images
from vitrail.tasks.classification.explain import check_output, explain_readable, is_page, picture_files

LONGEST_GRID = 64  # cells; a word has one row, so that its map may be fine
MAX_TOKENS = 100  # of a caption that is given
NUM_EXAMPLES = 4  # strips of a report


class WrittenCaptionExplanations(NamedTuple):
    """What was written, and what could not be."""

    files: tuple[Path, ...]
    """The pictures, or the one page."""
    explained: tuple[CaptionExplanation, ...]
    """The explanations, in the order of the images."""
    errors: tuple[tuple[str, str], ...]
    """Images that could not be read, each with the reason."""


def explain_pixels(
    captioner: Captioner,
    pixels: UInt8[Tensor, "3 height width"],
    name: str,
    *,
    caption: str | None = None,
) -> CaptionExplanation:
    """Caption a prepared image, or take a caption that is given, and record what it is read from.

    The caption is forced through the model: while hypotheses compete, nothing is recorded.

    Args:
        captioner: the model.
        pixels: of the size that the model takes, as ``Captioner.read`` returns them.
        name: what the image is called.
        caption: what is explained; the model's own best by default.

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
            ((best,),) = find_captions(model, seen.cells, vocabulary, captioner.settings, beam_size=beam_size)
            forced = words_of_tokens(vocabulary, best.tokens)
            (caption,) = write_captions(vocabulary, [best])
        else:
            forced = read_caption(captioner, caption)
        tokens = torch.tensor([[[vocabulary.begin_id, *forced.tokens]]], device=captioner.device)
        with record_attention(model) as recorded:
            model(seen.cells, tokens)
    crossing = [
        each._replace(grid=seen.grid, weights=each.weights.float().cpu())
        for each in recorded
        if each.kind == "cross"
    ]
    if not crossing:
        raise _nothing_to_show(captioner)
    return CaptionExplanation(
        name=name,
        picture=to_picture(pixels),
        caption=caption,
        words=forced.words,
        maps=tuple(_of_words(coarsen(each, LONGEST_GRID), forced.steps) for each in crossing),
        unknown=forced.unknown,
    )


def read_caption(captioner: Captioner, caption: str) -> CaptionWords:
    """Cut a caption that is to be explained into words, as the model reads them.

    Raises:
        DataError: it has no word, or too many.
    """
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
    captioner: Captioner,
    names: Iterable[str | Path],
    *,
    output: str | Path = "explain.html",
    caption: str | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> WrittenCaptionExplanations:
    """Explain the captions of images and write a page, a picture, or a folder of pictures.

    Args:
        captioner: the model.
        names: files, folders and glob patterns.
        output: a page (.html) for all images, a picture (such as .png) for one image, or a folder, a name
            without a suffix, for one picture for each image.
        caption: what is explained, of one image; the model's own by default.
        layer: what pictures show, as in ``CaptionExplanation.word_attention``; a page shows all.
        head: likewise.

    Raises:
        ConfigError: the model has nothing to show, there is no such layer or head, or the output does not
            fit the number of images.
        DataError: the caption has no word, or too many; no image was named, or none of them can be read.
        CheckpointError: the output cannot be written.
    """
    output, paths = Path(output), list_files(names)
    check_output(output, len(paths))
    if caption is not None and len(paths) != 1:
        raise ConfigError(
            f"one caption was given for {len(paths)} images",
            expected="one image with its caption",
            remedy="Explain them one by one",
        )
    if caption is not None:
        read_caption(captioner, caption)  # whose fault is none of the image's
    explained, errors = explain_readable(paths, lambda path: captioner.explain(path, caption=caption))
    if is_page(output):
        title = f"Captions of {len(explained)} images" if len(explained) > 1 else explained[0].caption
        write_caption_explain_page(output, [each.for_page() for each in explained], title=title)
        return WrittenCaptionExplanations((output,), tuple(explained), errors)
    files = picture_files(output, [each.name for each in explained])
    for each, file in zip(explained, files, strict=True):
        each.save(file, layer=layer, head=head)
    return WrittenCaptionExplanations(tuple(files), tuple(explained), errors)


def explain_examples(
    captioner: Captioner, split: CaptionSplit, tables: CaptionTables
) -> list[CaptionExplanation]:
    """Explain some typical images of an evaluation, for the report.

    Args:
        captioner: the model that was evaluated.
        split: what it was evaluated on.
        tables: what the evaluation found.
    """
    explained = []
    for image in typical_images(tables, NUM_EXAMPLES):
        pixels = captioner.preprocessing.images.read(split.images[image.index])
        if image.caption:
            explained.append(explain_pixels(captioner, pixels, split.names[image.index]))
    return explained


def _of_words(recorded: AttentionMap, groups: Sequence[Sequence[int]]) -> AttentionMap:
    """Average the rows of each word's steps."""
    rows: list[Float[Tensor, "1 heads cells"]] = [
        recorded.weights[:, :, list(steps)].mean(dim=2) for steps in groups
    ]
    return recorded._replace(weights=torch.stack(rows, dim=2))


def _nothing_to_show(captioner: Captioner) -> ConfigError:
    return ConfigError(
        f"the decoder of this model, of the family {captioner.config.family}, attends to no image",
        expected="a captioner with attention",
        remedy="vitrail predict shows what it writes",
    )
