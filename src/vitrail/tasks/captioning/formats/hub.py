"""Hugging Face data sets of captioned images: by name through ``datasets``, or a folder that it saved."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from vitrail.data.hub_sets import ColumnImages, HubSet, import_datasets, load_named, load_saved
from vitrail.data.splits import SplitName
from vitrail.data.tables import find_column
from vitrail.tasks.captioning.assembly import CaptionCollector
from vitrail.tasks.captioning.columns import KNOWN_IMAGES, are_captions, caption_columns, captions_of
from vitrail.tasks.captioning.dataset import CaptionSplit
from vitrail.tasks.captioning.formats.contract import CaptionFormat, RawCaptions

INFO_FILE = "dataset_info.json"
TELLING = re.compile(r"caption|flickr(8|30)k|nocaps|image[-_]text", re.I)


def recognises(path: Path) -> bool:
    """Accept a folder that ``save_to_disk`` wrote and that has columns of images and captions."""
    if not ((path / "dataset_dict.json").is_file() or (path / "state.json").is_file()):
        return False
    return any(_described(file) for file in [path / INFO_FILE, *sorted(path.glob(f"*/{INFO_FILE}"))])


def read(path: Path) -> RawCaptions:
    """Read a saved data set.

    Raises:
        DataError: it is damaged or has no recognised columns.
    """
    return _convert(load_saved(path))


def read_by_name(name: str) -> RawCaptions:
    """Read a data set by its name on the hub, ``owner/name``; what is in the local cache needs no network.

    Raises:
        DataError: there is none of that name, the network cannot be reached, or no column is recognised.
    """
    return _convert(load_named(name, lambda datasets: datasets.load_dataset(name)))


def is_of_captions(name: str) -> bool:
    """Guess without a network whether a data set of the hub holds captions: by its name, or the cache."""
    if TELLING.search(name):
        return True
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    cache = Path(os.environ.get("HF_DATASETS_CACHE", home / "datasets")).expanduser()
    folder = cache / name.lower().replace("/", "___", 1)
    return any(_described(file) for file in sorted(folder.rglob(INFO_FILE)))


def _convert(loaded: HubSet) -> RawCaptions:
    datasets, name = import_datasets(loaded.name), loaded.name
    if not loaded.splits:
        raise loaded.lacks("a split named train, validation or test")
    features = next(iter(loaded.splits.values())).features
    images = [key for key, feature in features.items() if isinstance(feature, datasets.Image)]
    column = find_column(list(features), KNOWN_IMAGES, "image", name, preferred=images)
    written = caption_columns([key for key in features if key != column], name)
    collector = CaptionCollector(findings=list(loaded.findings))
    splits: dict[SplitName, CaptionSplit] = {}
    for split, rows in loaded.splits.items():
        encoded = rows.cast_column(column, datasets.Image(decode=False)) if column in images else rows
        texts: dict[str, list[Any]] = {key: rows[key][:] for key in written}
        names = [f"{split}#{index}" for index in range(len(rows))]
        splits[split] = collector.split(ColumnImages(encoded, column), captions_of(texts, written), names)
    return collector.result(splits, where=name)


def _described(file: Path) -> bool:
    try:
        features = json.loads(file.read_text(encoding="utf-8"))["features"]
        return are_captions(features)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


FORMAT = CaptionFormat(
    name="Hugging Face captions",
    layout="a folder that save_to_disk of the package datasets wrote, with columns of images and captions",
    recognises=recognises,
    read=read,
    rank=5,
)
