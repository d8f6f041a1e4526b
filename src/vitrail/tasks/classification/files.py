"""Classification of image files for ``vitrail predict``."""

from __future__ import annotations

from collections.abc import Sequence

from vitrail.tasks.answer_files import check_answer_file, class_answers
from vitrail.tasks.classification.predictor import Prediction, Predictor
from vitrail.tasks.contract import FileOptions, FileResults

DEFAULT_TOP = 3


def classify_files(files: Sequence[str], options: FileOptions) -> FileResults:
    """Return the most probable classes of each file."""
    if options.output is not None:
        check_answer_file(options.output)
    predictor = Predictor(
        options.source, engine=options.engine, precision=options.precision, trust=options.trust
    )
    return class_results(predictor.predict(files, top=options.top or DEFAULT_TOP))


def class_results(predictions: Sequence[Prediction]) -> FileResults:
    """Return predictions in every output format."""
    return FileResults(
        tree=[each.to_json() for each in predictions],
        columns=("image", "class", "probability"),
        rows=[
            (each.source if rank == 0 else "", name, f"{probability:.1%}")
            for each in predictions
            for rank, (name, probability) in enumerate(each.scores)
        ],
        errors=[(each.source, each.error) for each in predictions if each.error],
        answers=class_answers(predictions),
    )
