"""Checks of parallel text before training: errors, pitfalls, and facts worth knowing.

Nothing on disk is changed. Every check is a function of the examined data set that yields findings.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from html import escape
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

    language: str
    texts: Sequence[str]
    names: Sequence[str]
    """Of each sentence."""
    characters: Characters
    """Of each sentence."""
    faults: Mapping[str, np.ndarray]
    """Masks of the unusable sentences by fault."""
    is_usable: np.ndarray
    """Whether each pair is usable, on both sides."""

    def items(self, chosen: np.ndarray) -> list[str]:
        """Name the masked sentences by pair and language."""
        return [f"{self.names[index]} ({self.language})" for index in np.flatnonzero(chosen).tolist()]

    def matching(self, is_match: Callable[[str], bool]) -> list[str]:
        """Name the usable sentences with some property."""
        mask = np.fromiter(map(is_match, self.texts), dtype=bool, count=len(self.texts))
        return self.items(mask & self.is_usable)


class ExaminedPairs:
    """A data set with the inspection of each pair."""

    def __init__(self, dataset: PairDataset) -> None:
        self.dataset = dataset
        self.both = {name: self._examine(split) for name, split in dataset.splits.items()}
        self.sides = [side for sides in self.both.values() for side in sides]
        self.of_language = dict(zip(dataset.languages, zip(*self.both.values(), strict=True), strict=True))
        self.is_usable = {name: source.is_usable for name, (source, _) in self.both.items()}
        self.num_pairs = sum(map(len, dataset.splits.values()))

    def _examine(self, split: PairSplit) -> tuple[Side, Side]:
        languages, texts = self.dataset.languages, (split.sources, split.targets)
        characters = [count_characters(side) for side in texts]
        faults = [{fault: is_faulty(side) for fault, is_faulty in FAULTS.items()} for side in characters]
        is_usable = ~np.any([mask for side in faults for mask in side.values()], axis=0)
        # of two files, the pair train.en:7 is train.de:7 on the other side
        named = [
            [name.replace(f".{languages[0]}:", f".{each}:") for name in split.names] for each in languages
        ]
        source, target = (
            Side(*side, is_usable) for side in zip(languages, texts, named, characters, faults, strict=True)
        )
        return source, target

    @property
    def unusable(self) -> list[str]:
        splits = self.dataset.splits.items()
        return [split.names[i] for name, split in splits for i in np.flatnonzero(~self.is_usable[name])]

    @cached_property
    def script_of(self) -> dict[str, str]:
        """Predominant script of each language, if it has letters."""
        found = {}
        for language, sides in self.of_language.items():
            totals = sum(side.characters.letters[side.is_usable].sum(axis=0) for side in sides)
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
            "words": {language: _count_words(sides) for language, sides in self.of_language.items()},
        }

    def rows(self) -> Iterator[tuple[str, PairSplit, list[int]]]:
        """Yield each split with its name and the indices of usable pairs."""
        for name, split in self.dataset.splits.items():
            yield name, split, np.flatnonzero(self.is_usable[name]).tolist()


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
    items = []
    for source, target in examined.both.values():
        no_source, no_target = source.faults["empty"], target.faults["empty"]
        for index in np.flatnonzero(no_source | no_target).tolist():
            side = source if no_source[index] else target
            both = "both sides" if no_source[index] and no_target[index] else side.language
            items.append(f"{side.names[index]} ({both})")
    severity: Severity = "error" if len(items) == examined.num_pairs else "warning"
    yield from TEXTS.listed("empty-side", items, severity=severity, total=examined.num_pairs)


def find_undecodable(examined: ExaminedPairs) -> Iterator[Finding]:
    """Sentences with bytes that are not UTF-8, or with the replacement character."""
    fault = "undecodable"
    items = [item for side in examined.sides for item in side.items(side.faults[fault])]
    number = sum(
        int((source.faults[fault] | target.faults[fault]).sum()) for source, target in examined.both.values()
    )
    severity: Severity = "error" if number > MAX_UNDECODABLE * examined.num_pairs else "warning"
    yield from TEXTS.listed(fault, items, count=number, severity=severity, total=examined.num_pairs)


def find_too_long(examined: ExaminedPairs) -> Iterator[Finding]:
    """Sides too long for a sentence."""
    yield from TEXTS.listed(
        "too-long",
        (
            f"{side.names[index]} ({side.language}, {side.characters.words[index]} words)"
            for side in examined.sides
            for index in np.flatnonzero(side.faults["too_long"]).tolist()
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
        for side in examined.of_language[language]:
            letters = side.characters.letters.sum(axis=1)
            others = letters - side.characters.letters[:, SCRIPTS.index(script)]
            items += side.items((others >= MIN_LETTERS) & (2 * others > letters) & side.is_usable)
        yield from TEXTS.listed("other-script", items, language=language, script=script)


def find_odd_lengths(examined: ExaminedPairs) -> Iterator[Finding]:
    """Pairs with an unusual length ratio."""
    both = examined.both.items()
    ratios = {name: _log_lengths(target) - _log_lengths(source) for name, (source, target) in both}
    usable = np.concatenate([ratios[name][mask] for name, mask in examined.is_usable.items()])
    if len(usable) < MIN_JUDGED:
        return
    usual = float(np.median(usable))
    deviation = 1.4826 * float(np.median(np.abs(usable - usual)))  # of a normal distribution
    bound = max(RATIO_DEVIATIONS * deviation, float(np.log(MIN_RATIO)))
    items = []
    for name, (source, target) in both:
        is_odd = (np.abs(ratios[name] - usual) > bound) & source.is_usable
        lengths = source.characters.lengths, target.characters.lengths
        items += [
            f"{source.names[index]} ({lengths[0][index]} : {lengths[1][index]} characters)"
            for index in np.flatnonzero(is_odd).tolist()
        ]
    yield from TEXTS.listed("length-ratio", items, bound=np.exp(bound))


def find_unrelated_lengths(examined: ExaminedPairs) -> Iterator[Finding]:
    """Lengths of both sides are uncorrelated: they do not belong together."""
    source, target = (_log_lengths(side)[side.is_usable] for side in examined.both["train"])
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
        has_letters = examined.both[name][0].characters.letters.sum(axis=1) > 0
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


def _log_lengths(side: Side) -> np.ndarray:
    return np.log(side.characters.lengths + SHORT_TEXT)


def _count_words(sides: Iterable[Side]) -> dict[str, float]:
    words = np.concatenate([side.characters.words[side.is_usable] for side in sides])
    return {"mean": round(float(words.mean()), 2), "longest": int(words.max())} if len(words) else {}


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
