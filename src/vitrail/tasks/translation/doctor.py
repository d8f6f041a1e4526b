"""Checks of parallel text before training: errors, pitfalls, and facts worth knowing.

Nothing on disk is changed. Every check is a function of the examined data set that yields findings.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from vitrail.data.findings import Finding, Severity, Verdict, number_of, sort_findings
from vitrail.data.text.scripts import (
    CONTROL,
    MARKUP,
    MOJIBAKE,
    SCRIPT_OF_LANGUAGE,
    SCRIPTS,
    SPACE,
    UNDECODABLE,
    Characters,
    count_characters,
)
from vitrail.tasks.translation.dataset import PairDataset, PairSplit

FEW_PAIRS = 10_000  # a Transformer from random weights learns little grammar from fewer
MAX_UNDECODABLE = 0.5  # a greater fraction means that the whole file has another encoding
MIN_JUDGED = 20  # pairs needed for a typical length ratio
SHORT_TEXT = 10  # characters added to both lengths, to damp the ratio of short sentences
RATIO_DEVIATIONS = 8.0  # robust standard deviations from the typical ratio
MIN_RATIO = 2.5  # times the typical ratio, however narrow it is
UNRELATED = 0.2  # length correlation below which the sides are hardly translations
MIN_CORRELATED = 200  # pairs, so that unrelated lengths rarely correlate by chance
MANY_COPIES = 0.01  # of all pairs; copies hurt more than other noise (Khayrallah and Koehn 2018)


def check_pairs(dataset: PairDataset) -> Verdict:
    """Examine every pair of every split.

    Returns:
        : Findings, errors first, and the pairs to leave out.

    >>> from vitrail.tasks.translation.dataset import PairSplit
    >>> train = PairSplit(["a cat", "a dog"], ["eine Katze", ""], ["train.en:1", "train.en:2"])
    >>> parts = {"train": train, "validation": train.take([]), "test": train.take([])}
    >>> pets = PairDataset(source="pets", format="two text files", languages=("en", "de"), **parts)
    >>> verdict = check_pairs(pets)
    >>> verdict.usable, verdict.exclude
    (True, frozenset({'train.en:2'}))
    """
    examined = ExaminedPairs.of(dataset)
    found = [finding for judge in CHECKS for finding in judge(examined)]
    return Verdict(
        source=dataset.source,
        findings=sort_findings([*found, *dataset.findings]),
        counts=examined.counts,
        exclude=examined.unusable,
    )


def find_too_few(examined: ExaminedPairs) -> Iterator[Finding]:
    """No pairs for training or test, or too few to learn from."""
    given, usable = len(examined.dataset.train), int(examined.is_usable["train"].sum())
    if usable == 0 and (given or not examined.is_usable["test"].any()):
        yield Finding(
            "error", "no-pairs", "there is no usable training pair", "Give sentences with their translations"
        )
    elif usable == 0:
        yield Finding(
            "warning",
            "no-train",
            "there is no training pair: these pairs can be evaluated on, not learned from",
            "To train, give a source with a training split",
        )
    elif usable < FEW_PAIRS:
        yield Finding(
            "warning",
            "few-pairs",
            f"{number_of(usable, 'training pair')}, few to learn a language from",
            "Collect more, or start from a trained model",
            count=usable,
        )
    if given and not examined.is_usable["test"].any():
        yield Finding("warning", "no-test", "there is no usable test pair", "Give more pairs")


def find_empty_sides(examined: ExaminedPairs) -> Iterator[Finding]:
    """Pairs with an empty side."""
    both = "both sides"
    first, second = examined.dataset.languages
    items = []
    for name, split in examined.dataset.splits.items():
        source, target = examined.faults[name].empty
        for index in np.flatnonzero(source | target):
            side = both if source[index] and target[index] else first if source[index] else second
            items.append(f"{split.names[index]} ({side})")
    if items:
        yield Finding(
            "error" if len(items) == examined.num_pairs else "warning",
            "empty-side",
            f"{number_of(len(items), 'pair')} of {examined.num_pairs} with an empty side",
            "They are left out; write the missing sentences, or remove the lines on both sides",
            tuple(items),
        )


def find_undecodable(examined: ExaminedPairs) -> Iterator[Finding]:
    """Sentences with bytes that are not UTF-8, or with the replacement character."""
    items: list[str] = []
    number = 0
    for name, faults in examined.faults.items():
        number += int(faults.undecodable.any(axis=0).sum())
        sides = (side for side in examined.sides if side.split == name)
        for side, is_faulty in zip(sides, faults.undecodable, strict=True):
            items += side.items(is_faulty)
    if items:
        yield Finding(
            "error" if number > MAX_UNDECODABLE * examined.num_pairs else "warning",
            "undecodable",
            f"{number_of(number, 'pair')} of {examined.num_pairs} with bytes that are not UTF-8",
            "They are left out; convert the file (iconv -f LATIN1 -t UTF-8), or mend these lines",
            tuple(items),
        )


def find_too_long(examined: ExaminedPairs) -> Iterator[Finding]:
    """Sides too long for a sentence."""
    items: list[str] = []
    for name, faults in examined.faults.items():
        sides = (side for side in examined.sides if side.split == name)
        for side, is_faulty in zip(sides, faults.too_long, strict=True):
            words = side.characters.words
            items += [
                f"{side.names[index]} ({side.language}, {words[index]} words)"
                for index in np.flatnonzero(is_faulty).tolist()
            ]
    if items:
        yield Finding(
            "warning",
            "too-long",
            f"{number_of(len(items), 'text')} of more than {MAX_WORDS} words or {MAX_CHARACTERS} characters",
            "Their pairs are left out; write one sentence on each line",
            tuple(items),
        )


def find_odd_lengths(examined: ExaminedPairs) -> Iterator[Finding]:
    """Pairs with an unusual length ratio."""
    logs = {name: _log_lengths(sides) for name, sides in examined.characters.items()}
    ratios = {name: target - source for name, (source, target) in logs.items()}
    usable = np.concatenate([ratios[name][mask] for name, mask in examined.is_usable.items()])
    if len(usable) < MIN_JUDGED:
        return
    usual = float(np.median(usable))
    deviation = 1.4826 * float(np.median(np.abs(usable - usual)))  # of a normal distribution
    bound = max(RATIO_DEVIATIONS * deviation, float(np.log(MIN_RATIO)))
    items = []
    for name, split in examined.dataset.splits.items():
        source, target = (side.lengths for side in examined.characters[name])
        is_odd = (np.abs(ratios[name] - usual) > bound) & examined.is_usable[name]
        items += [
            f"{split.names[index]} ({source[index]} : {target[index]} characters)"
            for index in np.flatnonzero(is_odd)
        ]
    if items:
        yield Finding(
            "warning",
            "length-ratio",
            f"{number_of(len(items), 'pair')} of lengths over {np.exp(bound):.1f} times off the usual ratio",
            "See whether these are translations of each other; remove those that are not",
            tuple(items),
        )


def find_unrelated_lengths(examined: ExaminedPairs) -> Iterator[Finding]:
    """Lengths of both sides are uncorrelated: they do not belong together."""
    mask = examined.is_usable["train"]
    source, target = (side[mask] for side in _log_lengths(examined.characters["train"]))
    if len(source) < MIN_CORRELATED or not source.std() or not target.std():
        return
    correlation = float(np.corrcoef(source, target)[0, 1])
    if correlation < UNRELATED:
        yield Finding(
            "warning",
            "unrelated-lengths",
            f"the lengths of both sides have nothing to do with each other (correlation {correlation:.2f})",
            "See whether line by line they are translations, or one side is moved or shuffled",
            count=len(source),
        )


def find_copies(examined: ExaminedPairs) -> Iterator[Finding]:
    """Pairs whose target repeats the source."""
    items = []
    for name, split, indices in examined.rows():
        has_letters = examined.characters[name][0].letters.sum(axis=1) > 0
        items += [
            split.names[index]
            for index in indices
            if has_letters[index] and split.sources[index].strip() == split.targets[index].strip()
        ]
    if items:
        severity: Severity = "warning" if len(items) >= MANY_COPIES * examined.num_pairs else "info"
        yield Finding(
            severity,
            "copies",
            f"{number_of(len(items), 'pair')} of {examined.num_pairs} with a target that repeats the source",
            "Translate them or remove them, unless they are names; a model learns to copy from few",
            tuple(items),
        )


def find_duplicates(examined: ExaminedPairs) -> Iterator[Finding]:
    """Test pairs that are in train, and pairs repeated in train."""
    first_by_pair: dict[tuple[str, str], str] = {}
    first_by_source: dict[str, str] = {}
    repeated: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, split, indices in examined.rows():
        leaked, known = [], []
        for index in indices:
            source, target, pair_name = (
                split.sources[index].strip(),
                split.targets[index].strip(),
                split.names[index],
            )
            if name == "train":
                first = first_by_pair.setdefault((source, target), pair_name)
                first_by_source.setdefault(source, pair_name)
                if first is not pair_name:
                    repeated[source, target].append(pair_name)
            elif (source, target) in first_by_pair:
                leaked.append(f"{pair_name} = {first_by_pair[source, target]}")
            elif source in first_by_source:
                known.append(f"{pair_name} = {first_by_source[source]}")
        yield from _report_leaks(name, leaked, known)
    if repeated:
        yield Finding(
            "info",
            "repeated-in-train",
            f"{number_of(len(repeated), 'pair')} more than once among the training pairs",
            "Remove the copies, unless the repetition is meant",
            tuple(" = ".join((first_by_pair[pair], *names)) for pair, names in repeated.items()),
        )


def _report_leaks(split: str, leaked: Sequence[str], known: Sequence[str]) -> Iterator[Finding]:
    if leaked:
        yield Finding(
            "warning",
            f"{split}-in-train",
            f"{number_of(len(leaked), f'{split} pair')} with the same source and target as a training pair",
            "Remove the copies from one of the two; the score is too good otherwise",
            tuple(leaked),
        )
    if known:
        yield Finding(
            "info",
            f"{split}-source-in-train",
            f"{number_of(len(known), f'{split} sentence')} that train has too, with another translation",
            "Nothing, if they are common phrases",
            tuple(known),
        )


def _log_lengths(sides: tuple[Characters, Characters]) -> tuple[np.ndarray, np.ndarray]:
    source, target = (np.log(side.lengths + SHORT_TEXT) for side in sides)
    return source, target


MAX_WORDS = 1000  # a longer side is a document, or lines that lost their ends
MAX_CHARACTERS = 6000  # equivalent in English; for languages without spaces


class Side(NamedTuple):
    """One side of one split."""

    split: str
    language: str
    """Name of the language."""
    texts: Sequence[str]
    names: Sequence[str]
    """Name of each pair."""
    characters: Characters
    """Of each sentence."""
    is_usable: np.ndarray
    """Whether each pair is usable, on both sides."""

    def items(self, chosen: np.ndarray) -> list[str]:
        """Name the masked sentences by pair and language."""
        return [f"{self.names[index]} ({self.language})" for index in np.flatnonzero(chosen).tolist()]


class Faults(NamedTuple):
    """Masks of the unusable pairs of one split, for both sides: ``2 pairs``."""

    empty: np.ndarray
    undecodable: np.ndarray
    too_long: np.ndarray


@dataclass(frozen=True)
class ExaminedPairs:
    """A data set with the inspection of each pair."""

    dataset: PairDataset
    characters: dict[str, tuple[Characters, Characters]]
    """Source and target statistics of each split."""

    @classmethod
    def of(cls, dataset: PairDataset) -> ExaminedPairs:
        return cls(
            dataset,
            {
                name: (count_characters(split.sources), count_characters(split.targets))
                for name, split in dataset.splits.items()
            },
        )

    @property
    def num_pairs(self) -> int:
        """Over all splits."""
        return sum(len(split) for split in self.dataset.splits.values())

    @cached_property
    def faults(self) -> dict[str, Faults]:
        """Faults of each split."""
        return {name: _find_faults(sides) for name, sides in self.characters.items()}

    @cached_property
    def is_usable(self) -> dict[str, np.ndarray]:
        """Mask of the usable pairs of each split."""
        return {
            name: ~np.logical_or.reduce(np.stack(found)).any(axis=0) for name, found in self.faults.items()
        }

    @cached_property
    def unusable(self) -> frozenset[str]:
        """Names of the unusable pairs."""
        return frozenset(
            split.names[index]
            for name, split in self.dataset.splits.items()
            for index in np.flatnonzero(~self.is_usable[name])
        )

    @cached_property
    def sides(self) -> tuple[Side, ...]:
        """Both sides of every split."""
        return tuple(
            Side(name, language, texts, split.names, characters, self.is_usable[name])
            for name, split in self.dataset.splits.items()
            for language, texts, characters in zip(
                self.dataset.languages, (split.sources, split.targets), self.characters[name], strict=True
            )
        )

    @cached_property
    def script_of(self) -> dict[str, str]:
        """Predominant script of each language, if it has letters."""
        found = {}
        for language in self.dataset.languages:
            totals = sum(
                side.characters.letters[side.is_usable].sum(axis=0)
                for side in self.sides
                if side.language == language
            )
            if np.any(totals):
                found[language] = SCRIPTS[int(np.argmax(totals))]
        return found

    @property
    def counts(self) -> dict[str, Any]:
        """The counts of a verdict."""
        return {
            "pairs": {name: len(split) for name, split in self.dataset.splits.items()},
            "languages": list(self.dataset.languages),
            "format": self.dataset.format,
            "scripts": dict(self.script_of),
            "words": {language: self._words(language) for language in self.dataset.languages},
        }

    def rows(self) -> Iterator[tuple[str, PairSplit, list[int]]]:
        """Yield each split with its name and the indices of usable pairs."""
        for name, split in self.dataset.splits.items():
            yield name, split, np.flatnonzero(self.is_usable[name]).tolist()

    def _words(self, language: str) -> dict[str, float]:
        used = [side.characters.words[side.is_usable] for side in self.sides if side.language == language]
        words = np.concatenate(used)
        if not len(words):
            return {}
        return {"mean": round(float(words.mean()), 2), "longest": int(words.max())}


def _find_faults(sides: tuple[Characters, Characters]) -> Faults:
    def of_both(mask: Any) -> np.ndarray:
        return np.stack([mask(side) for side in sides])

    return Faults(
        empty=of_both(lambda side: side.lengths == side.classes[:, SPACE]),
        undecodable=of_both(lambda side: side.classes[:, UNDECODABLE] > 0),
        too_long=of_both(lambda side: (side.words > MAX_WORDS) | (side.lengths > MAX_CHARACTERS)),
    )


MIN_LETTERS = 4  # of another script, so that a name or a sign does not count


def find_encoding_damage(examined: ExaminedPairs) -> Iterator[Finding]:
    """UTF-8 that was decoded with another encoding, and control characters."""
    damaged: list[str] = []
    controls: list[str] = []
    for side in examined.sides:
        is_damaged = _matches(side.texts, lambda text: not text.isascii() and bool(MOJIBAKE.search(text)))
        damaged += side.items(is_damaged & side.is_usable)
        controls += side.items((side.characters.classes[:, CONTROL] > 0) & side.is_usable)
    if damaged:
        yield Finding(
            "warning",
            "mojibake",
            f"{number_of(len(damaged), 'sentence')} with UTF-8 that was taken for another encoding",
            "Repair them (the package ftfy does), or remove the lines on both sides",
            tuple(damaged),
        )
    if controls:
        yield Finding(
            "warning",
            "control-characters",
            f"{number_of(len(controls), 'sentence')} with control characters or line separators",
            "Remove these characters; they are no part of a sentence",
            tuple(controls),
        )


def find_other_scripts(examined: ExaminedPairs) -> Iterator[Finding]:
    """Sides in an unexpected script for their language, and sentences in another script than their side."""
    for language, script in examined.script_of.items():
        expected = SCRIPT_OF_LANGUAGE.get(re.split("[-_]", language)[0], script)
        if expected != script:
            yield Finding(
                "warning",
                "unexpected-script",
                f"the side named {language} is written in {script}, not in {expected}",
                "See whether the sides are exchanged, or the files of another language",
                (language,),
            )
        items: list[str] = []
        for side in examined.sides:
            if side.language == language:
                letters = side.characters.letters
                others = letters.sum(axis=1) - letters[:, SCRIPTS.index(script)]
                items += side.items(
                    (others >= MIN_LETTERS) & (2 * others > letters.sum(axis=1)) & side.is_usable
                )
        if items:
            yield Finding(
                "warning",
                "other-script",
                f"{number_of(len(items), 'sentence')} of the {language} side in another script than {script}",
                "See whether they are of another language; remove such lines on both sides",
                tuple(items),
            )


def find_markup(examined: ExaminedPairs) -> Iterator[Finding]:
    """Tags and character references of HTML or XML."""
    items: list[str] = []
    for side in examined.sides:
        has_markup = _matches(
            side.texts, lambda text: ("<" in text or "&" in text) and bool(MARKUP.search(text))
        )
        items += side.items(has_markup & side.is_usable)
    if items:
        yield Finding(
            "warning",
            "markup",
            f"{number_of(len(items), 'sentence')} with tags or character references (<b>, &amp;)",
            "Remove tags and resolve references on both sides, unless translations shall have them",
            tuple(items),
        )


def _matches(texts: Sequence[str], is_match: Callable[[str], bool]) -> np.ndarray:
    return np.fromiter(map(is_match, texts), dtype=bool, count=len(texts))


CHECKS: tuple[Callable[[ExaminedPairs], Iterator[Finding]], ...] = (
    find_too_few,
    find_empty_sides,
    find_undecodable,
    find_too_long,
    find_encoding_damage,
    find_other_scripts,
    find_odd_lengths,
    find_unrelated_lengths,
    find_copies,
    find_markup,
    find_duplicates,
)
"""In the order of a verdict."""
