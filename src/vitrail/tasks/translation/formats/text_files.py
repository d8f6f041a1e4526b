"""Two text files aligned line by line: ``train.en`` and ``train.de``, alone or beside other splits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vitrail.core.errors import DataError
from vitrail.core.files import PACKED
from vitrail.data.findings import Finding, about
from vitrail.data.formats import Format
from vitrail.data.splits import assign_splits, split_of
from vitrail.data.text.languages import Languages, choose_languages, is_language
from vitrail.data.text.lines import read_lines
from vitrail.tasks.translation.dataset import PairSplit, RawPairs

MEMORY = ".tmx"
MAX_SHIFT = 0.2  # fraction of the lines; a greater difference means unrelated texts, not a gap
CLEAR_GAP = 0.7  # cost of the best alignment over that of shuffled lines; near 1 for unrelated lengths
SHORT_LINE = 10  # characters added to both lengths, to damp the ratio of short lines


Texts = dict[str, dict[str, Path]]
"""Files whose suffix is a language, by the rest of their name and by language."""


def recognises(path: Path, wanted: Languages | None) -> bool:
    """Accept a folder with such files, the common prefix of two, or one of the two."""
    return bool(_paired(_list_texts(path, wanted)))


def has_one_side(path: Path) -> bool:
    """Tell a folder of texts such as ``train.en`` alone, or a translation memory, which opening explains."""
    if path.suffix.lower() == MEMORY:
        return path.is_file()
    return path.is_dir() and any(split_of(stem) for stem in _list_texts(path, None))


def read(path: Path, wanted: Languages | None) -> RawPairs:
    """Read the training, validation and test texts.

    Raises:
        DataError: the languages are not clear, or the two files of a text differ in length.
    """
    texts = _list_texts(path, wanted)
    paired = _paired(texts)
    parts, _ = assign_splits(paired, str(path))
    available = list(paired[parts.get("train", next(iter(parts.values())))])
    if path.is_file():  # train.en was named: it is the source
        _, named = _parts(path.name)
        available.sort(key=lambda language: language != named)
    languages, chosen = choose_languages(available, wanted, str(path))
    usable = {stem: files for stem, files in paired.items() if files.keys() >= set(languages)}
    parts, findings = assign_splits(usable, str(path))
    splits = {
        split: read_two(usable[stem][languages[0]], usable[stem][languages[1]])
        for split, stem in parts.items()
    }
    return RawPairs(languages, splits, (*chosen, *findings, *_report_unpaired(texts, languages)))


def read_two(source: Path, target: Path) -> PairSplit:
    """Read two files that are aligned line by line.

    Trailing blank lines of one of them are ignored.

    Raises:
        DataError: they differ in length, one cannot be read, or both are empty.
    """
    sources, targets = read_lines(source), read_lines(target)
    for longer, shorter in ((sources, targets), (targets, sources)):
        while len(longer) > len(shorter) and not longer[-1].strip():
            longer.pop()
    if len(sources) != len(targets):
        position = find_gap([len(line) for line in sources], [len(line) for line in targets])
        where = "" if position is None else f"; they seem to part near line {position + 1:,}"
        raise DataError(
            f"{source.name} has {len(sources):,} lines and {target.name} has {len(targets):,}{where}",
            expected="two files whose lines of one number are translations of each other",
            remedy=f"Mend the files in {source.parent}; a tool that divides at other characters than line "
            "feeds may have moved one against the other",
        )
    if not sources:
        raise DataError(
            f"{source.name} and {target.name} are empty",
            expected="a sentence on each line",
            remedy="Write or download the files again",
        )
    label = source.name.removesuffix(PACKED)
    return PairSplit(sources, targets, [f"{label}:{number}" for number in range(1, len(sources) + 1)])


def find_gap(source_lengths: list[int], target_lengths: list[int]) -> int | None:
    """Guess from line lengths where two texts get out of step.

    Translations have similar lengths. Lines before the gap are compared with the same line, later ones with
    the line shifted by the difference in length; the position of least cost wins.

    Returns:
        : The index of the first line that is shifted or missing, or None if lengths are inconclusive.
    """
    longer, shorter = sorted(
        (np.log(np.array(lengths) + SHORT_LINE) for lengths in (source_lengths, target_lengths)), key=len
    )[::-1]
    number, shift = len(shorter), len(longer) - len(shorter)
    if number == 0 or shift > MAX_SHIFT * len(longer):
        return None
    shorter = shorter + np.median(longer) - np.median(shorter)  # one language may be longer throughout
    before = np.concatenate([[0.0], np.cumsum(np.abs(longer[:number] - shorter))])
    after = np.concatenate([[0.0], np.cumsum(np.abs(longer[shift:] - shorter))])
    costs = before + (after[-1] - after)
    position = int(costs.argmin())
    shuffled = np.abs(longer[np.random.default_rng(0).permutation(len(longer))[:number]] - shorter).sum()
    return position if costs[position] < CLEAR_GAP * shuffled else None


def _list_texts(path: Path, wanted: Languages | None) -> Texts:
    is_folder = path.is_dir()
    texts: Texts = {}
    if not is_folder and (not path.name or not path.parent.is_dir()):
        return texts
    meant = None if is_folder else _stem_meant(path, wanted)
    for entry in os.scandir(path if is_folder else path.parent):
        stem, language = _parts(entry.name)
        is_meant = not stem.startswith(".") if meant is None else stem == meant
        if stem and is_meant and _is_named(language, wanted):
            files = texts.setdefault(stem, {})
            if language not in files or not entry.name.endswith(PACKED):  # uncompressed ones win
                files[language] = Path(entry.path)
    return texts


def _parts(name: str) -> tuple[str, str]:
    """Divide a file name into stem and language; one of them is empty without a suffix."""
    stem, _, language = name.removesuffix(PACKED).rpartition(".")
    return stem, language


def _is_named(language: str, wanted: Languages | None) -> bool:
    return is_language(language) or (wanted is not None and language in wanted)


def _stem_meant(path: Path, wanted: Languages | None) -> str:
    """Return the common name of two files: that of the path, or of one of the two; empty if it is neither."""
    if path.is_file():
        stem, language = _parts(path.name)
        return stem if _is_named(language, wanted) else ""
    return path.name.removesuffix(PACKED).removesuffix(".")


def _paired(texts: Texts) -> Texts:
    return {stem: dict(sorted(files.items())) for stem, files in texts.items() if len(files) > 1}


def _report_unpaired(texts: Texts, languages: Languages) -> Iterator[Finding]:
    """Report texts that lack a language, such as a test set without published translation."""
    lone = sorted(
        file.name
        for files in texts.values()
        for language, file in files.items()
        if language in languages and not files.keys() >= set(languages)
    )
    return about(
        lone,
        "warning",
        "unpaired-texts",
        f"texts in one of the two languages alone are not used: {len(lone)}",
        "Add the other side, or move them away",
    )


FORMAT = Format(
    name="two text files",
    layout="files STEM.LANGUAGE such as train.en and train.de (val.*, test.*; each also with .gz): "
    "their folder, or the path without the language (corpus/train)",
    recognises=recognises,
    read=read,
    rank=10,
)
