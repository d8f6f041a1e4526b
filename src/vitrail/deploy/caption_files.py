"""Captions of many files, as JSON, JSON lines, a table or plain lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

from vitrail.deploy.captioner import Caption
from vitrail.durable import atomic_write
from vitrail.errors import ConfigError

SUFFIXES = (".json", ".jsonl", ".csv", ".tsv", ".txt")


def write_captions_file(path: Path, captions: Sequence[Caption]) -> None:
    """Write captions into a file of the form that its name says.

    ``.csv`` and ``.tsv`` have the columns image and caption, which ``vitrail train`` reads; ``.txt`` has one
    caption a line, in the order of the images, and an empty line for an image that could not be used.

    Args:
        path: ends in .json, .jsonl, .csv, .tsv or .txt.
        captions: what was written of each image.

    Raises:
        ConfigError: the name ends otherwise.
        CheckpointError: the disk is full or not writable.
    """
    suffix = path.suffix.lower()
    rows = [caption.to_json() for caption in captions]
    if suffix == ".json":
        content = json.dumps(rows, indent=2, ensure_ascii=False) + "\n"
    elif suffix == ".jsonl":
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    elif suffix == ".txt":
        content = "".join(caption.text + "\n" for caption in captions)
    elif suffix in SUFFIXES:
        text = io.StringIO()
        writer = csv.writer(text, delimiter="\t" if suffix == ".tsv" else ",", lineterminator="\n")
        writer.writerow(("image", "caption", "score", "error"))
        for caption in captions:
            score = "" if caption.error else f"{caption.score:.4f}"
            writer.writerow((caption.source, caption.text, score, caption.error or ""))
        content = text.getvalue()
    else:
        raise ConfigError(
            f"{path} has no suffix of a known form",
            expected=f"a name that ends in {', '.join(SUFFIXES)}",
            remedy="Choose one of these",
        )
    atomic_write(path, content)
