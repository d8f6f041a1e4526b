"""What ``predict`` and ``explain`` do with a captioner."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.cli.answering import write_file
from vitrail.cli.app import EXIT_SOME_FAILED

if TYPE_CHECKING:
    from vitrail.models.checkpoint import LoadedModel


def caption(loaded: LoadedModel, files: list[str], *, num_best: int, json: bool, output: Path | None) -> int:
    """Caption files, and show the captions or write them into a file."""
    from vitrail.cli import show as terminal
    from vitrail.cli.show.captions import show_captions
    from vitrail.tasks.answer_files import caption_answers
    from vitrail.tasks.captioning.predictor import Captioner

    captions = Captioner(loaded).predict(files, num_best=num_best)
    if output is not None:
        errors = ((each.source, each.error) for each in captions if each.error)
        write_file(output, caption_answers(captions), errors)
    elif json:
        terminal.show_json([each.to_json() for each in captions])
    else:
        show_captions(captions)
    return EXIT_SOME_FAILED if any(each.error for each in captions) else 0


def explain_captions(
    loaded: LoadedModel,
    files: list[str],
    *,
    output: Path,
    target: str | None,
    layer: int | None,
    head: int | None,
) -> int:
    """Show what each word of a caption was read from."""
    from vitrail.cli import show as terminal
    from vitrail.cli.show.captions import show_unknown_words
    from vitrail.tasks.captioning.explain import explain_caption_files
    from vitrail.tasks.captioning.predictor import Captioner

    explained = explain_caption_files(
        Captioner(loaded), files, output=output, caption=target, layer=layer, head=head
    )
    terminal.show_lines(str(path) for path in explained.files)
    terminal.show_errors(explained.errors)
    for each in explained.explained:
        show_unknown_words(each.unknown_words)
    return EXIT_SOME_FAILED if explained.errors else 0
