"""Captioning of image files for ``vitrail predict``."""

from __future__ import annotations

from collections.abc import Sequence

from vitrail.tasks.answer_files import caption_answers, check_answer_file
from vitrail.tasks.captioning.predictor import Captioner
from vitrail.tasks.contract import FileOptions, FileResults


def caption_files(files: Sequence[str], options: FileOptions) -> FileResults:
    """Return the best captions of each file."""
    if options.output is not None:
        check_answer_file(options.output)
    captions = Captioner(options.source).predict(files, num_best=options.top or 1)
    return FileResults(
        tree=[each.to_json() for each in captions],
        columns=("image", "caption", "score"),
        rows=[
            (each.source if rank == 0 else "", text or "(nothing)", f"{score:.2f}")
            for each in captions
            for rank, (text, score) in enumerate(each.texts)
        ],
        errors=[(each.source, each.error) for each in captions if each.error],
        answers=caption_answers(captions),
    )
