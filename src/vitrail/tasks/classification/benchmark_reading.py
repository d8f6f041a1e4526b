"""Benchmarks by name, read from a published folder or from the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from vitrail.core.errors import DataError
from vitrail.core.files import expand, parse_json, read_file
from vitrail.data.file_places import DATA_VARIABLE, data_folders
from vitrail.data.findings import Finding
from vitrail.data.formats import RawDataset, reading_file
from vitrail.data.splits import SPLITS
from vitrail.tasks.classification.benchmarks import Benchmark, benchmark_of
from vitrail.tasks.classification.formats import read_path

REAL_FILE = "real.json"
NUM_VALIDATION = 50_000  # ReaL labels, one list per validation image of ImageNet


def read_benchmark(source: str) -> RawDataset:
    """Read a benchmark.

    Args:
        source: ``NAME``, looked up below the folder ``VITRAIL_DATA`` and then on the hub, or ``NAME:FOLDER``.

    Raises:
        DataError: it was not found, cannot be read, or is another data set.
    """
    benchmark = benchmark_of(source)
    assert benchmark is not None, "a source of this kind"
    given = source.partition(":")[2]
    folder = find_folder(benchmark, given)
    raw = read_path(folder) if folder is not None else _read_from_hub(benchmark, given)
    if len(raw.class_names) > benchmark.num_classes:
        raise DataError(
            f"{folder or benchmark.hub} has {len(raw.class_names)} classes",
            expected=f"the {benchmark.num_classes} of {benchmark.title}",
            remedy="Give the folder of this data set, or leave the name of the benchmark out",
        )
    return replace(raw, findings=(*raw.findings, *find_gaps(benchmark, raw)))


def find_folder(benchmark: Benchmark, given: str = "") -> Path | None:
    """Return the folder of a benchmark, or None."""
    return next((folder for folder in folders_of(benchmark, given) if folder.is_dir()), None)


def folders_of(benchmark: Benchmark, given: str = "") -> list[Path]:
    """Return the folders where a benchmark is looked up.

    Args:
        given: a folder named by the user, which excludes all others.
    """
    return [expand(given)] if given else data_folders(*benchmark.folders)


def find_gaps(benchmark: Benchmark, raw: RawDataset) -> Iterator[Finding]:
    """Find what is missing compared with the published data set."""
    counts = {name: len(raw.splits[name]) if name in raw.splits else 0 for name in SPLITS}
    short = {
        name: f"{counts[name]:,} of {published:,} images of {name}"
        for name, published in zip(SPLITS, benchmark.counts, strict=True)
        if published and counts[name] != published
    }
    scored = [short.pop(benchmark.scored_split, "")]
    if len(raw.class_names) != benchmark.num_classes:
        scored.insert(0, f"{len(raw.class_names)} of {benchmark.num_classes} classes")
    if any(scored):
        yield Finding(
            "warning",
            "incomplete-benchmark",
            f"{benchmark.title} is not complete: {', '.join(filter(None, scored))}",
            "Scores cannot be compared with published ones",
        )
    if not counts["train"]:
        yield Finding(
            "info",
            "no-training-images",
            f"{benchmark.title} has no training images here",
            "Models can be scored on it, not trained",
        )
    elif short:
        yield Finding(
            "warning",
            "incomplete-training",
            f"{benchmark.title} lacks training images: {', '.join(short.values())}",
            "Scores of models trained on it cannot be compared with published ones",
        )


def read_real_labels(source: str) -> list[frozenset[int]]:
    """Return the ReaL labels: for each validation image of ImageNet, by number, zero or more classes.

    Raises:
        DataError: the file was not found, or is another one.
    """
    benchmark = benchmark_of(source)
    assert benchmark is not None, "a source of this kind"
    folders = folders_of(benchmark, source.partition(":")[2])
    paths = [folder / REAL_FILE for folder in folders]
    paths += [folder.parent / "imagenet-real" / REAL_FILE for folder in folders]
    path = next((folder for folder in paths if folder.is_file()), None)
    if path is None:
        raise DataError(
            f"the ReaL labels were not found: {_list_folders(paths)}",
            expected=f"{REAL_FILE}, {NUM_VALIDATION:,} lists of classes",
            remedy=f"Put {benchmark.download.split(',')[0]} there",
        )
    expected = f"JSON with {NUM_VALIDATION:,} lists of classes from 0 to 999"
    with reading_file(path, expected=expected):
        labels = [frozenset(map(int, entry)) for entry in parse_json(read_file(path))]
        known = range(benchmark.num_classes)
        if len(labels) != NUM_VALIDATION or not all(label in known for entry in labels for label in entry):
            raise ValueError(f"it holds {len(labels):,} lists, or numbers that are not classes")
    return labels


def _read_from_hub(benchmark: Benchmark, given: str) -> RawDataset:
    from vitrail.tasks.classification.formats.tables import read_by_name

    failure = ""
    if not given and benchmark.hub is not None:
        try:
            return read_by_name(benchmark.hub)
        except DataError as error:
            failure = f"; and {error.given}"
    raise DataError(
        f"{benchmark.title} is not on this machine: {_list_folders(folders_of(benchmark, given))}{failure}",
        expected=f"a folder with {benchmark.layout}",
        remedy=f"Download it from {benchmark.download}, and give its folder as {benchmark.name}:FOLDER, or "
        f"set {DATA_VARIABLE} to the folder above {benchmark.folders[0]}/",
    )


def _list_folders(paths: list[Path]) -> str:
    if not paths:
        return f"{DATA_VARIABLE} is not set and no folder was given"
    return f"there is no {' and no '.join(map(str, paths))}"
