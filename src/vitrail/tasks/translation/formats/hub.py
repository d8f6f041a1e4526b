"""Hugging Face data sets of pairs: by name through the package ``datasets``, or a folder that it saved."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.data.hub_sets import HubSet, load_named, load_saved
from vitrail.data.splits import SplitName
from vitrail.data.text.languages import Languages, is_language
from vitrail.tasks.translation.columns import STRUCT_COLUMN, PairTable, are_pairs, join_tables
from vitrail.tasks.translation.formats.contract import PairFormat, RawPairs
from vitrail.tasks.translation.formats.parquet import to_columns

INFO_FILE = "dataset_info.json"
NAME = re.compile(r"^(?P<owner>[A-Za-z0-9][\w.-]*)/(?P<name>[\w.-]+)(/(?P<config>[\w.-]+))?$")
TELLING = re.compile(
    r"wmt|iwslt|opus|europarl|tatoeba|multi30k|flores|translation|parallel|bitext|nllb", re.I
)


def recognises(path: Path, wanted: Languages | None) -> bool:
    """Accept a folder that ``save_to_disk`` wrote and that holds pairs."""
    if (path / "dataset_dict.json").is_file():
        return any(are_pairs(_columns_described(file), wanted) for file in path.glob(f"*/{INFO_FILE}"))
    return (path / "state.json").is_file() and are_pairs(_columns_described(path / INFO_FILE), wanted)


def read(path: Path, wanted: Languages | None) -> RawPairs:
    """Read a saved data set.

    Raises:
        DataError: it is damaged or has no recognised columns.
    """
    return _convert(load_saved(path), wanted)


def is_name(text: str) -> bool:
    """Tell whether a text has the form of a name on the hub, ``owner/name`` or ``owner/name/config``."""
    return NAME.match(text) is not None


def is_of_pairs(name: str) -> bool:
    """Guess without a network whether a data set of the hub holds pairs.

    Its configuration is a pair of languages (``de-en``), its name tells it, or the local cache has it.
    """
    match = NAME.match(name)
    if match is None:
        return False
    names_languages = any(
        len(parts) == 2 and all(map(is_language, parts))
        for parts in ((match["config"] or "").split(separator) for separator in "-_")
    )
    if names_languages or TELLING.search(match["name"]):
        return True
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    cache = Path(os.environ.get("HF_DATASETS_CACHE", home / "datasets")).expanduser()
    folder = cache / f"{match['owner']}___{match['name'].lower()}"
    return any(are_pairs(_columns_described(file), None) for file in sorted(folder.rglob(INFO_FILE)))


def read_by_name(name: str, wanted: Languages | None) -> RawPairs:
    """Read a data set by its name on the hub; what is in the local cache needs no network.

    Args:
        name: ``owner/name``, or ``owner/name/config`` of one that has several configurations.
        wanted: the languages, or None.

    Raises:
        DataError: there is none of that name, the network cannot be reached, or no column is recognised.
    """
    match = NAME.match(name)

    def load(datasets: Any) -> Any:
        if match is None:
            raise ValueError("the name is not of the form owner/name")
        return datasets.load_dataset(f"{match['owner']}/{match['name']}", match["config"])

    hint = "; one of several configurations is named hf:owner/name/config"
    return _convert(load_named(name, load, hint=hint), wanted)


def _convert(loaded: HubSet, wanted: Languages | None) -> RawPairs:
    if not loaded.splits:
        raise loaded.lacks("a split named train, validation or test")
    tables: dict[SplitName, list[tuple[str, PairTable]]] = {}
    for split, rows in loaded.splits.items():
        columns = to_columns(rows.with_format("arrow")[:])
        names = [f"{split}#{index}" for index in range(len(rows))]
        tables[split] = [(f"the split {loaded.found[split]} of {loaded.name}", PairTable(columns, names))]
    return join_tables(tables, wanted, loaded.name, loaded.findings)


def _columns_described(file: Path) -> list[str]:
    """Return the columns that a description of features names; none where there is no such file."""
    try:
        features = json.loads(file.read_text(encoding="utf-8"))["features"]
        struct = features.get(STRUCT_COLUMN)
        if not isinstance(struct, Mapping):
            return [str(column) for column in features]
        fields = struct["languages"] if struct.get("_type") == "Translation" else struct
        return [str(field) for field in fields]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


FORMAT = PairFormat(
    name="Hugging Face data set of pairs",
    layout="a folder that save_to_disk of the package datasets wrote, with a column translation, or a column "
    "for each language",
    recognises=recognises,
    read=read,
    rank=5,
)
