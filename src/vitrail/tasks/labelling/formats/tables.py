"""Texts with labels, or words with tags: CSV, TSV, JSON lines, parquet, saved sets, the hub."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.core.errors import DataError
from vitrail.data.findings import Finding, counted
from vitrail.data.formats import Format
from vitrail.data.hub_sets import HubSet, cached_features, load_named, load_saved, saved_features
from vitrail.data.splits import SplitName, assign_splits
from vitrail.data.tables import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    TABLE_SUFFIXES,
    Prose,
    Table,
    arrow_columns,
    class_names_in,
    column_names,
    find_column,
    label_text,
    read_table,
    simplify,
    tables_of,
)
from vitrail.data.text_preprocessing import Labels
from vitrail.tasks.classification.formats.tables import check_labels
from vitrail.tasks.labelling.dataset import RawTexts, TextRow
from vitrail.tasks.labelling.settings import TextDataSettings

TEXT_COLUMNS = (
    "text", "sentence", "content", "review", "document", "message", "comment", "tweet", "headline", "title",
    "question", "query", "utterance", "description", "abstract", "body",
)  # fmt: skip
TEXT_LABELS = (*LABEL_COLUMNS, "sentiment", "topic", "intent", "polarity", "rating", "stars", "language")
WORD_COLUMNS = ("tokens", "words")
TAG_COLUMNS = ("tags", "ner_tags", "pos_tags", "upos", "chunk_tags", "labels")
KNOWN = {*TEXT_COLUMNS, *TEXT_LABELS, *WORD_COLUMNS, *TAG_COLUMNS, "split", "set", "subset", "partition"}
TELLING = re.compile(
    r"ag_?news|sst|imdb|sentiment|emotion|review|tweet|spam|toxic|intent|banking77|trec\b|newsgroups|dbpedia|"
    r"conll|wnut|wiki_?ann|wikineural|universal_dependencies",
    re.IGNORECASE,
)  # names on the hub


def recognises(path: Path, settings: TextDataSettings | None) -> bool:
    """Accept a table with a column of texts and one of labels, or of words and of tags, without images."""
    return _kind_of(_columns_of(path)) is not None or lacks_labels(path)


def lacks_labels(path: Path) -> bool:
    """Return whether a table has texts beside columns of which none is named as labels are."""
    columns = _columns_of(path)
    lower = set(map(simplify, columns))
    has_texts = len(lower) > 1 and lower.intersection(TEXT_COLUMNS) and not lower.intersection(IMAGE_COLUMNS)
    return bool(has_texts) and _kind_of(columns) is None


def _columns_of(path: Path) -> list[str]:
    files = tables_of(path, TABLE_SUFFIXES)
    return column_names(next(iter(files.values()))[0]) if files else []


def read(path: Path, settings: TextDataSettings) -> RawTexts:
    """Read one table, which may have a column of splits, or those of the splits in a folder.

    Raises:
        DataError: a table is damaged, or a text has another number of words than of tags.
    """
    files = tables_of(path, TABLE_SUFFIXES)
    chosen, findings = assign_splits(files, str(path))
    named = settings.label_column
    prose = Prose(
        lambda columns: _kind_of(columns) is not None or named in columns or lacks_labels(path),
        lambda path, rows: column_names(path),
    )

    def read_one(file: Path) -> Table:
        return read_table(file, prose=prose, wanted=lambda name, kind: _is_known(name, kind) or name == named)

    tables = {split: [*map(read_one, files[stem])] for split, stem in chosen.items()}
    return _join(tables, findings, named)


def _kind_of(columns: Sequence[str]) -> Labels | None:
    """Return whether a table labels words or texts, by its columns; None if neither."""
    lower = set(map(simplify, columns))
    if lower.intersection(IMAGE_COLUMNS):
        return None
    if lower.intersection(WORD_COLUMNS) and lower.intersection(TAG_COLUMNS):
        return "words"
    return "sentence" if lower.intersection(TEXT_COLUMNS) and lower.intersection(TEXT_LABELS) else None


def _is_known(name: str, kind: Any) -> bool:
    return simplify(name) in KNOWN


def _join(
    tables: Mapping[SplitName, Sequence[Table]], findings: Sequence[Finding], label_column: str = ""
) -> RawTexts:
    """Collect the rows of each split; splits without a label are left out."""
    every = [table for part in tables.values() for table in part]
    kind = _kind_of([*every[0].columns]) or "sentence"
    rows: dict[SplitName, list[TextRow]] = {"train": []} if "train" in tables else {}
    dropped: list[str] = []
    for split, part in tables.items():
        for table in part:
            inside = table.rows_by_split() if set(tables) == {"train"} else {}
            split_of = {index: named for named, indices in inside.items() for index in indices}
            for index, row in enumerate(_rows(table, kind, label_column)):
                if isinstance(row, TextRow):
                    rows.setdefault(split_of.get(index, split), []).append(row)
                else:
                    dropped.append(row)
    if kind == "sentence":
        labels = (label for part in rows.values() for row in part for label in row.labels)
        check_labels(labels, f"the column of labels of {every[0].path}", thing="text")
    remedy = "Left out, and not counted above; complete or remove them"
    unlabelled = counted(dropped, "warning", "unlabelled-rows", "row", "without a label", remedy)
    of_tables = (finding for table in every for finding in table.findings)
    return RawTexts(kind, rows, (*findings, *of_tables, *unlabelled))


def _rows(table: Table, kind: Labels, named: str) -> Iterator[TextRow | str]:
    """Yield the rows of a table, or the name of one without a label."""
    columns, called = list(table.columns), table.path.name
    texts, labels = (WORD_COLUMNS, TAG_COLUMNS) if kind == "words" else (TEXT_COLUMNS, TEXT_LABELS)
    text_column = find_column(columns, texts, "text", called)
    stored = class_names_in({name: _of_items(feature) for name, feature in table.features.items()})
    preferred = [*stored][:1] if kind == "sentence" else ()
    label_column = find_column(
        columns, labels, "label", called, preferred=preferred, taken=text_column, named=named
    )
    names = dict(enumerate(stored.get(label_column, ())))
    cells = zip(table.columns[text_column], table.columns[label_column], table.names, strict=True)
    for text, label, name in cells:
        if kind == "sentence":  # -1 marks a text without a label on the hub
            given = label_text(names.get(label) if names and isinstance(label, int) else label)
            yield name if given is None else TextRow((_one_line(text),), (given,), name)
            continue
        words, tags = _listed(text), tuple(str(names.get(tag, tag)) for tag in _listed(label))
        if len(words) != len(tags):
            raise DataError(
                f"{name} has {len(words)} words and {len(tags)} tags",
                expected=f"a tag for each word, in the columns {text_column!r} and {label_column!r}",
                remedy="Correct this row, or remove it",
            )
        yield TextRow(tuple(map(str, words)), tags, name)


def _of_items(feature: Any) -> Any:
    """Return the description of a column's values, or of the items of its lists."""
    return feature.get("feature", feature) if isinstance(feature, Mapping) else feature


def _one_line(value: Any) -> str:
    return "" if value is None or value != value else " ".join(str(value).split())


def _listed(value: Any) -> Sequence[Any]:
    """Return the words of a cell: a list of them, or text with spaces between them."""
    return value if isinstance(value, list | tuple) else _one_line(value).split()


def is_of_texts(name: str) -> bool:
    """Guess offline whether a hub data set holds labelled texts: by its name, or by the cache."""
    described = cached_features(name)
    return any(map(_kind_of, map(list, described))) or (not described and bool(TELLING.search(name)))


def read_by_name(name: str) -> RawTexts:
    """Read a data set by its hub name, ``owner/name[/config]``; the local cache needs no network."""
    return _convert(load_named(name))


def _convert(loaded: HubSet) -> RawTexts:
    loaded.demand()
    tables = {}
    for split, rows in loaded.splits.items():
        columns = arrow_columns(rows.with_format("arrow")[:], _is_known)
        names = loaded.row_names(split)
        tables[split] = [Table(Path(loaded.name), columns, names, rows.features.to_dict())]
    return _join(tables, loaded.findings)


FORMATS = (
    Format(
        name="table of labelled texts",
        layout="a CSV, TSV, JSON lines or parquet file with a column of texts (text, sentence) and one of "
        'labels, or with lists of words and of tags ({"tokens": [...], "tags": [...]}), or a folder with '
        "train.csv (and test.csv) or the like",
        recognises=recognises,
        read=read,
        rank=20,
    ),
    Format(
        name="Hugging Face data set of labelled texts",
        layout="a folder that save_to_disk of the package datasets wrote, with such columns",
        recognises=lambda path, settings: any(map(_kind_of, map(list, saved_features(path)))),
        read=lambda path, settings: _convert(load_saved(path)),
        rank=5,
    ),
)
