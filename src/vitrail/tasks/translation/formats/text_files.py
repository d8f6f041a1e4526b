"""Two text files aligned line by line: ``train.en`` and ``train.de``, alone or beside other splits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vitrail.core.errors import DataError
from vitrail.data.findings import Finding, about
from vitrail.data.formats import Format
from vitrail.data.splits import assign_splits
from vitrail.data.text.languages import Languages, choose_languages, is_language
from vitrail.data.text.lines import GZIP_SUFFIX, read_lines
from vitrail.tasks.translation.dataset import PairSplit, RawPairs

MAX_SHIFT = 0.2  # fraction of the lines; a greater difference means unrelated texts, not a gap
CLEAR_GAP = 0.7  # cost of the best alignment over that of shuffled lines; near 1 for unrelated lengths
SHORT_LINE = 10  # characters added to both lengths, to damp the ratio of short lines


@dataclass
class _Texts:
    """The files of a folder whose suffix is a language."""

    by_stem: dict[str, dict[str, Path]] = field(default_factory=dict)

    def add(self, path: Path, wanted: Languages | None) -> None:
        name = path.name.removesuffix(GZIP_SUFFIX)
        stem, dot, language = name.rpartition(".")
        if dot and stem and (is_language(language) or (wanted is not None and language in wanted)):
            files = self.by_stem.setdefault(stem, {})
            if language not in files or name == path.name:  # uncompressed files take precedence
                files[language] = path

    def in_two_languages(self) -> dict[str, dict[str, Path]]:
        return {stem: dict(sorted(files.items())) for stem, files in self.by_stem.items() if len(files) > 1}


def recognises(path: Path, wanted: Languages | None) -> bool:
    """Accept a folder with such files, the common prefix of two, or one of the two."""
    return bool(_list_texts(path, wanted).in_two_languages())


def read(path: Path, wanted: Languages | None) -> RawPairs:
    """Read the training, validation and test texts.

    Raises:
        DataError: the languages are not clear, or the two files of a text differ in length.
    """
    texts = _list_texts(path, wanted)
    paired = texts.in_two_languages()
    parts, _ = assign_splits(paired, str(path))
    available = list(paired[parts.get("train", next(iter(parts.values())))])
    if path.is_file():  # train.en was named: it is the source
        named = path.name.removesuffix(GZIP_SUFFIX).rpartition(".")[2]
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
    label = source.name.removesuffix(GZIP_SUFFIX)
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


def _list_texts(path: Path, wanted: Languages | None) -> _Texts:
    texts = _Texts()
    if path.is_dir():
        for entry in os.scandir(path):
            if "." in entry.name[1:] and not entry.name.startswith("."):
                texts.add(Path(entry.path), wanted)
        return texts
    if not path.name or not path.parent.is_dir():
        return texts
    stems = _stems_meant(path, wanted)
    for entry in os.scandir(path.parent):
        if entry.name.startswith(stems):
            texts.add(Path(entry.path), wanted)
    texts.by_stem = {stem: files for stem, files in texts.by_stem.items() if f"{stem}." in stems}
    return texts


def _stems_meant(path: Path, wanted: Languages | None) -> tuple[str, ...]:
    """Return the possible common prefixes of two files: the path's name, or the stem of a file."""
    name = path.name.removesuffix(GZIP_SUFFIX)
    stem, _, language = name.rpartition(".")
    is_one_of_them = is_language(language) or (wanted is not None and language in wanted)
    if path.is_file():
        return (f"{stem}.",) if stem and is_one_of_them else ()
    return (f"{name.removesuffix('.')}.",)


def _report_unpaired(texts: _Texts, languages: Languages) -> Iterator[Finding]:
    """Report texts that lack a language, such as a test set without published translation."""
    lone = sorted(
        file.name
        for files in texts.by_stem.values()
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
