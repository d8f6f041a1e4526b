"""Open labelled texts: recognise the format, read it, carve out missing splits."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from vitrail.core.errors import DataError
from vitrail.core.files import expand
from vitrail.data.dataset import encode_labels, order_class_names
from vitrail.data.formats import HUB_PREFIX, format_by_suffix, format_of, is_name_on_hub, layouts, locate
from vitrail.data.splits import divide
from vitrail.tasks.labelling.dataset import RawTexts, TextDataset, TextSplit
from vitrail.tasks.labelling.formats import TEXT_FORMATS
from vitrail.tasks.labelling.formats.tables import is_of_texts, lacks_labels, read_by_name
from vitrail.tasks.labelling.settings import TextDataSettings

SURE, LIKELY = 6, 1  # columns of texts and of labels say more than sentences that look parallel


def open_texts(source: str | os.PathLike[str], *, settings: TextDataSettings | None = None) -> TextDataset:
    """Open texts with a label each, or words with a tag each.

    Args:
        source: a table, a CoNLL file, a folder with one for each split, or a Hugging Face name
            (``hf:owner/name``).
        settings: the column of tags, and fractions and seed of missing splits.

    Raises:
        DataError: there is nothing of that name, its format is unknown, or it cannot be used.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = "".join(f"film {i} is good,praise\\nfilm {i} is bad,blame\\n" for i in range(10))
    ...     _ = Path(folder, "films.csv").write_text("text,label\\n" + rows)
    ...     dataset = open_texts(f"{folder}/films.csv")
    >>> dataset.class_names, len(dataset.train), len(dataset.test), dataset.train.parts[0]
    (('blame', 'praise'), 14, 4, ('film 0 is good',))
    """
    text = os.fspath(source)
    settings = settings or TextDataSettings(source=text)
    raw, format_name = locate(text, read=lambda path: _read_path(path, settings), read_by_name=read_by_name)
    class_names = order_class_names(
        label for rows in raw.splits.values() for row in rows for label in row.labels
    )
    splits = {
        name: TextSplit(
            tuple(row.parts for row in rows),
            tuple(encode_labels(row.labels, class_names) for row in rows),
            tuple(row.name for row in rows),
        )
        for name, rows in raw.splits.items()
    }
    is_text = raw.labels == "sentence"
    divided = divide(
        splits,
        raw.findings,
        settings,
        strata=lambda split: np.array([labels[0] if is_text else 0 for labels in split.labels], np.int64),
        things="texts",
    )
    return TextDataset(source=text, format=format_name, class_names=class_names, labels=raw.labels, **divided)


def recognises(source: str) -> int:
    """Return how surely a source is labelled texts, by a cheap look; 0 if not."""
    path = expand(source)
    if source.startswith(HUB_PREFIX) or is_name_on_hub(source, path):
        return SURE * is_of_texts(source.removeprefix(HUB_PREFIX))
    if not source.strip() or format_of(TEXT_FORMATS, path, None) is None:
        return 0
    return LIKELY if lacks_labels(path) else SURE


def _read_path(path: Path, settings: TextDataSettings) -> tuple[RawTexts, str] | None:
    found = format_of(TEXT_FORMATS, path, settings) or format_by_suffix(TEXT_FORMATS, path, ".gz")
    if found is not None:
        return found.read(path, settings), found.name
    if not path.exists():
        return None
    raise DataError(
        f"{path} holds no labelled texts in a known format",
        expected=layouts(TEXT_FORMATS),
        remedy="Name the columns 'text' and 'label'",
    )
