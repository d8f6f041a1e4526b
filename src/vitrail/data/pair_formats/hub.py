"""Hugging Face data sets of pairs: by name through the package ``datasets``, or a folder that it saved."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vitrail.data.findings import Finding
from vitrail.data.formats.contract import SPLIT_NAMES, SplitName
from vitrail.data.languages import Languages, is_language
from vitrail.data.pair_columns import STRUCT_COLUMN, PairTable, are_pairs, join_tables
from vitrail.data.pair_formats.contract import PairFormat, RawPairs
from vitrail.data.pair_formats.parquet import to_columns
from vitrail.errors import DataError

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
    datasets = _import_datasets(str(path))
    try:
        loaded = datasets.load_from_disk(str(path))
    except Exception as error:  # whatever the package meets in a damaged folder
        raise DataError(
            f"{path} cannot be read as a saved data set: {_one_line(error)}",
            expected="a folder that save_to_disk of the package datasets wrote",
            remedy="Save the data set again",
        ) from None
    return _convert(loaded, str(path), wanted)


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
    datasets = _import_datasets(name)
    match = NAME.match(name)
    try:
        if match is None:
            raise ValueError("the name is not of the form owner/name")
        loaded = datasets.load_dataset(f"{match['owner']}/{match['name']}", match["config"])
    except Exception as error:  # network, hub and builder errors have no common type
        raise DataError(
            f"the Hugging Face data set {name!r} cannot be loaded: "
            f"{type(error).__name__}: {_one_line(error)}",
            expected="a data set in the local cache, or a network connection and an existing name; "
            "one of several configurations is named hf:owner/name/config",
            remedy="Correct the name, connect to the network, or download the data and give its folder",
        ) from None
    return _convert(loaded, name, wanted)


def _convert(loaded: Any, name: str, wanted: Languages | None) -> RawPairs:
    if not isinstance(loaded, Mapping):  # one split alone
        loaded = {"train": loaded}
    tables: dict[SplitName, list[tuple[str, PairTable]]] = {}
    unread = []
    for key, rows in loaded.items():
        split = SPLIT_NAMES.get(str(key).lower())
        if split is None or split in tables:
            unread.append(str(key))
            continue
        columns = to_columns(rows.with_format("arrow")[:])
        names = [f"{split}#{index}" for index in range(len(rows))]
        tables[split] = [(f"the split {key} of {name}", PairTable(columns, names))]
    if not tables:
        raise DataError(
            f"the data set {name!r} has the splits {', '.join(map(str, loaded)) or 'none'}",
            expected="a split named train, validation or test",
            remedy="Rename a split, or save the one you mean as a data set of its own",
        )
    return join_tables(tables, wanted, name, _report_unread(unread))


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


def _report_unread(unread: Iterable[str]) -> tuple[Finding, ...]:
    names = tuple(unread)
    if not names:
        return ()
    return (
        Finding(
            "warning",
            "unread-splits",
            f"{len(names)} splits are not used",
            "Name them train, validation or test",
            names,
        ),
    )


def _import_datasets(name: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise DataError(
            f"{name!r} needs the package datasets, which is not installed",
            expected="datasets beside vitrail",
            remedy="Install it with: pip install 'vitrail[data]'",
        ) from None
    return datasets


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


FORMAT = PairFormat(
    name="Hugging Face data set of pairs",
    layout="a folder that save_to_disk of the package datasets wrote, with a column translation, or a column "
    "for each language",
    recognises=recognises,
    read=read,
    rank=5,
)
