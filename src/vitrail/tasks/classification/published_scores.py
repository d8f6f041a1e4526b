"""A benchmark's published metric, and how complete the benchmark is here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from vitrail.core.errors import DataError
from vitrail.data.dataset import ImageDataset, ImageSplit
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.published import Published, published_results
from vitrail.tasks.classification.benchmark_reading import NUM_VALIDATION, read_real_labels
from vitrail.tasks.classification.benchmarks import METRIC_TEXTS, benchmark_of
from vitrail.tasks.classification.formats.imagenet import MAPPING, NUM_CLASSES, WNID, validation_number
from vitrail.tasks.classification.scores import ClassificationTables
from vitrail.train.evaluate import Report


def check_published(dataset: ImageDataset) -> None:
    """Check that a benchmark can be scored; other data always can.

    Raises:
        DataError: the ReaL labels are missing, or the names of images or classes do not match them.
    """
    benchmark = benchmark_of(dataset.source)
    if benchmark is not None and benchmark.metric == "real_accuracy":
        _check_order(dataset, dataset.class_names)
        _numbers(dataset.test, range(len(dataset.test)))
        read_real_labels(dataset.source)


def as_published(report: Report, dataset: ImageDataset, split: str) -> Report:
    """Add a benchmark's published metric to the report of a split, and sign it; others stay as they are."""
    benchmark = benchmark_of(dataset.source)
    if benchmark is None:
        return report
    images = dataset.splits[split]
    signature = report.signature | {"benchmark": f"{benchmark.name}, {METRIC_TEXTS[benchmark.metric]}"}
    scores = dict(report.scores)
    if "mean_per_class_accuracy" in (benchmark.metric, benchmark.beside):
        scores = {"mean_per_class_accuracy": scores["balanced_accuracy"], **scores}
    if benchmark.metric == "real_accuracy":
        is_right = correct_by_real(report, dataset, split)
        scores["real_accuracy"] = sum(is_right) / len(is_right)
        signature["real"] = f"{len(is_right)} of {len(images)} images have labels"
    if split == "test":
        signature |= sign_incomplete(dataset.source, len(images))
    scores = {benchmark.metric: scores[benchmark.metric], **scores}  # the headline comes first
    return report.model_copy(update={"signature": signature, "scores": scores})


def published_rows(source: str) -> list[Published]:
    """Return the published scores of a benchmark in percent, best first; none for other data.

    Of several scores of a model with the same pre-training data, the best one.
    """
    name, best = source.partition(":")[0].strip().lower(), dict[tuple[str, str], Published]()
    named = [row for row in published_results() if row.quantity == name]
    for row in sorted(named, key=lambda row: -row.value):
        best.setdefault((row.model.partition(",")[0], row.trained_on), row)
    return list(best.values())


def correct_by_real(report: Report, dataset: ImageDataset, split: str) -> list[bool]:
    """Return for each image with ReaL labels whether the prediction is one of them."""
    _check_order(dataset, report.class_names)
    labels = read_real_labels(dataset.source)
    tables = ClassificationTables.from_tree(report.tables)
    of_images = [labels[number - 1] for number in _numbers(dataset.splits[split], tables.indices)]
    return reassess(tables.predicted, of_images)


def sign_incomplete(source: str, num_images: int) -> dict[str, str]:
    """Return the signature entry of a benchmark that is scored on a part of its images."""
    benchmark = benchmark_of(source)
    if benchmark is None or num_images == benchmark.num_scored:
        return {}
    return {"incomplete": f"{num_images} of {benchmark.num_scored} images"}


def as_prepared(preprocessing: Preprocessing, source: str) -> tuple[Preprocessing, str]:
    """Return a model's preprocessing with the resizing of published results, and its description.

    Size, mean and standard deviation stay the model's.
    """
    benchmark = benchmark_of(source)
    if benchmark is None:
        return preprocessing, "as in training"
    changes = benchmark.preparation._asdict()
    del changes["source"]
    said = f"{benchmark.preparation.resize} {benchmark.preparation.crop_fraction:g}, as published"
    return preprocessing.with_changes(changes), said


def _check_order(dataset: ImageDataset, predicted: Sequence[str]) -> None:
    """Raise unless the classes are ImageNet's 1,000 wnids in order, which the ReaL labels index.

    Args:
        predicted: the model's classes: the same, or as many that were matched by index.
    """
    known = dataset.class_names
    are_published = len(known) == NUM_CLASSES and all(map(WNID.match, known)) and list(known) == sorted(known)
    are_ordered = tuple(predicted) == known or set(predicted) != set(known)
    if not are_published or not are_ordered or len(predicted) != NUM_CLASSES:
        raise DataError(
            f"the ReaL labels do not fit {len(known)} classes of {dataset.source} and {len(predicted)} of "
            "the model",
            expected=f"{NUM_CLASSES:,} classes, by wnid and in the order of the wnids",
            remedy=f"Put {MAPPING}, or another published list of the classes, beside the images",
        )


def _numbers(images: ImageSplit, indices: Iterable[int]) -> list[int]:
    found = []
    for index in indices:
        number = validation_number(images.names[index])
        if not number or number > NUM_VALIDATION:
            raise DataError(
                f"the image {images.names[index]!r} has no number by which to find its ReaL labels",
                expected="names such as ILSVRC2012_val_00000001.JPEG",
                remedy="Score the images under their published names; on the hub they have lost them",
            )
        found.append(number)
    return found


def reassess(predicted: Sequence[int], labels: Sequence[Set[int]]) -> list[bool]:
    """Return whether each predicted class is among the labels of its image; images without labels are left
    out.

    Paper: Beyer et al. 2020, "Are we done with ImageNet?", section 3.

    Raises:
        DataError: no image has a label.

    >>> reassess([3, 5, 7], [{1, 3}, set(), {5}])
    [True, False]
    """
    judged = [given in right for given, right in zip(predicted, labels, strict=True) if right]
    if not judged:
        raise DataError(
            f"none of {len(labels)} images has a ReaL label",
            expected="validation images of which some have one",
            remedy="Score all validation images",
        )
    return judged
