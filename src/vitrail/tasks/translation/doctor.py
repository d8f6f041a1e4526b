"""Checks of parallel text before training: errors, pitfalls, and facts worth knowing.

Nothing on disk is changed. Every check is a function of the examined data set that yields findings.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from html import escape
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from vitrail.data.dataset import Progress
from vitrail.data.findings import Finding, FindingTexts, Severity, Verdict, joined, judge, number_of
from vitrail.data.text.languages import COMMON_WORDS, short_code
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
from vitrail.tasks.data_page import DataView, Drawn, plot_counts
from vitrail.tasks.translation.dataset import PairDataset, PairSplit

MAX_WORDS = 1000  # a longer side is a document, or lines that lost their ends
MAX_CHARACTERS = 6000  # equivalent in English; for languages without spaces
MIN_LETTERS = 4  # of another script, so that a name or a sign does not count
FEW_PAIRS = 10_000  # a Transformer from random weights learns little grammar from fewer
MAX_UNDECODABLE = 0.5  # a greater fraction means that the whole file has another encoding
MIN_JUDGED = 20  # pairs needed for a typical length ratio
SHORT_TEXT = 10  # characters added to both lengths, to damp the ratio of short sentences
RATIO_DEVIATIONS = 8.0  # robust standard deviations from the typical ratio
MIN_RATIO = 2.5  # times the typical ratio, however narrow it is
UNRELATED = 0.2  # length correlation below which the sides are hardly translations
MIN_CORRELATED = 200  # pairs, so that unrelated lengths rarely correlate by chance
QUESTION_MARKS = ("?", "\uff1f", "\u061f", "\u037e", ";")  # also of Chinese, Arabic and Greek
CLOSING = " \"')\u00bb\u201c\u201d\u300d"  # may follow them
MIN_QUESTIONS = 20  # on each side
MOST_MOVED, MOVED_GAIN = 3, 0.03  # lines, and how much better the questions correlate there
MAX_COUNTED = 2000  # pairs whose words tell the languages
CLEARLY = 3.0  # times as many common words of the other language
MANY_COPIES = 0.01  # of all pairs; copies hurt more than other noise (Khayrallah and Koehn 2018)


FAULTS: dict[str, Callable[[Characters], np.ndarray]] = {
    "empty": lambda side: side.lengths == side.classes[:, SPACE],
    "undecodable": lambda side: side.classes[:, UNDECODABLE] > 0,
    "too_long": lambda side: (side.words > MAX_WORDS) | (side.lengths > MAX_CHARACTERS),
}
"""What makes a pair unusable, as masks of one side's sentences."""

TEXTS = FindingTexts(__file__)


def check_pairs(dataset: PairDataset, progress: Progress | None = None) -> Verdict:
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
    examined = ExaminedPairs(dataset)
    return judge(dataset, examined, CHECKS, exclude=examined.unusable)


def view_pairs(dataset: PairDataset) -> DataView:
    """Return what the doctor's page shows of sentence pairs."""

    def draw(split: PairSplit, index: int, _: Collection[int]) -> Drawn:
        return Drawn(f"<p>{escape(split.sources[index])}</p><p>{escape(split.targets[index])}</p>")

    def count(side: str, split: PairSplit) -> list[int]:
        return [len(text.split()) for text in getattr(split, side)]

    plots = [
        plot_counts(dataset, partial(count, side), f"words of a sentence in {language}", "sentences")
        for language, side in zip(dataset.languages, ("sources", "targets"), strict=True)
    ]
    return DataView(draw, plots=plots)


class Side(NamedTuple):
    """One side of one split."""

    split: str
    language: str
    texts: Sequence[str]
    names: Sequence[str]
    """Of each sentence."""
    characters: Characters
    """Of each sentence."""
    is_usable: np.ndarray
    """Whether each pair is usable, on both sides."""

    def items(self, chosen: np.ndarray) -> list[str]:
        """Name the masked sentences by pair and language."""
        return [f"{self.names[index]} ({self.language})" for index in np.flatnonzero(chosen).tolist()]

    def matching(self, is_match: Callable[[str], bool]) -> list[str]:
        """Name the usable sentences with some property."""
        mask = np.fromiter(map(is_match, self.texts), dtype=bool, count=len(self.texts))
        return self.items(mask & self.is_usable)


@dataclass(frozen=True)
class ExaminedPairs:
    """A data set with the inspection of each pair."""

    dataset: PairDataset

    @cached_property
    def characters(self) -> dict[str, tuple[Characters, Characters]]:
        splits = self.dataset.splits.items()
        return {
            name: (count_characters(each.sources), count_characters(each.targets)) for name, each in splits
        }

    @property
    def num_pairs(self) -> int:
        return sum(len(split) for split in self.dataset.splits.values())

    @cached_property
    def faults(self) -> dict[str, dict[str, np.ndarray]]:
        """Masks of the unusable pairs by fault and split, for both sides: ``2 pairs``."""
        return {
            fault: {name: np.stack([*map(is_faulty, sides)]) for name, sides in self.characters.items()}
            for fault, is_faulty in FAULTS.items()
        }

    @cached_property
    def is_usable(self) -> dict[str, np.ndarray]:
        """Mask of the usable pairs of each split."""
        return {
            name: np.logical_not(np.concatenate([masks[name] for masks in self.faults.values()]).any(axis=0))
            for name in self.characters
        }

    @property
    def unusable(self) -> list[str]:
        splits = self.dataset.splits.items()
        return [split.names[i] for name, split in splits for i in np.flatnonzero(~self.is_usable[name])]

    def sentence_name(self, pair: str, language: str) -> str:
        """Name one side of a pair: of two files ``train.de:7``, where the pair is called ``train.en:7``."""
        return pair.replace(f".{self.dataset.languages[0]}:", f".{language}:")

    @cached_property
    def sides(self) -> tuple[Side, ...]:
        return tuple(
            Side(
                name,
                language,
                texts,
                [self.sentence_name(pair, language) for pair in split.names],
                characters,
                self.is_usable[name],
            )
            for name, split in self.dataset.splits.items()
            for language, texts, characters in zip(
                self.dataset.languages, (split.sources, split.targets), self.characters[name], strict=True
            )
        )

    def faulty_sides(self, fault: str) -> Iterator[tuple[Side, np.ndarray]]:
        """Yield each side with the mask of a fault."""
        masks = self.faults[fault].values()
        yield from zip(self.sides, chain.from_iterable(masks), strict=True)

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


def find_too_few(examined: ExaminedPairs) -> Iterator[Finding]:
    """No pairs for training or test, or too few to learn from."""
    given, usable = len(examined.dataset.train), int(examined.is_usable["train"].sum())
    has_test = examined.is_usable["test"].any()
    if usable == 0:
        yield TEXTS.finding("no-pairs" if given or not has_test else "no-train")
    elif usable < FEW_PAIRS:
        yield TEXTS.finding("few-pairs", count=usable, pairs=number_of(usable, "training pair"))
    if given and not has_test:
        yield TEXTS.finding("no-test")


def find_empty_sides(examined: ExaminedPairs) -> Iterator[Finding]:
    """Pairs with an empty side."""
    first, second = examined.dataset.languages
    items = []
    for name, split in examined.dataset.splits.items():
        source, target = examined.faults["empty"][name]
        for index in np.flatnonzero(source | target):
            side = first if source[index] else second
            both = "both sides" if source[index] and target[index] else side
            items.append(f"{examined.sentence_name(split.names[index], side)} ({both})")
    severity: Severity = "error" if len(items) == examined.num_pairs else "warning"
    yield from TEXTS.listed("empty-side", items, severity=severity, total=examined.num_pairs)


def find_undecodable(examined: ExaminedPairs) -> Iterator[Finding]:
    """Sentences with bytes that are not UTF-8, or with the replacement character."""
    items = [item for side, mask in examined.faulty_sides("undecodable") for item in side.items(mask)]
    number = sum(int(mask.any(axis=0).sum()) for mask in examined.faults["undecodable"].values())
    severity: Severity = "error" if number > MAX_UNDECODABLE * examined.num_pairs else "warning"
    yield from TEXTS.listed("undecodable", items, count=number, severity=severity, total=examined.num_pairs)


def find_too_long(examined: ExaminedPairs) -> Iterator[Finding]:
    """Sides too long for a sentence."""
    yield from TEXTS.listed(
        "too-long",
        (
            f"{side.names[index]} ({side.language}, {side.characters.words[index]} words)"
            for side, mask in examined.faulty_sides("too_long")
            for index in np.flatnonzero(mask).tolist()
        ),
        words=MAX_WORDS,
        characters=MAX_CHARACTERS,
    )


def find_encoding_damage(examined: ExaminedPairs) -> Iterator[Finding]:
    """UTF-8 that was decoded with another encoding, and control characters."""
    damaged: list[str] = []
    controls: list[str] = []
    for side in examined.sides:
        found = dict.fromkeys(side.matching(lambda text: not text.isascii() and bool(MOJIBAKE.search(text))))
        has_control = (side.characters.classes[:, CONTROL] > 0) & side.is_usable
        controls += [name for name in side.items(has_control) if name not in found]
        damaged += found
    yield from TEXTS.listed("mojibake", damaged)
    yield from TEXTS.listed("control-characters", controls)


def find_other_scripts(examined: ExaminedPairs) -> Iterator[Finding]:
    """Sides in an unexpected script for their language, and sentences in another script than their side."""
    for language, script in examined.script_of.items():
        expected = SCRIPT_OF_LANGUAGE.get(short_code(language), script)
        if expected != script:
            yield TEXTS.finding(
                "unexpected-script", (language,), language=language, script=script, expected=expected
            )
        items: list[str] = []
        for side in examined.sides:
            if side.language == language:
                letters = side.characters.letters.sum(axis=1)
                others = letters - side.characters.letters[:, SCRIPTS.index(script)]
                items += side.items((others >= MIN_LETTERS) & (2 * others > letters) & side.is_usable)
        yield from TEXTS.listed("other-script", items, language=language, script=script)


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
    yield from TEXTS.listed("length-ratio", items, bound=np.exp(bound))


def find_unrelated_lengths(examined: ExaminedPairs) -> Iterator[Finding]:
    """Lengths of both sides are uncorrelated: they do not belong together."""
    mask = examined.is_usable["train"]
    source, target = (side[mask] for side in _log_lengths(examined.characters["train"]))
    if len(source) < MIN_CORRELATED or not source.std() or not target.std():
        return
    correlation = float(np.corrcoef(source, target)[0, 1])
    if correlation < UNRELATED:
        yield TEXTS.finding("unrelated-lengths", count=len(source), correlation=correlation)


def find_moved_lines(examined: ExaminedPairs) -> Iterator[Finding]:
    """Questions of one side go with those of the other some lines further up or down.

    Lengths do not tell where the lines are sorted by them. The last half shows a line that is missing before.
    """
    split = examined.dataset.undivided or examined.dataset.train
    source, target = (
        np.array(
            [text.rstrip(CLOSING).endswith(QUESTION_MARKS) for text in side[len(side) // 2 :]], dtype=float
        )
        for side in (split.sources, split.targets)
    )
    if min(source.sum(), target.sum()) < MIN_QUESTIONS or min(source.min(), target.min()) > 0:
        return
    agreement = {
        lines: np.corrcoef(source, np.roll(target, -lines))[0, 1]
        for lines in range(-MOST_MOVED, MOST_MOVED + 1)
    }
    moved = max(agreement, key=agreement.__getitem__)
    if agreement[moved] > agreement[0] + MOVED_GAIN:
        yield TEXTS.finding(
            "moved-lines", lines=number_of(abs(moved), "line"), way="down" if moved > 0 else "up"
        )


def find_exchanged_sides(examined: ExaminedPairs) -> Iterator[Finding]:
    """Each side has the frequent words of the other's language."""
    split, languages = examined.dataset.train, examined.dataset.languages
    first, second = (COMMON_WORDS.get(short_code(language), frozenset()) for language in languages)
    if first == second:
        return
    sources, targets = (
        Counter(re.findall(r"\w+", " ".join(side[:MAX_COUNTED]).casefold()))
        for side in (split.sources, split.targets)
    )
    straight = sum(sources[word] for word in first) + sum(targets[word] for word in second)
    crossed = sum(sources[word] for word in second) + sum(targets[word] for word in first)
    if crossed > max(MIN_JUDGED, CLEARLY * straight):
        yield TEXTS.finding("exchanged-sides", languages, first=languages[0], second=languages[1])


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
    severity: Severity = "warning" if len(items) >= MANY_COPIES * examined.num_pairs else "info"
    yield from TEXTS.listed("copies", items, severity=severity, total=examined.num_pairs)


def find_markup(examined: ExaminedPairs) -> Iterator[Finding]:
    """Tags and character references of HTML or XML."""
    items: list[str] = []
    for side in examined.sides:
        items += side.matching(lambda text: ("<" in text or "&" in text) and bool(MARKUP.search(text)))
    yield from TEXTS.listed("markup", items)


def find_duplicates(examined: ExaminedPairs) -> Iterator[Finding]:
    """Test pairs that are in train, and pairs repeated in train."""
    first_by_pair: dict[tuple[str, str], str] = {}
    first_by_source: dict[str, str] = {}
    repeated: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, split, indices in examined.rows():
        leaked, known = [], []
        for index in indices:
            pair = source, _ = split.sources[index].strip(), split.targets[index].strip()
            pair_name = split.names[index]
            if name == "train":
                first = first_by_pair.setdefault(pair, pair_name)
                first_by_source.setdefault(source, pair_name)
                if first is not pair_name:
                    repeated[pair].append(pair_name)
            elif pair in first_by_pair:
                leaked.append(f"{pair_name} = {first_by_pair[pair]}")
            elif source in first_by_source:
                known.append(f"{pair_name} = {first_by_source[source]}")
        yield from TEXTS.listed(f"{name}-in-train", leaked)
        yield from TEXTS.listed(f"{name}-source-in-train", known)
    yield from TEXTS.listed(
        "repeated-in-train", (joined([first_by_pair[pair], *names]) for pair, names in repeated.items())
    )


def _log_lengths(sides: tuple[Characters, Characters]) -> tuple[np.ndarray, np.ndarray]:
    source, target = (np.log(side.lengths + SHORT_TEXT) for side in sides)
    return source, target


CHECKS: tuple[Callable[[ExaminedPairs], Iterator[Finding]], ...] = (
    find_too_few,
    find_empty_sides,
    find_undecodable,
    find_too_long,
    find_encoding_damage,
    find_other_scripts,
    find_odd_lengths,
    find_unrelated_lengths,
    find_moved_lines,
    find_exchanged_sides,
    find_copies,
    find_markup,
    find_duplicates,
)
"""In the order of a verdict."""
