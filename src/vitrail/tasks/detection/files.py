"""Detections of many files: as COCO JSON, as a table, and drawn over the images."""

from __future__ import annotations

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from vitrail import __version__
from vitrail.core.boxes import xyxy_to_xywh
from vitrail.core.durable import atomic_write
from vitrail.core.errors import ConfigError
from vitrail.data.images import read_image
from vitrail.data.inputs import list_files
from vitrail.tasks.answer_files import SUFFIXES, FileResults, csv_text, read_cell, text_table
from vitrail.tasks.contract import FileOptions
from vitrail.tasks.detection.detections import TABLE_HEADER, Detections
from vitrail.tasks.detection.predictor import Detector
from vitrail.tasks.explaining import picture_files
from vitrail.tasks.predicting import Results

RESULTS_FILE, IMAGES_FILE, TABLE_FILE = "detections.json", "annotations.json", "detections.csv"
PICTURES, JPEG_QUALITY = "pictures", 90


def show_detections(files: Sequence[str], options: FileOptions) -> FileResults:
    """Detect in each file, and write the results into a folder unless they are only printed."""
    output, threshold = options.output, options.threshold
    if output is not None and output.suffix.lower() in SUFFIXES and not output.is_dir():
        raise ConfigError(
            f"{output} is the name of a file",
            expected="a folder, for COCO's JSON, a table and pictures",
            remedy=f"Leave out {output.suffix}, or print JSON with --json",
        )
    detector = Detector(
        options.source, engine=options.engine, precision=options.precision, trust=options.trust
    )
    if options.as_json and output is None:
        return detection_results(detector.detect(files, threshold=threshold))
    folder = output or Path("detections")
    found = detect_files(detector, files, output=folder, threshold=threshold)
    if all(each.error is not None for each in found):
        return detection_results(found, "nothing was written: no image could be used")
    used = detector.threshold_of(threshold)
    origin = "tuned on the run's validation images" if threshold is None else "as given"
    return detection_results(
        found,
        f"confidence threshold {used:.2f} ({origin}; change it with --threshold)",
        f"boxes, table and pictures in {folder}",
    )


def detection_results(found: Sequence[Detections], *notes: str) -> FileResults:
    """Return detections in every form in which they are shown: a row for each image and class."""
    rows: list[tuple[str, ...]] = []
    for each in found:
        if each.error is not None:
            continue
        best = {label: score for label, score, _ in reversed([*each.rows()])}  # the best box is the first
        counts = Counter(each.labels.tolist())
        rows += [
            (each.name if rank == 0 else "", each.class_names[label], str(count), f"{best[label]:.2f}")
            for rank, (label, count) in enumerate(counts.most_common())
        ] or [(each.name, "none", "0", "")]
    return FileResults(
        tree=[each.to_json() for each in found],
        columns=("image", "class", "boxes", "best score"),
        rows=rows,
        errors=[(each.name, each.error) for each in found if each.error is not None],
        notes=notes,
    )


def detect_files(
    detector: Detector,
    names: Iterable[str | Path],
    *,
    output: str | Path = "detections",
    threshold: float | None = None,
) -> list[Detections]:
    """Find boxes in files and write them into a folder; return them in the order of the images.

    ``detections.json`` is a list in COCO's results format; ``annotations.json`` the same in COCO's data set
    format, with the images and classes, which annotation tools and ``vitrail check`` open;
    ``detections.csv`` a table with a row for each box, and one for each image without any;
    ``pictures/`` the images with their boxes. Results of an earlier call are replaced, its pictures included,
    unless no image can be used: then nothing is written.

    Args:
        names: files, folders and glob patterns.
        output: the folder; created if missing.
        threshold: confidence threshold, 0..1; by default the model's own.

    Raises:
        ConfigError: the threshold is not in 0..1.
        DataError: a folder or pattern holds no image, or nothing was named.
        CheckpointError: the output cannot be written.
    """
    folder, paths = Path(output), list_files(names)
    files = picture_files(folder / PICTURES, [str(path) for path in paths], ".jpg")
    found, pictures = [], []
    for path, file, each in zip(paths, files, detector.detect_each(paths, threshold=threshold), strict=True):
        found.append(each)
        if each.error is None:
            encoded = io.BytesIO()
            # Thin coloured lines need their colours in full.
            each.draw(read_image(path)).save(encoded, format="jpeg", quality=JPEG_QUALITY, subsampling=0)
            atomic_write(file, encoded.getvalue())
            pictures.append(file)
    if not pictures:
        return found
    _remove_pictures(folder, keep=pictures)
    atomic_write(folder / RESULTS_FILE, json.dumps(coco_results(found, detector.class_ids)) + "\n")
    named = [each._replace(name=_seen_from(folder, each.name)) for each in found]
    annotations = coco_annotations(named, detector.class_ids, detector.class_names)
    atomic_write(folder / IMAGES_FILE, json.dumps(annotations, ensure_ascii=False) + "\n")
    rounded = text_table(Results(found).table(), score=4, left=2, top=2, right=2, bottom=2)
    atomic_write(folder / TABLE_FILE, csv_text(rounded))
    return found


def coco_results(found: Sequence[Detections], class_ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return boxes in COCO's results format, images numbered from 1, failed ones included."""
    results = []
    for number, each in enumerate(found, start=1):
        boxes = xyxy_to_xywh(each.boxes_xyxy.double()).tolist()
        for (label, score, _), box in zip(each.rows(), boxes, strict=True):
            rounded = [round(value, 2) for value in box]  # hundredths of a pixel, as COCO has them
            result = {"image_id": number, "category_id": class_ids[label], "bbox": rounded}
            results.append(result | {"score": round(score, 5)})
    return results


def coco_annotations(
    found: Sequence[Detections], class_ids: Sequence[int], class_names: Sequence[str]
) -> dict[str, Any]:
    """Return boxes in COCO's data set format, plus scores; failed images are left out."""
    results = coco_results(found, class_ids)
    return {
        "info": {"description": "Detected boxes, not annotations of people", "version": __version__},
        "images": [
            {"id": number, "file_name": each.name, "height": each.size[0], "width": each.size[1]}
            for number, each in enumerate(found, start=1)
            if each.error is None
        ],
        "categories": [
            {"id": number, "name": name} for number, name in zip(class_ids, class_names, strict=True)
        ],
        "annotations": [
            result | {"id": number, "area": round(result["bbox"][2] * result["bbox"][3], 2), "iscrowd": 0}
            for number, result in enumerate(results, start=1)
        ],
    }


def _remove_pictures(folder: Path, *, keep: Sequence[Path]) -> None:
    """Remove the pictures of an earlier call, which its table names; other files stay."""
    try:
        with (folder / TABLE_FILE).open(encoding="utf-8", newline="") as table:
            names = dict.fromkeys(read_cell(row[TABLE_HEADER[0]]) for row in csv.DictReader(table))
    except (OSError, UnicodeDecodeError, KeyError):  # there was none, or it is not ours
        return
    for file in set(picture_files(folder / PICTURES, list(names), ".jpg")) - set(keep):
        file.unlink(missing_ok=True)


def _seen_from(folder: Path, name: str) -> str:
    try:
        return Path(os.path.relpath(name, folder)).as_posix()
    except ValueError:  # there is no relative path from one drive to another
        return Path(name).absolute().as_posix()
