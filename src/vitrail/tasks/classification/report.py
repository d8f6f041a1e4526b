"""The HTML report of a classification run: scores, curves, and what the model looks at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import NamedTuple

from vitrail.data.dataset import ImageSplit
from vitrail.data.findings import not_found
from vitrail.data.stream import SampleSource
from vitrail.interpret.draw import Limits, enlarge_picture, overlay, shared_limits
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.interpret.viewer.maps import Heat
from vitrail.models.checkpoint import LoadedModel
from vitrail.report.page import picture_uri, section, table
from vitrail.report.plots import confusion_plot
from vitrail.report.sections import (
    RunRecord,
    beside,
    confusion_table,
    headline,
    plots_in_row,
    training_section,
    write_run_page,
)
from vitrail.tasks.classification.predictor import Predictor
from vitrail.tasks.classification.scores import (
    ClassificationTables,
    examples_of_each_class,
    most_confident_errors,
    reliability_plot,
)
from vitrail.tasks.contract import Diagnosis
from vitrail.tasks.predicting import over_photograph
from vitrail.train.evaluate import Report

MAX_CONFUSION_TABLE = 20  # classes; a larger table is a plot
MAX_CONFUSED_PAIRS = 8
PUBLISHED_SCORES = {"mean_per_class_accuracy": "mean accuracy of classes", "real_accuracy": "ReaL accuracy"}
SMALL_PX = 112  # small images are enlarged to this shorter side, so that browsers do not blur them
MAX_PICTURES = 60  # bounds the size of the page: about 15 kB each
LOSS_NOTE = (
    "The training loss includes what the settings have of augmentation, mixed images, smoothed labels and "
    "dropout, so it may lie higher."
)

STYLE = Path(__file__).with_name("run_report.css").read_text(encoding="utf-8")


class ExplainedImage(NamedTuple):
    """A classified photograph with what the model looked at."""

    shown: Explanation
    """With the prediction, without its maps."""
    heat: Heat | None
    """None for a model without attention maps."""
    true: str


def write_report(
    path: Path,
    record: RunRecord,
    errors: Sequence[ExplainedImage] = (),
    examples: Sequence[ExplainedImage] = (),
) -> None:
    """Write the report, with correctly classified examples of each class, as one self-contained HTML file."""
    note = "All are right and of median confidence: typical, not flattering."
    if len(examples) > MAX_PICTURES:
        note += f" The first {MAX_PICTURES} of {len(examples)} are shown."
    heats = [each.heat.values for each in (*errors, *examples) if each.heat is not None]
    limits = shared_limits(heats) if heats else None
    title = "Typical images of each class" if limits is None else "What it looks at, class by class"
    parts = [
        class_headline(record),
        _pictures("Most confident errors", errors, "Look here for wrong labels first.", limits),
        _pictures(title, examples, note, limits),
        *class_sections(record),
    ]
    write_run_page(path, record, parts, style=STYLE)


def class_sections(record: RunRecord, *, things: str = "images", note: str = LOSS_NOTE) -> list[str]:
    """Return confusion, calibration, the scores of each class and the curves of a training.

    Args:
        things: what has a class, in the plural.
        note: on training against validation loss.
    """
    tables = ClassificationTables.from_tree(record.report.tables)
    names = record.report.class_names or tuple(str(label) for label in range(len(tables.per_class)))
    history = record.history()
    return [
        _confusion(tables, names),
        beside(_confused_pairs(tables, names, things), _calibration(tables, record.report.scores, things)),
        _per_class(tables, names, things),
        training_section(history, score="accuracy", score_name="validation accuracy", note=note),
    ]


def conclude_classes(report: Report, *, things: str = "images") -> Diagnosis:
    """Compare with always answering the most frequent class, and name the classes never predicted."""
    scores, names = report.scores, report.class_names
    tables = ClassificationTables.from_tree(report.tables)
    support = [entry.support for entry in tables.per_class]
    most, total = max(support), sum(support)
    interval = f"95 % interval {scores['accuracy_lower']:.1%} to {scores['accuracy_upper']:.1%}"
    always = f"always answering {names[support.index(most)]} gives {most / total:.1%}"
    problems = []
    if scores["accuracy_lower"] <= most / total < 1:
        problems.append("The accuracy is not clearly better than one answer for all.")
    predicted = map(sum, zip(*tables.confusion, strict=True))
    rows = zip(names, support, predicted, strict=True)
    never = [name for name, count, found in rows if count and not found]
    problems += not_found(never, len(names), "never predicted")
    result = f"Accuracy {scores['accuracy']:.1%} on {total:,} {things} ({interval}); {always}."
    return Diagnosis(result, tuple(problems))


def class_headline(
    record: RunRecord, *, things: str = "images", first: Sequence[tuple[str, str, str]] = ()
) -> str:
    """Return title, signature and headline scores; ``first`` are tiles before them."""
    scores = record.report.scores
    interval = f"95 % interval {scores['accuracy_lower']:.1%} to {scores['accuracy_upper']:.1%}"
    entries = [
        (f"{scores['accuracy']:.2%}", "accuracy", interval),
        (f"{scores['macro_f1']:.3f}", "macro F1", "mean over the classes that occur"),
        (f"{scores['nll']:.3f}", "log loss", f"mean over the {things}, lower is better"),
        (f"{scores['calibration_error']:.1%}", "calibration error", "confidence against accuracy"),
    ]
    if "top5_accuracy" in scores:
        entries.insert(1, (f"{scores['top5_accuracy']:.2%}", "top-5 accuracy", "true class among five"))
    for name, label in PUBLISHED_SCORES.items():
        if name in scores:
            is_first = name == next(iter(scores))
            note = "what papers report" if is_first else "each class counts the same"
            entries.insert(0 if is_first else 1, (f"{scores[name]:.2%}", label, note))
    return headline(record, [*first, *entries])


def _pictures(title: str, images: Sequence[ExplainedImage], note: str, limits: Limits | None) -> str:
    if not images:
        return ""
    lead = "The model's images alone: it has no attention that would show what it looked at."
    if limits is not None:
        lead = (
            "Right of each image is what the model looked at, framed where it saw a part only. Dark is even "
            f"attention or less, the brightest colour of all images {limits[1]:.2g} times even attention."
        )
    figures = []
    for image, heat, true in images[:MAX_PICTURES]:
        assert image.picture is not None
        is_wrong = true != image.label
        given = f"<b>{escape(image.label)}</b> {image.probability:.1%}"
        caption = f"{given}, true: {escape(true)}" if is_wrong else given
        name = escape(image.name, quote=True)
        enlarged = enlarge_picture(image.picture, SMALL_PX)
        uri = picture_uri(enlarged)
        shown = f'<img src="{uri}" alt="{name}" title="{name}">'
        if heat is not None and limits is not None:
            over = picture_uri(overlay(enlarged, heat.values, limits=limits, crop=image.crop))
            shown += f'<img src="{over}" alt="attention over {name}" title="{name}">'
        figures.append(
            f'<figure class="{"wrong" if is_wrong else "right"}"><div class="pair">{shown}</div>'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    return section(title, f'<div class="pictures">{"".join(figures)}</div>', f"{lead} {note}")


def _confusion(tables: ClassificationTables, names: Sequence[str]) -> str:
    if len(names) > MAX_CONFUSION_TABLE:
        plot = confusion_plot("confusion matrix, share of each true class", tables.confusion)
        return section("Confusion", f'<div class="scroll">{plot}</div>', "Rows are true classes.")
    note = "Rows are true classes, columns predicted classes; shade is the share of the row."
    return section("Confusion", confusion_table(tables.confusion, rows=names, columns=names), note)


def _confused_pairs(tables: ClassificationTables, names: Sequence[str], things: str) -> str:
    pairs = sorted(
        (-count, true, given)
        for true, row in enumerate(tables.confusion)
        for given, count in enumerate(row)
        if true != given and count
    )[:MAX_CONFUSED_PAIRS]
    rows = [
        (names[true], names[given], str(-count), f"{-count / tables.per_class[true].support:.1%}")
        for count, true, given in pairs
    ]
    if not rows:
        return section("Most confused pairs", f"<p>None of the {things} were classified wrongly.</p>")
    content = table(("true", "predicted as", things, "of the class"), rows, frozenset({2, 3}))
    return section("Most confused pairs", content)


def _per_class(tables: ClassificationTables, names: Sequence[str], things: str) -> str:
    rows = sorted(zip(names, tables.per_class, strict=True), key=lambda entry: entry[1].f1)
    texts = [
        (name, f"{scores.precision:.3f}", f"{scores.recall:.3f}", f"{scores.f1:.3f}", str(scores.support))
        for name, scores in rows
    ]
    content = table(("class", "precision", "recall", "F1", things), texts, frozenset({1, 2, 3, 4}))
    return section("Scores of each class", content, "The weakest class first.")


def _calibration(tables: ClassificationTables, scores: Mapping[str, float], things: str) -> str:
    error = f"{scores['calibration_error']:.1%}"
    note = (
        f"How often the model is right when it says how sure it is; expected calibration error {error}. "
        f"Bars below the diagonal mean overconfidence, faint bars hold few {things}."
    )
    plot = reliability_plot(f"reliability diagram, calibration error {error}", tables.calibration)
    return section("Calibration", plots_in_row([plot]), note)


NUM_ERRORS = 12
MAX_EXAMPLES_PER_CLASS = 2


def report_pictures(
    loaded: LoadedModel, source: SampleSource, split: ImageSplit, report: Report
) -> tuple[list[ExplainedImage], list[ExplainedImage]]:
    """Return the most confident errors and some correct examples of each class, with attention if any."""
    tables = ClassificationTables.from_tree(report.tables)
    predictor = Predictor(loaded)
    left = MAX_PICTURES - NUM_ERRORS
    count = max(1, min(MAX_EXAMPLES_PER_CLASS, left // len(tables.per_class)))
    examples = [row for rows in examples_of_each_class(tables, count).values() for row in rows][:left]
    errors = most_confident_errors(tables, NUM_ERRORS)
    return (
        explain_samples(predictor, source, tables, errors, split),
        explain_samples(predictor, source, tables, examples, split),
    )


def explain_samples(
    predictor: Predictor,
    source: SampleSource,
    tables: ClassificationTables,
    rows: Sequence[int],
    split: ImageSplit,
) -> list[ExplainedImage]:
    """Explain samples of an evaluated source, given by their rows in the tables, over the split's images."""
    images = []
    method, layer = None, None
    for row in rows:
        index = tables.indices[row]
        pixels = source.load(index, None).image
        explanation = predictor.explain_pixels(pixels, split.names[index], layer=layer)
        if method is None and explanation.maps:
            method = explanation.default_method
            layer = None if method == "rollout" else -1  # other layers are not shown and may be large
        shown = over_photograph(explanation, predictor.preprocessing, split.images[index])
        heat = shown.heat(method) if shown.maps else None
        # From the tables, not from this forward pass: rounding could break a tie differently.
        scores = ((predictor.class_names[tables.predicted[row]], tables.confidence[row]),)
        kept = replace(shown, maps=(), attributions=None, scores=scores)
        images.append(ExplainedImage(kept, heat, predictor.class_names[tables.labels[row]]))
    return images
